package node

import (
	"context"
	"net"
	"slices"
	"strings"
	"testing"

	"connectrpc.com/connect"

	"github.com/pdlog/pdlog/backends/bootstrap"
	"github.com/pdlog/pdlog/node/enginepb"
	"github.com/pdlog/pdlog/projector"
)

// freeAddress is a loopback address that nobody listens on now.
func freeAddress(t *testing.T) string {
	t.Helper()
	ln, err := (&net.ListenConfig{}).Listen(testContext(t), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = ln.Close() }()
	return ln.Addr().String()
}

func (s *side) notReady() string {
	s.t.Helper()
	r, err := s.client.Status(testContext(s.t), connect.NewRequest(&enginepb.StatusRequest{}))
	if err != nil {
		s.t.Fatal(err)
	}
	return r.Msg.NotReady
}

// awaitReady asks until the node says that it is ready, or why not, with want
// in it.
func (s *side) awaitReady(want string) {
	s.t.Helper()
	ctx := testContext(s.t)
	for {
		have := s.notReady()
		if want == "" && have == "" || want != "" && strings.Contains(have, want) {
			return
		}
		if !s.node.pause(pollEvery) || ctx.Err() != nil {
			s.t.Fatalf("not ready: %q, want %q", have, want)
		}
	}
}

// instance is a prefill instance over two nodes of one rank each, which
// register at each other, and a decode node that knows both.
func startInstance(t *testing.T, place func(i int, c *Config), decodeRanks, page int) (p [2]*side, d *side) {
	t.Helper()
	at := [2]string{freeAddress(t), freeAddress(t)}
	for i := range p {
		c := testConfig(t, "prefill", []string{"p0", "p1"}[i])
		c.Bootstrap, c.RegisterAt = at[i], []string{at[1-i]}
		place(i, &c)
		p[i] = startSide(t, c, page)
		if i == 0 {
			p[0].awaitReady("1 attempts")
		}
	}
	for _, s := range p {
		s.awaitReady("")
	}
	dc := testConfig(t, "decode", "d0")
	dc.Peers, dc.Ranks = at[:], decodeRanks
	d = startSide(t, dc, 2*page/decodeRanks)
	for _, peer := range []string{"p0", "p1"} {
		d.awaitPeer(peer)
	}
	return p, d
}

// awaitPeer waits until a pdlog peer is known with all of its ranks, and no
// rank is taken for a stranger's.
func (s *side) awaitPeer(name string) {
	s.t.Helper()
	ctx := testContext(s.t)
	for {
		p, ok := s.node.peers.find(name)
		if ok && p.seen.Node == name && p.others == nil {
			return
		}
		if !s.node.pause(pollEvery) || ctx.Err() != nil {
			s.t.Fatalf("%s is not known: %+v", name, p)
		}
	}
}

// Two hosts of one instance, split by TP or by pipeline stage: each registers
// at the other, decode is served by both, and each writes its own part of every
// page.
func TestInstanceOverTwoNodes(t *testing.T) {
	for _, c := range []struct {
		name  string
		place func(i int, c *Config)
	}{
		{"tp", func(i int, c *Config) { c.Topology.TPSize, c.Topology.TPRank = 2, i }},
		{"pp", func(i int, c *Config) { c.Topology.PPSize, c.Topology.PPRank = 2, i }},
	} {
		t.Run(c.name, func(t *testing.T) {
			const room, page = 7, 4096
			p, d := startInstance(t, c.place, 1, page)
			pages := []uint32{2, 3, 9}
			open, err := d.client.OpenReceive(testContext(t), connect.NewRequest(&enginepb.OpenReceiveRequest{Room: room, Pages: pages, Prefill: "p0"}))
			if err != nil {
				t.Fatal(err)
			}
			for rank, s := range p {
				s.await(enginepb.Notice_KIND_READY, room)
				sources := []uint32{4, 5, 7}
				for i, src := range sources {
					fill(s.bytesOf(0, src), room, rank, i)
				}
				_, err := s.client.SendChunk(testContext(t), connect.NewRequest(&enginepb.SendChunkRequest{Room: room, Count: 3, SourcePages: sources, Last: true}))
				if err != nil {
					t.Fatal(err)
				}
			}
			d.await(enginepb.Notice_KIND_SUCCEEDED, room)
			for i, pg := range pages {
				for at, have := range d.bytesOf(0, pg) {
					if want := patternByte(room, at/page, i, at%page); have != want {
						t.Fatalf("page %d, byte %d: have %d, want %d", pg, at, have, want)
					}
				}
			}
			if _, err := d.client.Finish(testContext(t), connect.NewRequest(&enginepb.RoomRequest{Room: room})); err != nil {
				t.Fatal(err)
			}
			if n := d.await(enginepb.Notice_KIND_RELEASED, room); n.Basis != "success" || n.Unsafe {
				t.Fatalf("released with %v, room %d", n, open.Msg.RoomSeq)
			}
		})
	}
}

// A room goes to the DP group that its number says, or that the prefill has
// said; another group does not take it.
func TestRoomGoesToItsDPGroup(t *testing.T) {
	for _, method := range []string{bootstrap.FollowBootstrapRoom, "round_robin"} {
		t.Run(method, func(t *testing.T) {
			p, d := startInstance(t, func(i int, c *Config) {
				c.Topology.DPSize, c.Topology.DPRank = 2, i
				c.LoadBalanceMethod = method
			}, 1, 2048)
			const room = 7 // 7 mod 2 = 1
			group := 1
			if method != bootstrap.FollowBootstrapRoom {
				group = 0
			}
			send := func(i int) error {
				_, err := p[i].client.OpenSend(testContext(t), connect.NewRequest(&enginepb.OpenSendRequest{Room: room}))
				return err
			}
			if err := send(group); err != nil {
				t.Fatal(err)
			}
			if method == bootstrap.FollowBootstrapRoom {
				if err := send(0); connect.CodeOf(err) != connect.CodeInvalidArgument {
					t.Fatalf("the other group takes the room: %v", err)
				}
			}
			if _, err := d.client.OpenReceive(testContext(t), connect.NewRequest(&enginepb.OpenReceiveRequest{Room: room, Count: 1, Prefill: "p1"})); err != nil {
				t.Fatal(err)
			}
			p[group].await(enginepb.Notice_KIND_READY, room)
		})
	}
}

// A bootstrap server that is not there yet, that comes and that forgets: the
// node says that it is not ready, and registers until it is (F34).
func TestRegistersAtAForeignServerUntilItHasIt(t *testing.T) {
	at := freeAddress(t)
	c := testConfig(t, "prefill", "p0")
	c.RegisterAt = []string{at}
	s := startSide(t, c, 4096)
	s.awaitReady("rank 0 at " + at)
	serve := func() (*bootstrap.Server, func()) {
		b, err := bootstrap.New(bootstrap.Config{Node: "other", Boot: 1, Incarnation: 1, LogSince: func() uint64 { return 1 }, LogID: make([]byte, 16)})
		if err != nil {
			t.Fatal(err)
		}
		ln, err := (&net.ListenConfig{}).Listen(testContext(t), "tcp", at)
		if err != nil {
			t.Fatal(err)
		}
		h := b.HTTPServer()
		done := make(chan struct{})
		go func() {
			defer close(done)
			_ = h.Serve(ln)
		}()
		return b, func() {
			_ = h.Shutdown(context.WithoutCancel(testContext(t)))
			_ = h.Close()
			<-done
		}
	}
	for life := range 2 {
		b, stop := serve()
		s.awaitReady("")
		if st := b.Stats(); !st.Ready || st.Ranks != 1 || st.Expected != 1 {
			t.Fatalf("life %d: %+v", life, st)
		}
		stop()
		s.awaitReady("rank 0 at " + at)
	}
}

// A rank that was taken for an SGLang rank, at a server where its pdlog node had
// not been known, hears no plain registration behind the one that names us: it
// would know us by our address alone, and take no metadata from us.
func TestAPdlogRankHearsNoPlainRegistrationAfterOurs(t *testing.T) {
	const rank, elsewhere = "127.0.0.1:7001", "127.0.0.1:7002"
	for range 50 { // the order of a map
		c := DefaultConfig()
		tab := newPeerTable(&c, nil, nil, func(projector.Command) {})
		attached := false
		tab.memory = func() bool { return attached }
		var heard []bool
		tab.greet = func(address string, ext bool) {
			if address == rank {
				heard = append(heard, ext)
			}
		}
		asked := make(chan struct{}, 1)
		tab.pokes["p0:1"] = asked
		again := func() {
			select {
			case <-asked:
			default:
				t.Fatal("the server that knows the rank as nobody's is not asked again")
			}
		}
		p0 := func() *prefill { // asked while p1 was not known
			return &prefill{
				bootstrap: "p0:1", ext: map[string]bool{elsewhere: true}, told: map[string]bool{},
				seen:   projector.PeerDiscovered{Node: "p0", PDLog: true, Boot: 1, Ranks: []projector.PeerRank{{Rank: "p0/0", Address: elsewhere}}},
				others: &projector.PeerDiscovered{Node: "p0:1", Ranks: []projector.PeerRank{{Rank: "p0:1/1", Address: rank}}},
			}
		}
		p1 := &prefill{
			bootstrap: "p1:1", ext: map[string]bool{rank: true}, told: map[string]bool{},
			seen: projector.PeerDiscovered{Node: "p1", PDLog: true, Boot: 2, Ranks: []projector.PeerRank{{Rank: "p1/0", Address: rank}}},
		}
		tab.adopt(p0())
		tab.adopt(p1)
		again()
		attached = true
		tab.memoryChanged()
		tab.memoryChanged()
		tab.adopt(p0()) // an answer that was on its way
		again()
		if want := []bool{true, true}; !slices.Equal(heard, want) {
			t.Fatalf("the rank hears registrations %v (true: one that names us), want %v", heard, want)
		}
	}
}
