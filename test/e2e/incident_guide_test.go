package e2e

import (
	"context"
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"
)

// step is a command of the guide: its exit code, by cli.md, and what it must print.
type step struct {
	exit int
	says []string
}

var guideSteps = map[string]step{
	"pdnode demo":       {1, []string{"corrupt"}},
	"pdreplay verify":   {1, []string{"I1 ", "I2 ", "violations"}},
	"pdreplay blame":    {1, []string{"was the victim. Written by p0/", "by timeout, without the ACK of"}},
	"pdreplay page":     {0, []string{"owned", "landed", "! "}},
	"pdreplay room":     {0, []string{"p0/", "Released"}},
	"pdreplay report":   {1, nil},
	"pdreplay whatif":   {0, []string{"under policy fence with the recorded ack timeout:", " recorded, 0 under the policy"}},
	"pdreplay reduce":   {0, []string{"case.txt: "}},
	"pdreplay simulate": {0, []string{"ok    case.txt"}},
}

// The commands of docs/incident-guide.md, as they stand there, on the incident
// that its first command makes. The page and the room are those of this run.
func TestIncidentGuideRunsAsWritten(t *testing.T) {
	t.Parallel()
	doc, err := os.ReadFile(filepath.Join("..", "..", "docs", "incident-guide.md"))
	if err != nil {
		t.Fatal(err)
	}
	bin, dir := t.TempDir(), t.TempDir()
	for _, c := range []string{pdnode, pdreplay} {
		if err := os.Symlink(c, filepath.Join(bin, filepath.Base(c))); err != nil {
			t.Fatal(err)
		}
	}
	g := &guide{dir: dir, path: bin}
	seen := map[string]bool{}
	for _, block := range strings.Split(string(doc), "```console\n")[1:] {
		commands, _, _ := strings.Cut(block, "```")
		for line := range strings.Lines(commands) {
			command, ok := strings.CutPrefix(strings.TrimSpace(line), "$ ")
			if !ok {
				continue
			}
			words := strings.Fields(command)
			name := words[0] + " " + words[1]
			want, known := guideSteps[name]
			if !known {
				t.Fatalf("the test does not know %q", command)
			}
			seen[name] = true
			command = g.own(t, words)
			out, exit := g.run(t, command)
			if exit != want.exit {
				t.Fatalf("%s: exit %d, want %d\n%s", command, exit, want.exit, out)
			}
			for _, says := range want.says {
				if !strings.Contains(out, says) {
					t.Errorf("%s: does not say %q:\n%s", command, says, out)
				}
			}
		}
	}
	if len(seen) != len(guideSteps) {
		t.Errorf("the guide has %v", seen)
	}
	if page, err := os.ReadFile(filepath.Join(dir, "report.html")); err != nil || !strings.Contains(string(page), "Who wrote what") {
		t.Errorf("the report: %v", err)
	}
}

type guide struct {
	dir, path  string
	page, room string // of this run's incident
}

// own puts this run's page and room where the guide has those of its own.
func (g *guide) own(t *testing.T, words []string) string {
	t.Helper()
	for i, w := range words {
		_, err := strconv.ParseUint(w, 10, 64)
		switch {
		case err != nil || i == 0:
		case words[i-1] == "page" || words[i-1] == "--page":
			g.find(t)
			words[i] = g.page
		case words[i-1] == "room":
			g.find(t)
			words[i] = g.room
		}
	}
	return strings.Join(words, " ")
}

// find takes the first page that has a victim, as the guide asks its reader to.
func (g *guide) find(t *testing.T) {
	t.Helper()
	if g.page != "" {
		return
	}
	out, _ := g.run(t, "pdreplay blame incident -o json")
	var blame struct {
		Incidents []struct {
			Page       uint32  `json:"page"`
			VictimRoom *uint64 `json:"victim_room"`
			WriterRoom *uint64 `json:"writer_room"`
		} `json:"incidents"`
	}
	if err := json.Unmarshal([]byte(out), &blame); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	for _, in := range blame.Incidents {
		if in.VictimRoom != nil && in.WriterRoom != nil {
			g.page, g.room = strconv.FormatUint(uint64(in.Page), 10), strconv.FormatUint(*in.WriterRoom, 10)
			return
		}
	}
	t.Fatal("no page of this run has a victim")
}

func (g *guide) run(t *testing.T, command string) (out string, exit int) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	c := exec.CommandContext(ctx, "bash", "-c", command)
	c.Dir = g.dir
	c.Env = append(os.Environ(), "PATH="+g.path+":"+os.Getenv("PATH"))
	b, err := c.CombinedOutput()
	var ee *exec.ExitError
	if err != nil && !errors.As(err, &ee) {
		t.Fatalf("%s: %v", command, err)
	}
	return string(b), c.ProcessState.ExitCode()
}
