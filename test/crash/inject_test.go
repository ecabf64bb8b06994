package crash

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/pdlog/pdlog/events"
	"github.com/pdlog/pdlog/store"
)

// Every way a sync or write can fail, at many places: the writer is told, ends,
// and acknowledges nothing more; the next life finds all that was acknowledged
// and goes on.
func TestFailedSyncsAndWritesEndTheLog(t *testing.T) {
	if _, err := exec.LookPath("strace"); err != nil {
		t.Skip("needs strace (apt-get install strace)")
	}
	injected := 0
	for _, fault := range []struct {
		call, errno string
		at          []int
	}{
		{"fdatasync", "EIO", []int{1, 2, 3, 4, 9, 16, 25}}, // data and meta syncs alternate
		{"fsync", "EIO", []int{1, 2, 3, 4}},
		{"pwrite64", "EIO", []int{1, 5, 21, 50}},
		{"pwrite64", "ENOSPC", []int{40}},
	} {
		for _, at := range fault.at {
			t.Run(fmt.Sprintf("%s-%s-%d", fault.call, fault.errno, at), func(t *testing.T) {
				if inject(t, fault.call, fault.errno, at) {
					injected++
				}
			})
		}
	}
	if injected < 10 {
		t.Errorf("only %d faults took place", injected)
	}
}

// inject fails the at-th call of a thread of the writer; false when none came
// that far.
func inject(t *testing.T, name, errno string, at int) bool {
	dir, trace := filepath.Join(t.TempDir(), "log"), filepath.Join(t.TempDir(), "trace")
	cmd := exec.Command("strace", "-f", "-qq", "--seccomp-bpf", "-o", trace, "-e", "trace="+name,
		"-e", fmt.Sprintf("inject=%s:error=%s:when=%d", name, errno, at), os.Args[0], "-test.run=^$")
	cmd.Env = append(os.Environ(), writerEnv+"=closed one-sync "+dir, "PDLOG_CRASH_COMMITS=40", "GODEBUG=asyncpreemptoff=1", "GOMAXPROCS=1")
	var out, said bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &said
	err := cmd.Run()
	if strings.Contains(said.String(), "ptrace") || strings.Contains(said.String(), "PTRACE") {
		t.Skipf("strace cannot trace here: %.300s", said.String())
	}
	if b, _ := os.ReadFile(trace); !bytes.Contains(b, []byte("INJECTED")) {
		return false
	}
	if err == nil {
		t.Fatalf("the writer did not notice")
	}
	want := map[string]string{"EIO": "input/output error", "ENOSPC": "no space left on device"}[errno]
	if !strings.Contains(said.String(), want) || !strings.Contains(said.String(), filepath.Dir(dir)) {
		t.Errorf("the writer's last words do not name cause and place: %.500s", said.String())
	}
	d := newDisk(dir, false)
	for line := range strings.Lines(out.String()) {
		var n uint64
		if _, err := fmt.Sscanf(line, "ack %d", &n); err == nil {
			d.acked = n
		}
	}
	l, rec, err := store.Open(context.Background(), dir, store.Options{Node: "n", Boot: 9, SegmentBytes: segmentBytes, Salvage: true})
	if err != nil {
		t.Fatalf("the next life: %v", err)
	}
	if rec.LastSeq < d.acked || rec.LostFrom != 0 {
		t.Errorf("%d was acknowledged, the next life finds %+v", d.acked, rec)
	}
	e := event(rec.LastSeq + 1)
	e.Boot, e.Incarnation = 9, rec.Incarnation
	if err := l.Append([]*events.Event{e}, events.Sync); err != nil {
		t.Error(err)
	}
	if err := l.Close(); err != nil {
		t.Error(err)
	}
	if last, err := readAll(dir, true); err != nil || last != rec.LastSeq+1 {
		t.Errorf("the next life ends at %d, want %d: %v", last, rec.LastSeq+1, err)
	}
	return true
}
