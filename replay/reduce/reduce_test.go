package reduce_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/pdlog/pdlog/events"
	"github.com/pdlog/pdlog/replay"
	"github.com/pdlog/pdlog/replay/reduce"
	"github.com/pdlog/pdlog/replay/scenario"
)

func logsOf(t *testing.T, rep scenario.Report, err error) []*replay.Log {
	t.Helper()
	if err != nil || !rep.OK {
		t.Fatalf("%s: %v line %d: %s", rep.File, err, rep.FailedLine, rep.Detail)
	}
	var b []byte
	for _, e := range rep.Logs {
		b = append(events.AppendJSON(b, e), '\n')
	}
	file := filepath.Join(t.TempDir(), "export.jsonl")
	if err := os.WriteFile(file, b, 0o600); err != nil {
		t.Fatal(err)
	}
	logs, err := replay.Open(t.Context(), []string{file})
	if err != nil {
		t.Fatal(err)
	}
	return logs
}

func named(t *testing.T, number string) string {
	t.Helper()
	names, err := filepath.Glob("../../test/scenarios/" + number + "-*.txt")
	if err != nil || len(names) != 1 {
		t.Fatal(number, names, err)
	}
	return names[0]
}

// check: the file is small, and running it shows the very same incident.
func check(t *testing.T, res *reduce.Result, want string, most int) {
	t.Helper()
	if n := res.Lines(); n > most {
		t.Errorf("%d lines, want at most %d:\n%s", n, most, res.Text)
	}
	if !strings.Contains(res.Text, want) {
		t.Errorf("want %q in\n%s", want, res.Text)
	}
	rep, err := scenario.Run("case", res.Text)
	if err != nil || !rep.OK {
		t.Fatalf("the file does not reproduce: %v %s\n%s", err, rep.Detail, res.Text)
	}
	h := replay.NewHistory()
	for _, e := range rep.Logs {
		h.Add(e)
	}
	for _, in := range replay.Blame(h) {
		if in.Page == res.Incident.Page && same(in.VictimRoom, res.Incident.VictimRoom) && same(in.WriterRoom, res.Incident.WriterRoom) {
			return
		}
	}
	t.Errorf("blame does not find the incident in a run of\n%s", res.Text)
}

func same(a, b *uint64) bool { return (a == nil) == (b == nil) && (a == nil || *a == *b) }

func TestIncidentsBecomeSmallScenarios(t *testing.T) {
	cases := []struct {
		number string
		page   uint32
		want   string
	}{
		{"088", 22, "expect corruption page=22 victim=8 writer=p/0 room=7"},
		{"088", 20, "expect corruption page=20 victim=none writer=p/0 room=7"},
		{"211", 12, "expect corruption page=12 victim=8 writer=p/0 room=7"},
		{"214", 12, "expect corruption page=12 victim=7"},
	}
	for _, tc := range cases {
		t.Run(tc.number, func(t *testing.T) {
			rep, err := scenario.RunFile(named(t, tc.number))
			res, err := reduce.Run(t.Context(), logsOf(t, rep, err), "d", tc.page)
			if err != nil {
				t.Fatal(err)
			}
			check(t, res, tc.want, 9)
			if again, err := reduce.Run(t.Context(), logsOf(t, rep, nil), "d", tc.page); err != nil || again.Text != res.Text {
				t.Errorf("a second time: %v\n%s", err, again.Text)
			}
		})
	}
}

// Nodes that were slower than simulated ones: the abort was on its way while the
// write was posted; the victim's own failure had not been told when it landed.
func TestIncidentsOfSlowNodes(t *testing.T) {
	cases := []struct{ name, file, want string }{
		{"the abort comes late", `
prefill p
decode  d
policy  release=timeout ack_timeout=20ms
0ms     open  room=7 prefill=p decode=d pages=10-19
10ms    delay kind=abort from=d to=p by=300ms count=1
100ms   abort room=7 by=d
110ms   send  room=7 rank=p/0 chunk=0 pages=10-14 takes=60ms last
end     expect corruption page=12 victim=none writer=p/0 room=7
end     expect violations I1,I2
`, "expect corruption page=12 victim=none writer=p/0 room=7"},
		{"the abort comes at once and late", `
prefill p
decode  d
policy  release=timeout ack_timeout=20ms
0ms     open  room=7 prefill=p decode=d pages=10-19
0ms     delay kind=abort from=d to=p by=300ms count=1
3ms     abort room=7 by=d
10ms    send  room=7 rank=p/0 chunk=0 pages=10-14 takes=90ms last
50ms    open  room=8 prefill=p decode=d pages=12-13
end     expect corruption page=12 victim=8 writer=p/0 room=7
end     expect violations I1,I2
`, "expect corruption page=12 victim=8 writer=p/0 room=7"},
		{"the victim's failure is told late", `
prefill p
decode  d
policy  release=timeout ack_timeout=20ms
0ms     open  room=7 prefill=p decode=d pages=10-19
10ms    send  room=7 rank=p/0 chunk=0 pages=10-14 takes=20ms result=late:2s
20ms    abort room=7 by=d
500ms   open  room=8 prefill=p decode=d pages=12-13
500ms   delay kind=status from=p to=d by=5s count=1
510ms   send  room=8 rank=p/0 chunk=0 pages=12-13 takes=10ms result=late:2s
2600ms  abort room=8 by=d
end     expect corruption page=12 victim=8 writer=p/0 room=7
end     expect violations I1,I2
`, "expect corruption page=12 victim=8 writer=p/0 room=7"},
	}
	for _, tc := range cases {
		t.Run(tc.name, func(t *testing.T) {
			rep, err := scenario.Run("slow", tc.file)
			res, err := reduce.Run(t.Context(), logsOf(t, rep, err), "d", 12)
			if err != nil {
				t.Fatal(err)
			}
			check(t, res, tc.want, 9)
		})
	}
}

// The incident lies among hundreds of rooms, 10,000 events, and its writer is one
// rank of four.
func TestAnIncidentInALargeLog(t *testing.T) {
	var b strings.Builder
	b.WriteString("prefill p ranks=4\ndecode d pages=256\npolicy release=timeout ack_timeout=500ms\n")
	at := 0
	line := func(format string, args ...any) { fmt.Fprintf(&b, "%dms "+format+"\n", append([]any{at}, args...)...) }
	room := func(n int, pages string) {
		line("open room=%d prefill=p decode=d pages=%s", n, pages)
		at += 5
		for r := range 4 {
			line("send room=%d rank=p/%d chunk=0 pages=%s takes=20ms last", n, r, pages)
		}
		at += 40
		line("finish room=%d", n)
		at += 5
	}
	for i := range 130 {
		room(100+i, fmt.Sprintf("%d-%d", i*2%120, i*2%120+1))
	}
	line("open room=7 prefill=p decode=d pages=200-207")
	at += 5
	line("send room=7 rank=p/2 chunk=3 pages=200-203 takes=30ms result=late:2s")
	line("send room=7 rank=p/1 chunk=0 pages=204-207 takes=30ms")
	at += 20
	line("abort room=7 by=d")
	at += 600
	line("open room=8 prefill=p decode=d pages=202-205")
	at += 5
	for r := range 4 {
		line("send room=8 rank=p/%d chunk=0 pages=202-205 takes=20ms last", r)
	}
	at += 2000
	line("finish room=8")
	for i := range 130 {
		room(400+i, fmt.Sprintf("%d-%d", i*2%120, i*2%120+1))
	}
	b.WriteString("end expect corruption page=203 victim=8 writer=p/2 room=7\nend expect violations I1,I2\n")
	rep, err := scenario.Run("large", b.String())
	if len(rep.Logs) < 10_000 {
		t.Fatalf("only %d events: %v %s", len(rep.Logs), err, rep.Detail)
	}
	res, err := reduce.Run(t.Context(), logsOf(t, rep, err), "d", 203)
	if err != nil {
		t.Fatal(err)
	}
	check(t, res, "expect corruption page=203 victim=8 writer=p/2 room=7", 15)
	t.Logf("%d events became %d lines in %d runs:\n%s", len(rep.Logs), res.Lines(), res.Runs, res.Text)
}

func TestAPageWithoutAnIncidentIsSaid(t *testing.T) {
	rep, err := scenario.RunFile(named(t, "088"))
	logs := logsOf(t, rep, err)
	if _, err := reduce.Run(t.Context(), logs, "d", 24); !errors.Is(err, reduce.ErrNoIncident) {
		t.Errorf("have %v", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := reduce.Run(ctx, logs, "d", 22); err == nil {
		t.Error("a cancelled run ended well")
	}
}
