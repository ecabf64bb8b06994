package node

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/pdlog/pdlog/node/enginepb"
	"github.com/pdlog/pdlog/projector"
	"github.com/pdlog/pdlog/rdma"
	"github.com/pdlog/pdlog/rdma/tcp"
)

// checkBed is the decode side of a data plane, and a writer that has written
// pages 1, 2 and 5 of room 7.
type checkBed struct {
	plane *receivePlane
	mem   *rankMemory
	told  chan projector.Command
}

func newCheckBed(t *testing.T, writerSums bool) *checkBed {
	t.Helper()
	const pageBytes = 4096
	path := filepath.Join(t.TempDir(), "kv")
	if err := os.WriteFile(path, make([]byte, 8*pageBytes), 0o600); err != nil {
		t.Fatal(err)
	}
	table := newMemoryTable(1)
	m, err := mapMemory(layout{path: path, pageBytes: pageBytes, pages: 8}, nil)
	if err != nil {
		t.Fatal(err)
	}
	table.put(0, m)
	b := &checkBed{mem: m, told: make(chan projector.Command, 64)}
	b.plane = newReceivePlane(table, func(c projector.Command) { b.told <- c })
	target, err := tcp.Provider{}.Open(t.Context(), rdma.Config{Self: "d0/1", Listen: "127.0.0.1:0", Checksums: true, OnNotif: b.plane.hear})
	if err != nil {
		t.Fatal(err)
	}
	b.plane.domain = target
	ends := make(chan rdma.Completion, 4)
	writer, err := tcp.Provider{}.Open(t.Context(), rdma.Config{Self: "p0/1", Checksums: writerSums, OnCompletion: func(c rdma.Completion) { ends <- c }})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		for _, d := range []rdma.Domain{writer, target} {
			if err := d.Close(); err != nil {
				t.Error(err)
			}
		}
		if err := table.close(); err != nil {
			t.Error(err)
		}
	})
	if err := b.plane.register(t.Context(), m); err != nil {
		t.Fatal(err)
	}
	keys, err := b.plane.grant(t.Context(), &projector.SendMetadata{
		Room: 7, RoomSeq: 3, Lease: 5, Rank: "p0/0", To: "d0/0", Pages: []uint32{1, 2, 5},
	}, "p0/1")
	if err != nil {
		t.Fatal(err)
	}
	ep, err := writer.Connect(t.Context(), target.Info())
	if err != nil {
		t.Fatal(err)
	}
	batch := rdma.Batch{Tag: 1, Key: keys[0].Key, Meta: 4}
	for _, p := range []uint64{1, 2, 5} {
		batch.Writes = append(batch.Writes, rdma.Write{Src: []byte(strings.Repeat("x", pageBytes)), RemoteOff: p * pageBytes})
	}
	if _, err := ep.PostBatch(batch); err != nil {
		t.Fatal(err)
	}
	if c := <-ends; c.Status != rdma.Completed {
		t.Fatalf("completion %+v", c)
	}
	if _, ok := (<-b.told).(projector.Landed); !ok {
		t.Fatal("the landing was not told")
	}
	return b
}

func (b *checkBed) check(t *testing.T) projector.PagesChecked {
	t.Helper()
	b.plane.check(projector.CheckPages{Room: 7, RoomSeq: 3, Pages: []uint32{1, 2, 5}, Ranks: []projector.RankID{"d0/0"}})
	c, ok := (<-b.told).(projector.PagesChecked)
	if !ok {
		t.Fatal("told something else")
	}
	return c
}

func TestCheckNamesThePagesThatChanged(t *testing.T) {
	b := newCheckBed(t, true)
	if d := cmp.Diff(projector.PagesChecked{RoomSeq: 3}, b.check(t)); d != "" {
		t.Errorf("nothing has changed: %s", d)
	}
	for _, p := range []int{2, 5} {
		b.mem.kv[p*4096+17] ^= 1
	}
	b.mem.kv[3*4096] ^= 1 // not of this room
	const detail = "bytes changed after they landed from p0/0"
	want := projector.PagesChecked{RoomSeq: 3, Bad: []projector.PageReport{
		{Room: 7, Page: 2, To: "d0/0", Detail: detail, PageLen: 4096}, {Room: 7, Page: 5, To: "d0/0", Detail: detail, PageLen: 4096},
	}}
	if d := cmp.Diff(want, b.check(t)); d != "" {
		t.Errorf("pages 2 and 5 have changed: %s", d)
	}
}

func TestCheckSaysWhatItCouldNotCheck(t *testing.T) {
	b := newCheckBed(t, false)
	if c := b.check(t); c.Skipped != "p0/0 sent pages without checksums" || len(c.Bad) > 0 {
		t.Errorf("told %+v", c)
	}
}

// TestWrongBytesOnArrivalFailTheRoom: what the provider finds as bytes land
// becomes a page's failure with its writer.
func TestWrongBytesOnArrivalFailTheRoom(t *testing.T) {
	b := newCheckBed(t, true)
	b.plane.hear(rdma.Notif{
		Kind: rdma.ChecksumFailed, Peer: "p0/1", Tag: 5, Meta: 4,
		Ranges: []rdma.Span{{Region: b.mem.kvRegion.ID(), Range: rdma.Range{Off: 2 * 4096, Len: 4096}}},
	})
	want := projector.PageReport{Room: 7, Page: 2, To: "d0/0", Detail: "chunk 4 of p0/0 landed with other bytes than were sent"}
	if d := cmp.Diff(projector.Command(want), <-b.told); d != "" {
		t.Error(d)
	}
}

// TestRoomSucceedsWithChecksumsOverTLS is the whole way between two nodes: both
// prove who they are, and every page is checked before the success.
func TestRoomSucceedsWithChecksumsOverTLS(t *testing.T) {
	ca := newTestCA(t)
	pc, dc := testConfig(t, "prefill", "p0"), testConfig(t, "decode", "d0")
	for _, c := range []*Config{&pc, &dc} {
		c.RDMA.Provider, c.RDMA.Checksums, c.RDMA.Conns = tcp.Name, true, 3
		c.RDMA.TLS.Cert, c.RDMA.TLS.Key = ca.issue(t, c.Node)
		c.RDMA.TLS.ClientCA = ca.file
	}
	q := startPair(t, pc, dc, 4096)
	q.run(7, []uint32{2, 3, 9, 1})
	if n := q.finish(7); n.Basis != "success" {
		t.Errorf("released with %v", n)
	}
	if n := q.p.await(enginepb.Notice_KIND_SOURCE_RELEASED, 7); n.Room != 7 {
		t.Errorf("notice %v", n)
	}
	evs, err := q.d.node.store.ReadFrom(q.d.node.store.First(), 10000)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range evs {
		if s := e.GetPageCheckSkipped(); s != nil {
			t.Errorf("a check was skipped: %s", s.Reason)
		}
	}
}

func TestTLSOfTheDataPlaneIsWholeOrNotThere(t *testing.T) {
	for _, c := range []struct {
		name string
		set  func(*RDMAConfig)
		want string
	}{
		{"no key", func(r *RDMAConfig) { r.TLS.Cert, r.TLS.ClientCA = "a", "b" }, "rdma.tls: want cert, key and client_ca"},
		{"shm", func(r *RDMAConfig) {
			r.Provider = "shm"
			r.TLS = TLSConfig{Cert: "a", Key: "b", ClientCA: "c"}
		}, "rdma.tls: belongs to the providers tcp and auto"},
	} {
		cfg := testConfig(t, "decode", "d0")
		c.set(&cfg.RDMA)
		if err := cfg.Validate(); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v", c.name, err)
		}
	}
}
