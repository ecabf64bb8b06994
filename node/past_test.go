package node

import (
	"net"
	"slices"
	"strings"
	"testing"

	"connectrpc.com/connect"

	"github.com/pdlog/pdlog/events"
	"github.com/pdlog/pdlog/node/enginepb"
)

// nobody is an address where nothing listens.
func nobody(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().String()
}

func (s *side) starts() (out []*events.NodeStarted) {
	s.t.Helper()
	evs, err := s.node.store.ReadFrom(s.node.store.First(), 10000)
	if err != nil {
		s.t.Fatal(err)
	}
	for _, e := range evs {
		if p := e.GetNodeStarted(); p != nil {
			out = append(out, p)
		}
	}
	return out
}

// An empty log whose mirror cannot be asked may be that of a wiped node: its peers
// are asked before a page is offered (events.md, unknown past). A log that is not
// empty needs no mirror to be believed.
func TestEmptyLogWithoutItsMirrorIsSettledByThePeers(t *testing.T) {
	dc := testConfig(t, "decode", "d0")
	dc.NATS.URL = "nats://" + nobody(t)
	q := startPair(t, testConfig(t, "prefill", "p0"), dc, 4096)
	q.d.awaitEvent("PastSettled", 0, 0)
	if s := q.d.starts(); len(s) != 1 || !s[0].UnknownPast || !slices.Equal(s[0].AskPeers, []string{"p0"}) {
		t.Errorf("the first life began as %v, want an unknown past and p0 to be asked", s)
	}
	q.run(90, []uint32{0, 1})
	q.finish(90)
	q.d.close()
	q.d.start(q.dc)
	if s := q.d.starts(); len(s) != 2 || s[1].UnknownPast || len(s[1].AskPeers) > 0 {
		t.Errorf("the second life began as %v, want a known past", s)
	}
}

// As long as no peer answers, nothing is offered.
func TestEmptyLogWithoutMirrorAndPeersOffersNothing(t *testing.T) {
	dc := testConfig(t, "decode", "d0")
	dc.NATS.URL, dc.Peers = "nats://"+nobody(t), []string{nobody(t)}
	d := startSide(t, dc, 4096)
	_, err := d.client.OpenReceive(testContext(t), connect.NewRequest(&enginepb.OpenReceiveRequest{Room: 91, Pages: []uint32{1}, Prefill: "p0"}))
	if err == nil || !strings.Contains(err.Error(), "not_ready") {
		t.Errorf("a room is opened: %v", err)
	}
	s, err := d.client.Status(testContext(t), connect.NewRequest(&enginepb.StatusRequest{}))
	if err != nil {
		t.Fatal(err)
	}
	if s.Msg.Ready || s.Msg.PagesFree != 0 {
		t.Errorf("ready %v, %d pages free, want none", s.Msg.Ready, s.Msg.PagesFree)
	}
}
