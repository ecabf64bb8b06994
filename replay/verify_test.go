package replay_test

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"

	"github.com/pdlog/pdlog/events"
	"github.com/pdlog/pdlog/replay"
)

func invariantsOf(v *replay.Verdict) []string {
	var out []string
	for _, f := range v.Violations {
		out = append(out, f.Invariant)
	}
	slices.Sort(out)
	return slices.Compact(out)
}

func TestVerifyOfHealthyAndUnsafeLogs(t *testing.T) {
	dir := t.TempDir()
	h := lateWrite()
	writeLog(t, dir, h.Of("d"))
	writeLog(t, dir, h.Of("p"))
	v := verify(t, dir)
	if got := invariantsOf(v); !slices.Equal(got, []string{"I1", "I2"}) || v.OK {
		t.Errorf("violated %v, ok %v; want I1 and I2", got, v.OK)
	}
	if len(v.Logs) != 2 || !v.Logs[0].ChainOK || v.Logs[0].Node != "d" || v.Logs[0].FirstSeq != 1 || v.Logs[0].LastSeq != uint64(len(h.Of("d"))) {
		t.Errorf("logs: %+v", v.Logs)
	}
	healthy := verify(t, writeFile(t, begin().All))
	if !healthy.OK || len(healthy.Violations) != 0 {
		t.Errorf("healthy: %+v", healthy)
	}
	var b bytes.Buffer
	if err := healthy.Write(&b); err != nil || !strings.Contains(b.String(), "every invariant that these logs can show holds") {
		t.Errorf("have %q, %v", b.String(), err)
	}
}

func TestVerifyFindsAChangedExport(t *testing.T) {
	h := lateWrite()
	b, err := os.ReadFile(writeFile(t, h.Of("d")))
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "changed.jsonl")
	changed := strings.Replace(string(b), `"basis":"timeout"`, `"basis":"acks"`, 1)
	if err := os.WriteFile(path, []byte(changed), 0o600); err != nil {
		t.Fatal(err)
	}
	v := verify(t, path)
	if v.OK || v.Logs[0].ChainOK || !slices.Contains(invariantsOf(v), "I9") {
		t.Errorf("chain_ok %v, violations %v; want a broken chain", v.Logs[0].ChainOK, v.Violations)
	}
}

func TestVerifyFindsADamagedSegment(t *testing.T) {
	dir := t.TempDir()
	path := writeLog(t, dir, lateWrite().Of("d"))
	names, err := filepath.Glob(filepath.Join(path, "*.db"))
	if err != nil || len(names) != 1 {
		t.Fatal(names, err)
	}
	b, err := os.ReadFile(names[0])
	if err != nil {
		t.Fatal(err)
	}
	at := bytes.LastIndex(b, []byte("p/0"))
	b[at] ^= 1
	if err := os.WriteFile(names[0], b, 0o600); err != nil {
		t.Fatal(err)
	}
	v := verify(t, dir)
	if v.OK || v.Logs[0].ChainOK || v.Logs[0].Error == "" {
		t.Errorf("have %+v, want a broken chain", v.Logs[0])
	}
}

func TestVerifyComparesCopies(t *testing.T) {
	h := begin()
	h.At(10).Open(7, "d/0", pages, "p/0")
	var other []*events.Event
	for _, e := range h.Of("d") {
		other = append(other, proto.CloneOf(e))
	}
	other[2].GetPagesReserved().Aux++
	v := verify(t, writeFile(t, h.All), writeFile(t, other))
	if !slices.Contains(invariantsOf(v), "I10") {
		t.Errorf("violations %v, want I10", v.Violations)
	}
	v = verify(t, writeFile(t, h.All), writeFile(t, h.Of("d")[:3]))
	if !v.OK {
		t.Errorf("a copy that ends early is no violation: %v", v.Violations)
	}
	if last := v.Logs[len(v.Logs)-1]; last.Lag == 0 {
		t.Errorf("lag 0 of %+v", last)
	}
}

func TestDiffFindsTheFirstDifference(t *testing.T) {
	h := lateWrite()
	d := h.Of("d")
	changed := make([]*events.Event, len(d))
	for i, e := range d {
		changed[i] = proto.CloneOf(e)
	}
	changed[6].Rank = "p/9"
	changed[9].Rank = "p/9"
	cases := map[string]struct {
		right []*events.Event
		kind  string
		seq   uint64
		field string
	}{
		"equal":        {d, "", 0, ""},
		"starts later": {d[4:], "", 0, ""}, // retention
		"changed":      {changed, "differs", 7, "rank"},
		"ends early":   {d[:5], "missing_right", 6, ""},
		"lacks one":    {slices.Concat(d[:5], d[6:]), "missing_right", 6, ""},
	}
	for name, tc := range cases {
		res, err := replay.Diff(t.Context(), open(t, writeFile(t, d)), open(t, writeFile(t, tc.right)), "")
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		if res.Equal != (tc.kind == "") {
			t.Errorf("%s: equal %v", name, res.Equal)
		}
		if tc.kind == "" {
			continue
		}
		if got := res.Differences[0]; got.Kind != tc.kind || got.Seq != tc.seq || tc.field != "" && !slices.Equal(got.Fields, []string{tc.field}) {
			t.Errorf("%s: have %+v", name, got)
		}
	}
	if res, err := replay.Diff(t.Context(), open(t, writeFile(t, d)), open(t, writeFile(t, h.All)), ""); err != nil || !res.Equal || !slices.Equal(res.Nodes, []string{"d"}) {
		t.Errorf("one node's log against all of them: have %+v, %v", res, err)
	}
	var others []*events.Event
	for _, e := range h.All {
		if e.Node != "d" {
			others = append(others, e)
		}
	}
	if _, err := replay.Diff(t.Context(), open(t, writeFile(t, d)), open(t, writeFile(t, others)), ""); !errors.Is(err, replay.ErrBadSource) {
		t.Errorf("a node that the other side lacks: have %v", err)
	}
	if res, err := replay.Diff(t.Context(), open(t, writeFile(t, h.All)), open(t, writeFile(t, d)), "d"); err != nil || !res.Equal {
		t.Errorf("that node alone: have %+v, %v", res, err)
	}
}

func TestExportAndImportKeepEveryByte(t *testing.T) {
	h := lateWrite()
	h.Start("p", events.Role_ROLE_PREFILL, 64) // a second life
	h.Add("p", 0, 0, "", nil, &events.PeerSuspect{Peer: "d"})
	from := writeFile(t, h.All)
	dir := t.TempDir()
	n, err := replay.Import(t.Context(), from, dir)
	if err != nil || n != uint64(len(h.All)) {
		t.Fatalf("imported %d: %v", n, err)
	}
	if v := verify(t, dir); !v.Logs[0].ChainOK || !v.Logs[1].ChainOK {
		t.Errorf("imported logs: %+v %+v", v.Logs[0], v.Logs[1])
	}
	out := filepath.Join(t.TempDir(), "again.jsonl")
	if _, err := replay.Export(out, replay.Merge(t.Context(), open(t, dir))); err != nil {
		t.Fatal(err)
	}
	a := collect(t, replay.Merge(t.Context(), open(t, from)))
	b := collect(t, replay.Merge(t.Context(), open(t, out)))
	if jsonl(a) != jsonl(b) {
		t.Error("the events changed on the way")
	}
	if _, err := replay.Import(t.Context(), from, dir); !errors.Is(err, replay.ErrBadSource) {
		t.Errorf("import over a log: have %v", err)
	}
	part := writeFile(t, h.Of("d")[3:])
	if _, err := replay.Import(t.Context(), part, t.TempDir()); !errors.Is(err, replay.ErrBadSource) {
		t.Errorf("import of a part: have %v", err)
	}
	h.All[5].Room++ // a changed event does not get into a log
	if _, err := replay.Import(t.Context(), writeFile(t, h.All), t.TempDir()); !errors.Is(err, replay.ErrBadSource) {
		t.Errorf("import of a changed export: have %v", err)
	}
}
