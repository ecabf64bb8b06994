package picture_test

import (
	"bytes"
	"os"
	"path/filepath"
	"testing"

	"go.uber.org/goleak"

	"github.com/pdlog/pdlog/events"
	"github.com/pdlog/pdlog/replay"
	"github.com/pdlog/pdlog/replay/picture"
	"github.com/pdlog/pdlog/replay/scenario"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// incident is a scenario in which a timer frees pages and the write of room 7
// lands in those of room 8.
const incident = "../../test/scenarios/088-name-the-writer.txt"

func logsOf(t *testing.T, evs []*events.Event) []*replay.Log {
	t.Helper()
	byNode := map[string][]*events.Event{}
	for _, e := range evs {
		byNode[e.Node] = append(byNode[e.Node], e)
	}
	var files []string
	for node, evs := range byNode {
		var b []byte
		var at events.Position
		for _, e := range evs {
			e.PrevHash = at.Chain
			w := events.NewFrameWriter(at)
			if err := w.Append(e); err != nil {
				t.Fatal(err)
			}
			at = w.Position()
			b = append(events.AppendJSON(b, e), '\n')
		}
		file := filepath.Join(t.TempDir(), node+".jsonl")
		if err := os.WriteFile(file, b, 0o600); err != nil {
			t.Fatal(err)
		}
		files = append(files, file)
	}
	logs, err := replay.Open(t.Context(), files)
	if err != nil {
		t.Fatal(err)
	}
	return logs
}

func scenarioLogs(t *testing.T, path string) []*replay.Log {
	t.Helper()
	rep, err := scenario.RunFile(path)
	if err != nil || !rep.OK {
		t.Fatalf("%s: %v line %d: %s", path, err, rep.FailedLine, rep.Detail)
	}
	return logsOf(t, rep.Logs)
}

func build(t *testing.T, logs []*replay.Log) *picture.Scene {
	t.Helper()
	s, err := picture.Build(t.Context(), logs)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func reportOf(t *testing.T, logs []*replay.Log) string {
	t.Helper()
	v, err := replay.Verify(t.Context(), logs)
	if err != nil {
		t.Fatal(err)
	}
	var b bytes.Buffer
	if err := build(t, logs).WriteReport(&b, v); err != nil {
		t.Fatal(err)
	}
	return b.String()
}

func timelineOf(t *testing.T, logs []*replay.Log) string {
	t.Helper()
	var b bytes.Buffer
	if err := build(t, logs).WriteTimeline(&b); err != nil {
		t.Fatal(err)
	}
	return b.String()
}
