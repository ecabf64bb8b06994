package cli

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"strings"
	"syscall"
	"testing"

	"github.com/pdlog/pdlog/events"
	"github.com/pdlog/pdlog/replay"
	"github.com/pdlog/pdlog/store/mirror"
	"github.com/pdlog/pdlog/store/mirror/mirrortest"
)

// lines hands each line that is written to a channel.
type lines struct {
	rest []byte
	ch   chan string
}

func (l *lines) Write(b []byte) (int, error) {
	l.rest = append(l.rest, b...)
	for {
		line, rest, ok := bytes.Cut(l.rest, []byte("\n"))
		if !ok {
			return len(b), nil
		}
		l.ch <- string(line)
		l.rest = bytes.Clone(rest)
	}
}

func TestMilestonesOfAFleet(t *testing.T) {
	s := mirrortest.Start(t, mirrortest.Options{Lazy: true})
	url := s.URL() + "/" + mirrortest.Cluster
	var out, diag bytes.Buffer
	exit := func(args ...string) int {
		out.Reset()
		diag.Reset()
		return Main(append([]string{"audit", url}, args...), Sys{Stdin: strings.NewReader(""), Stdout: &out, Stderr: &diag})
	}
	if code := exit("--milestones", "--once"); code != 3 || !strings.Contains(diag.String(), "PDLOG_AUDIT") {
		t.Errorf("without a stream: exit %d, %s", code, diag.String())
	}
	// mirrortest makes a milestone, AbortArmed, of every 50th event from the first on.
	var want []string
	var nodes []*mirrortest.Writer
	var running []*mirrortest.Running
	for _, name := range []string{"d0", "d.1"} {
		w := mirrortest.OpenNode(t, t.TempDir(), name, 1)
		r := mirrortest.Run(t, w, mirror.Options{URL: s.URL()})
		w.MustAppend(t, 120)
		r.Wait(t, w.Seq)
		nodes, running = append(nodes, w), append(running, r)
		for seq := 1; seq <= 120; seq += 50 {
			want = append(want, fmt.Sprintf("%s %d", name, seq))
		}
	}
	seen := func(text string) (have []string) {
		for line := range strings.Lines(text) {
			e, err := replay.ParseJSON([]byte(line))
			if err != nil {
				t.Fatalf("%s: %v", line, err)
			}
			if e.TypeName() != "AbortArmed" {
				t.Errorf("%s is no milestone of these nodes", line)
			}
			have = append(have, fmt.Sprintf("%s %d", e.Node, e.Seq))
		}
		return have
	}
	for _, c := range []struct {
		flags []string
		want  []string
	}{
		{nil, want},
		{[]string{"--node", "d.1"}, want[3:]},
		{[]string{"--node", "d.1,d0", "--type", "AbortArmed,Released"}, want},
		{[]string{"--type", "Released"}, nil},
		{[]string{"--room", "18446744073709551615"}, nil},
	} {
		if code := exit(append([]string{"--milestones", "--once", "-o", "json"}, c.flags...)...); code != 0 {
			t.Errorf("%v: exit %d, %s", c.flags, code, diag.String())
		}
		if have := seen(out.String()); fmt.Sprint(have) != fmt.Sprint(c.want) {
			t.Errorf("%v: have %v, want %v", c.flags, have, c.want)
		}
	}
	if code := exit("--milestones", "--once"); code != 0 || strings.Count(out.String(), "AbortArmed") != len(want) {
		t.Errorf("as text: exit %d, %s", code, out.String())
	}
	for _, bad := range [][]string{{"--milestones", "--metrics", ":0"}, {"--node", "d0"}, {"--milestones", "--type", "Released2"}} {
		if code := exit(bad...); code != 2 {
			t.Errorf("%v: exit %d, %s", bad, code, diag.String())
		}
	}

	live := &lines{ch: make(chan string, 100)}
	ended := make(chan int, 1)
	go func() {
		ended <- Main([]string{"audit", url, "--milestones", "-o", "json"}, Sys{Stdin: strings.NewReader(""), Stdout: live, Stderr: io.Discard})
	}()
	// It follows from now on, whenever that is: append until it has said something.
	var first *events.Event
	for first == nil {
		nodes[0].MustAppend(t, 50)
		running[0].Wait(t, nodes[0].Seq)
		select {
		case line := <-live.ch:
			e, err := replay.ParseJSON([]byte(line))
			if err != nil || e.Seq <= 120 {
				t.Fatalf("first heard %s: %v", line, err)
			}
			first = e
		case code := <-ended:
			t.Fatalf("it ended with %d", code)
		default:
		}
	}
	s.Kill(0) // it outlasts a server that goes away
	s.Run(0)
	s.WaitReady()
	nodes[1].MustAppend(t, 50)
	running[1].Wait(t, nodes[1].Seq)
	for heard := false; !heard; {
		select {
		case line := <-live.ch:
			heard = strings.Contains(line, `"node":"d.1"`)
		case code := <-ended:
			t.Fatalf("it ended with %d", code)
		}
	}
	if err := syscall.Kill(os.Getpid(), syscall.SIGINT); err != nil {
		t.Fatal(err)
	}
	if code := <-ended; code != 0 {
		t.Errorf("an interrupt ends it with %d", code)
	}
}
