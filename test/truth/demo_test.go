package truth

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/pdlog/pdlog/node/demo"
	"github.com/pdlog/pdlog/rdma"
	"github.com/pdlog/pdlog/rdma/fault"
	"github.com/pdlog/pdlog/replay"
	"github.com/pdlog/pdlog/test/built"
)

const lateWrites = "late:1s:30%"

// Real processes, real late writes: whoever's bytes the engine finds in a page
// that is not theirs is named by blame, and nobody is named whose write was not
// made late by the fault wrapper's own dice.
func TestBlameNamesExactlyWhoseBytesADemoFound(t *testing.T) {
	if testing.Short() {
		t.Skip("starts processes")
	}
	bin := t.TempDir()
	if err := built.Into(t.Context(), bin, "pdnode"); err != nil {
		t.Fatal(err)
	}
	pdnode := filepath.Join(bin, "pdnode")
	found, named := 0, 0
	n := runs(t, "PDLOG_TRUTH_DEMOS", 1)
	for seed := 1; seed <= n; seed++ {
		f, b := checkDemo(t, pdnode, seed)
		found, named = found+f, named+b
	}
	t.Logf("%d demos: %d parts of pages with foreign bytes, %d late writes into pages named", n, found, named)
	// One demo may be lucky: its late writes can land in pages that nobody has
	// taken yet. Many are not.
	if named == 0 || n >= 10 && found < n {
		t.Errorf("%d parts of pages found, %d late writes named in %d demos: they do not show what they are for", found, named, n)
	}
}

func checkDemo(t *testing.T, pdnode string, seed int) (found, named int) {
	t.Helper()
	dir := t.TempDir()
	s := runDemo(t, pdnode, "--requests", "48", "--pages", "768", "--bytes-per-token", "64", "--seed", strconv.Itoa(seed), "--data-dir", dir,
		"--release-policy", "timeout", "--ack-timeout", "300ms", "--abort-percent", "40", "--fault", lateWrites)
	logs, err := replay.Open(t.Context(), []string{dir})
	if err != nil {
		t.Fatal(err)
	}
	h, boots := replay.NewHistory(), map[string]bool{}
	for e, err := range replay.Merge(t.Context(), logs) {
		if err != nil {
			t.Fatal(err)
		}
		h.Add(e)
		boots[fmt.Sprintf("%s/%016x", e.Node, e.Boot)] = true
	}
	blamed := map[string]bool{}
	for _, in := range replay.Blame(h) {
		if in.VictimRoomSeq == nil {
			continue
		}
		if in.Writer == nil || in.Chunk == nil {
			t.Errorf("seed %d: page %d: no writer: %s", seed, in.Page, in.Story())
			continue
		}
		all := append([]replay.Culprit{{Writer: *in.Writer, WriterRoom: *in.WriterRoom, WriterRoomSeq: *in.WriterRoomSeq, Chunk: *in.Chunk, Bytes: in.Bytes}}, in.Others...)
		for _, c := range all {
			blamed[key(*in.VictimRoomSeq, in.Page, c.WriterRoom, c.Chunk, c.Writer)] = true
			if !injectedLate(t, h, boots, in.Node, c, seed) {
				t.Errorf("seed %d: page %d: false name: %+v was not late", seed, in.Page, c)
			}
			if !half(c) {
				t.Errorf("seed %d: page %d: %s wrote %+v", seed, in.Page, c.Writer, c.Bytes)
			}
		}
	}
	for _, f := range s.WrongBytes {
		if !blamed[key(f.RoomSeq, f.Page, f.Room, uint32(f.Chunk), f.Rank)] { //nolint:gosec // small
			t.Errorf("seed %d: missed: %+v", seed, f)
		}
	}
	return len(s.WrongBytes), len(blamed)
}

// half: each of a demo's two prefill ranks writes its half of every page.
func half(c replay.Culprit) bool {
	if len(c.Bytes) != 1 {
		return false
	}
	p, second := c.Bytes[0], uint64(0)
	if strings.HasSuffix(c.Writer, "/1") {
		second = 1
	}
	return p.To == "d0/0" && p.Page > 0 && p.Len == p.Page/2 && p.Off == second*p.Page/2 && p.Times == 1
}

func key(victim uint64, page uint32, room uint64, chunk uint32, rank string) string {
	return fmt.Sprintf("page %d of room_seq %d: room %d chunk %d of %s", page, victim, room, chunk, rank)
}

// injectedLate asks the dice of the fault wrapper (which draws by the prefill
// room, the chunk, and the life of the decode node) whether this write was late.
func injectedLate(t *testing.T, h *replay.History, boots map[string]bool, node string, c replay.Culprit, seed int) bool {
	t.Helper()
	spec, err := fault.ParseSpec(lateWrites)
	if err != nil {
		t.Fatal(err)
	}
	r := h.Room(replay.RoomKey{Node: node, Seq: c.WriterRoomSeq})
	if r == nil {
		return false
	}
	for _, p := range r.Peers {
		if !strings.HasPrefix(c.Writer, p.Node+"/") {
			continue
		}
		for peer := range boots {
			if strings.HasPrefix(peer, node+"/") && spec.Draw(uint64(seed), rdma.Tag(p.Seq), uint64(c.Chunk), rdma.PeerID(peer)).Kind == fault.Late { //nolint:gosec // small
				return true
			}
		}
	}
	return false
}

func runDemo(t *testing.T, pdnode string, args ...string) demo.Summary {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	defer cancel()
	var out, errs bytes.Buffer
	cmd := exec.CommandContext(ctx, pdnode, append([]string{"demo", "-o", "json"}, args...)...)
	cmd.Stdout, cmd.Stderr = &out, &errs
	var ee *exec.ExitError
	if err := cmd.Run(); err != nil && !errors.As(err, &ee) {
		t.Fatal(err)
	}
	var s demo.Summary
	if err := json.Unmarshal(out.Bytes(), &s); err != nil {
		t.Fatalf("exit %d, no summary (%v): %s", cmd.ProcessState.ExitCode(), err, errs.String())
	}
	return s
}
