package mirror_test

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/pdlog/pdlog/store/mirror"
	"github.com/pdlog/pdlog/store/mirror/mirrortest"
)

// milestonesOf are the sequences that mirrortest makes milestones of.
func milestonesOf(last uint64) (seqs []uint64) {
	for seq := uint64(1); seq <= last; seq += 50 {
		seqs = append(seqs, seq)
	}
	return seqs
}

var errEnough = errors.New("enough")

func TestGoSubscriberHearsEveryMilestoneOnce(t *testing.T) {
	s := mirrortest.Start(t, mirrortest.Options{Lazy: true})
	w := mirrortest.OpenNode(t, t.TempDir(), "d.0", 1)
	r := mirrortest.Run(t, w, mirror.Options{URL: s.URL()})
	w.MustAppend(t, 500)
	r.Wait(t, w.Seq)
	nc := s.Connect()
	want := milestonesOf(1000)
	var have []uint64
	err := mirror.FollowAudit(t.Context(), nc, mirror.AuditOptions{Cluster: mirrortest.Cluster, Type: "AbortArmed", FromStart: true}, func(m mirror.Milestone) error {
		if m.Node != "d.0" || m.Cluster != mirrortest.Cluster || m.LogID != w.Log.LogID() || m.Type != "AbortArmed" || !json.Valid(m.JSON) {
			t.Errorf("milestone %+v", m)
		}
		have = append(have, m.Seq)
		switch len(have) {
		case 10: // what is there; the rest comes while we follow
			return w.Append(500)
		case len(want):
			return errEnough
		}
		return nil
	})
	if !errors.Is(err, errEnough) || !slices.Equal(have, want) {
		t.Errorf("have %v, want %v: %v", have, want, err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := mirror.FollowAudit(ctx, nc, mirror.AuditOptions{}, nil); err != nil && !errors.Is(err, context.Canceled) {
		t.Errorf("a context that has ended: %v", err)
	}
}

// The example in Python: from the beginning on, and from now on.
func TestPythonSubscriberHearsTheSame(t *testing.T) {
	t.Parallel()
	s := mirrortest.Start(t, mirrortest.Options{Lazy: true, Auth: mirrortest.Password})
	w := mirrortest.OpenNode(t, t.TempDir(), "d0", 1)
	r := mirrortest.Run(t, w, mirror.Options{URL: s.URL()})
	w.MustAppend(t, 500)
	r.Wait(t, w.Seq)
	for _, c := range []struct {
		flags []string
		want  []uint64
	}{
		{[]string{"--since-start", "--count", "20"}, milestonesOf(1000)},
		{[]string{"--count", "10"}, milestonesOf(1500)[20:]},
	} {
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		cmd := exec.CommandContext(ctx, "python3", append([]string{
			"../../clients/python/examples/audit.py", s.URL(), "pdlog.audit." + mirrortest.Cluster + ".d0.AbortArmed",
		}, c.flags...)...)
		out, err := cmd.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		trouble, err := cmd.StderrPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		if line, err := bufio.NewReader(trouble).ReadString('\n'); err != nil || !strings.HasPrefix(line, "following") {
			t.Fatalf("%v says %q, %v", c.flags, line, err)
		}
		var have []uint64
		done := make(chan error, 1)
		go func() {
			for lines := bufio.NewScanner(out); lines.Scan(); {
				var m struct {
					Subject string
					Event   struct {
						Seq  uint64
						Room string
						Type string
					}
				}
				if err := json.Unmarshal(lines.Bytes(), &m); err != nil || m.Event.Type != "AbortArmed" || m.Event.Room == "" {
					done <- fmt.Errorf("line %s: %w", lines.Text(), err)
					return
				}
				have = append(have, m.Event.Seq)
			}
			done <- cmd.Wait()
		}()
		w.MustAppend(t, 500)
		if err := <-done; err != nil {
			t.Fatalf("%v: %v", c.flags, err)
		}
		if !slices.Equal(have, c.want) {
			t.Errorf("%v: have %v, want %v", c.flags, have, c.want)
		}
	}
	out, err := exec.CommandContext(t.Context(), "python3", "../../clients/python/examples/audit.py", strings.Replace(s.URL(), "secret", "x", 1)).CombinedOutput()
	if err == nil || !strings.Contains(string(out), "Authorization Violation") {
		t.Errorf("a wrong password: %v, %s", err, out)
	}
}
