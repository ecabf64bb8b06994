package node

import (
	"bytes"
	"testing"
	"time"

	"connectrpc.com/connect"

	"github.com/pdlog/pdlog/backends"
	"github.com/pdlog/pdlog/node/enginepb"
)

// stranger sends frames to a node's control socket, as anybody can.
type stranger struct {
	t       *testing.T
	zmq     transport
	push    pusher
	dialect string
}

func newStranger(t *testing.T, address string) *stranger {
	t.Helper()
	z, err := newZMQ(1<<20, nil)
	if err != nil {
		t.Fatal(err)
	}
	p, err := z.Dial(address, toPrefill)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = p.Close(0)
		_ = z.Close()
	})
	return &stranger{t: t, zmq: z, push: p, dialect: "mori"}
}

func (s *stranger) send(m backends.Message) {
	s.t.Helper()
	d, err := backends.Lookup(s.dialect)
	if err != nil {
		s.t.Fatal(err)
	}
	f, err := d.Encode(m)
	if err != nil {
		s.t.Fatal(err)
	}
	for until := time.Now().Add(patience); ; {
		err = s.push.Send(f)
		if err == nil || time.Now().After(until) {
			break
		}
	}
	if err != nil {
		s.t.Fatal(err)
	}
}

// An aux row that comes as a message is copied into the row that a live room
// owns, and nowhere else; what does not fit changes nothing (F22, F28).
func TestAuxDataGoesOnlyWhereALiveRoomOwnsTheRow(t *testing.T) {
	pc, dc := testConfig(t, "prefill", "p0"), testConfig(t, "decode", "d0")
	pc.Dialect, dc.Dialect = "mori", "mori"
	q := startPair(t, pc, dc, 4096)
	room := q.open(91, 0, 1)
	row := int32(room.Aux)
	s := newStranger(t, q.d.node.addresses[0])
	good := bytes.Repeat([]byte{0xa5}, auxBytes)
	bad := bytes.Repeat([]byte{0xee}, auxBytes)
	for _, m := range []*backends.AuxData{
		{Room: 92, AuxIndex: row, Data: bad},
		{Room: 91, AuxIndex: row + 1, Data: bad},
		{Room: 91, AuxIndex: testAux, Data: bad},
		{Room: 91, AuxIndex: 1<<31 - 1, Data: bad},
		{Room: 91, AuxIndex: row, BufferIndex: 1, Data: bad},
		{Room: 91, AuxIndex: row, Data: append(bad, 0xee)},
	} {
		s.send(m)
	}
	s.send(&backends.AuxData{Room: 91, AuxIndex: row, Data: good})
	copied := q.d.awaitEvent("LocalCopyEnded", 91, 0)
	rows := q.d.mem[0].Bytes()[testPages*4096:]
	want := make([]byte, len(rows))
	copy(want[int(row)*auxBytes:], good)
	if !bytes.Equal(rows, want) {
		t.Fatal("a row holds what it should not")
	}
	if n := q.d.count("LocalCopyStarted"); n != 1 {
		t.Fatalf("%d copies, want 1\n%s", n, q.d.events())
	}

	if _, err := q.d.client.Abort(testContext(t), connect.NewRequest(&enginepb.AbortRequest{Room: 91})); err != nil {
		t.Fatal(err)
	}
	q.d.await(enginepb.Notice_KIND_RELEASED, 91) // failed by the abort alone, and no copy is open
	s.send(&backends.AuxData{Room: 91, AuxIndex: row, Data: bad})
	s.send(&backends.AuxData{Room: 93, AuxIndex: 40, Data: bad})
	q.open(93, 2)
	s.send(&backends.AuxData{Room: 93, AuxIndex: int32(q.auxRow(93)), Data: good[:1]})
	q.d.awaitEvent("LocalCopyEnded", 93, copied)
	want[int(q.auxRow(93))*auxBytes] = 0xa5
	if !bytes.Equal(rows, want) {
		t.Fatal("a row of an ended room was written")
	}
}

// auxRow is the row of an open room.
func (q *pair) auxRow(room uint64) uint32 {
	q.t.Helper()
	r, err := q.d.client.Room(testContext(q.t), connect.NewRequest(&enginepb.RoomViewRequest{Room: room}))
	if err != nil || len(r.Msg.Rooms) != 1 {
		q.t.Fatalf("room %d: %v, %v", room, r, err)
	}
	return r.Msg.Rooms[0].Aux
}

// count is how many events of a type the durable log has.
func (s *side) count(typ string) int {
	s.t.Helper()
	evs, err := s.node.store.ReadFrom(s.node.store.First(), 10000)
	if err != nil {
		s.t.Fatal(err)
	}
	n := 0
	for _, e := range evs {
		if e.TypeName() == typ {
			n++
		}
	}
	return n
}
