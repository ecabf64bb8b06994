package node

import (
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"sync/atomic"
	"testing"

	"connectrpc.com/connect"

	"github.com/pdlog/pdlog/backends"
	"github.com/pdlog/pdlog/node/enginepb"
)

// peerView is what a side says of its only peer.
func (s *side) peerView() *enginepb.PeerView {
	s.t.Helper()
	r, err := s.client.Peers(testContext(s.t), connect.NewRequest(&enginepb.PeersRequest{}))
	if err != nil {
		s.t.Fatal(err)
	}
	if len(r.Msg.Peers) != 1 {
		s.t.Fatalf("have %d peers, want 1: %v", len(r.Msg.Peers), r.Msg.Peers)
	}
	return r.Msg.Peers[0]
}

func (s *side) counters() map[string]uint64 {
	s.t.Helper()
	r, err := s.client.Status(testContext(s.t), connect.NewRequest(&enginepb.StatusRequest{}))
	if err != nil {
		s.t.Fatal(err)
	}
	return r.Msg.Counters
}

// With the extension off on either side both are SGLang ranks to each other: an
// abort ends by the plain frames alone.
func TestExtensionOffLeavesThePlainProtocol(t *testing.T) {
	for _, c := range []struct {
		name            string
		prefill, decode bool
	}{{"prefill", false, true}, {"decode", true, false}} {
		t.Run(c.name, func(t *testing.T) {
			pc, dc := testConfig(t, "prefill", "p0"), testConfig(t, "decode", "d0")
			pc.Extension, dc.Extension = c.prefill, c.decode
			q := startPair(t, pc, dc, 4096)
			v := q.d.peerView()
			if v.Pdlog || v.Weak || v.AckForm != "v2" || v.Node != q.p.node.Bootstrap() || v.Bootstrap != v.Node {
				t.Fatalf("the prefill is %v", v)
			}
			q.prefill = v.Node
			q.open(71, 0, 1)
			q.p.await(enginepb.Notice_KIND_READY, 71)
			if e := q.p.peerView(); e.Pdlog || e.Boot != 0 {
				t.Fatalf("the decode is %v", e)
			}
			if _, err := q.d.client.Abort(testContext(t), connect.NewRequest(&enginepb.AbortRequest{Room: 71})); err != nil {
				t.Fatal(err)
			}
			if n := q.d.await(enginepb.Notice_KIND_RELEASED, 71); n.Basis != "acks" || n.Unsafe {
				t.Fatalf("released with %v", n)
			}
			if n := q.d.counters()["revocations_failed"]; n != 0 {
				t.Fatalf("%d revocations of keys that were never granted have failed", n)
			}
			if k := q.d.counters(); k["acks_v3"] == 0 || k["acks_v1"] != 0 || k["acks_v2"] != 0 || k["peers_weak"] != 0 {
				t.Fatalf("counters %v", k)
			}
		})
	}
}

// A prefill that answers with receipts alone proves nothing: by policy it is
// refused, or served and reported (F44, F45).
func TestWeakPeersAreReportedAndHandledByPolicy(t *testing.T) {
	for _, policy := range []string{"refuse", "allow"} {
		t.Run(policy, func(t *testing.T) {
			pc, dc := testConfig(t, "prefill", "p0"), testConfig(t, "decode", "d0")
			pc.Extension = false
			dc.SGLangAckForm, dc.WeakPeers = "v1", policy
			q := startPair(t, pc, dc, 4096)
			v := q.d.peerView()
			if !v.Weak || v.AckForm != "v1" || q.d.counters()["peers_weak"] != 1 {
				t.Fatalf("the prefill is %v, counters %v", v, q.d.counters())
			}
			_, err := q.d.client.OpenReceive(testContext(t), connect.NewRequest(&enginepb.OpenReceiveRequest{Room: 81, Count: 2, Prefill: v.Node}))
			want := map[string]string{"refuse": "weak_peer", "allow": ""}[policy]
			if have := refusalWord(err); have != want || (err == nil) != (want == "") {
				t.Fatalf("refused with %q (%v), want %q", have, err, want)
			}
		})
	}
}

func TestKeysThatDoNotGoTogether(t *testing.T) {
	for _, c := range []struct {
		key  string
		bend func(*Config)
	}{
		{"decode_allocation_policy", func(c *Config) { c.DecodeAllocationPolicy = "prefill_complete" }},
		{"decode_allocation_policy", func(c *Config) { c.DecodeAllocationPolicy = "late" }},
		{"topology_keys", func(c *Config) { c.TopologyKeys = "all" }},
		{"sglang_ack_form", func(c *Config) { c.SGLangAckForm = "v3" }},
		{"ranks", func(c *Config) { c.Ranks = 0 }},
	} {
		cfg := testConfig(t, "prefill", "p0")
		if err := cfg.Validate(); err != nil {
			t.Fatal(err)
		}
		c.bend(&cfg)
		err := cfg.Validate()
		if e, ok := err.(*ConfigError); !ok || e.Key != c.key { //nolint:errorlint // Validate gives just that
			t.Errorf("have %v, want the key %s", err, c.key)
		}
	}
}

// How a prefill that is not pdlog answers is seen in its ACKs, recorded, and
// handled by policy: a receipt makes it weak, a drain ACK clears it.
func TestFormOfAnAckIsObserved(t *testing.T) {
	pc, dc := testConfig(t, "prefill", "p0"), testConfig(t, "decode", "d0")
	pc.Extension = false
	dc.Heartbeat, dc.AckTimeout = patience, patience // the prefill is gone below, and only its ACKs are to be heard of
	q := startPair(t, pc, dc, 4096)
	q.prefill = q.d.peerView().Node
	q.open(101, 0, 1)
	q.p.await(enginepb.Notice_KIND_READY, 101)
	s := newStranger(t, q.d.node.addresses[0])
	s.send(&backends.AbortAck{Room: 101}) // nobody has asked
	q.p.close()
	if _, err := q.d.client.Abort(testContext(t), connect.NewRequest(&enginepb.AbortRequest{Room: 101})); err != nil {
		t.Fatal(err)
	}
	q.d.awaitEvent("AbortArmed", 101, 0)
	if n := q.d.count("PeerCapabilities"); n != 1 {
		t.Fatalf("capabilities are recorded %d times before any answer", n)
	}
	last := q.d.node.store.Durable()
	s.send(&backends.AbortAck{Room: 101})
	last = q.d.awaitEvent("PeerCapabilities", 0, last)
	if v := q.d.peerView(); !v.Weak || v.AckForm != "v1" {
		t.Fatalf("after a receipt the prefill is %v", v)
	}
	_, err := q.d.client.OpenReceive(testContext(t), connect.NewRequest(&enginepb.OpenReceiveRequest{Room: 102, Count: 1, Prefill: q.prefill}))
	if word := refusalWord(err); word != "weak_peer" {
		t.Fatalf("refused with %q (%v)", word, err)
	}
	s.send(&backends.AbortAck{Room: 101, PrefillRank: backends.Some(int32(0))})
	q.d.awaitEvent("PeerCapabilities", 0, last)
	if v := q.d.peerView(); v.Weak || v.AckForm != "v2" {
		t.Fatalf("after a drain ACK of the older form the prefill is %v", v)
	}
	if n := q.d.await(enginepb.Notice_KIND_RELEASED, 101); n.Basis != "acks" {
		t.Fatalf("released with %v", n)
	}
}

// A prefill that is not pdlog and comes back at the same bootstrap address with
// another port is found when it is heard again, and is registered with; what was
// published to the old process is held.
func TestPlainPrefillComesBackAtAnotherPort(t *testing.T) {
	pc, dc := testConfig(t, "prefill", "p0"), testConfig(t, "decode", "d0")
	pc.Extension = false
	q := startPair(t, pc, dc, 4096)
	q.prefill = q.d.peerView().Node
	q.open(111, 0, 1)
	q.p.await(enginepb.Notice_KIND_READY, 111)
	old := q.d.peerView().Ranks[0].Address
	q.p.close()
	last := q.d.awaitEvent("PeerLost", 0, 0)
	hold, err := (&net.ListenConfig{}).Listen(testContext(t), "tcp", old) // the port goes to somebody else
	if err != nil {
		t.Fatal(err)
	}
	defer hold.Close() //nolint:errcheck // a test's listener
	q.p.start(q.pc)
	q.d.awaitEvent("PeerRegistered", 0, last)
	if now := q.d.peerView().Ranks[0].Address; now == old {
		t.Fatalf("the prefill is still at %s", now)
	}
	q.open(112, 2, 3)
	q.p.await(enginepb.Notice_KIND_READY, 112)
	q.d.awaitEvent("Quarantined", 111, 0)
}

// A prefill with other pages is refused with its reason, also when its ranks
// were never asked for.
func TestPlainPrefillWithOtherPagesIsIncompatible(t *testing.T) {
	pc, dc := testConfig(t, "prefill", "p0"), testConfig(t, "decode", "d0")
	pc.Extension, pc.PageSize = false, dc.PageSize/2
	p := startSide(t, pc, 4096)
	dc.Peers = []string{p.node.Bootstrap()}
	d := startSide(t, dc, 4096)
	d.awaitEvent("PeerCapabilities", 0, 0)
	_, err := d.client.OpenReceive(testContext(t), connect.NewRequest(&enginepb.OpenReceiveRequest{Room: 121, Count: 1, Prefill: p.node.Bootstrap()}))
	if word := refusalWord(err); word != "incompatible" {
		t.Fatalf("refused with %q (%v)", word, err)
	}
}

// deaf stands before a bootstrap server and closes the connection of every
// question who is there, for as long as it is told to.
func deaf(t *testing.T, bootstrap string) (addr string, lose, asked *atomic.Int64) {
	t.Helper()
	lose, asked = new(atomic.Int64), new(atomic.Int64)
	to := httputil.NewSingleHostReverseProxy(&url.URL{Scheme: "http", Host: bootstrap})
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/pdlog/v1/node" {
			asked.Add(1)
			if lose.Add(-1) >= 0 {
				panic(http.ErrAbortHandler)
			}
		}
		to.ServeHTTP(w, r)
	}))
	t.Cleanup(s.Close)
	return s.Listener.Addr().String(), lose, asked
}

// A prefill that has just come up, or whose answer was lost, is not taken for an
// SGLang rank for a minute: the question is asked again, and a node that was
// found to be pdlog stays so until something else answers.
func TestAPeerThatDidNotAnswerIsAskedAgain(t *testing.T) {
	for _, lost := range []int64{1, 5} {
		p := startSide(t, testConfig(t, "prefill", "p0"), 4096)
		addr, lose, asked := deaf(t, p.node.Bootstrap())
		lose.Store(lost)
		dc := testConfig(t, "decode", "d0")
		dc.Peers = []string{addr}
		d := startSide(t, dc, 4096)
		d.eventually("the prefill is known as what it is", func() bool {
			r, err := d.client.Peers(testContext(t), connect.NewRequest(&enginepb.PeersRequest{}))
			return err == nil && len(r.Msg.Peers) > 0 && r.Msg.Peers[len(r.Msg.Peers)-1].Node == "p0"
		})
		if lost > 1 {
			continue
		}
		if v := d.peerView(); !v.Pdlog || v.Weak { // and was never anything else
			t.Fatalf("the prefill is %v", v)
		}
		lose.Store(1 << 30)
		at := asked.Load()
		d.eventually("it is asked a few times more", func() bool { return asked.Load() > at+8 })
		if v := d.peerView(); !v.Pdlog || v.Node != "p0" {
			t.Fatalf("a prefill that does not answer became %v", v)
		}
	}
}
