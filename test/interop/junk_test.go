package interop

import (
	"fmt"
	"os"
	"testing"
)

// allForms: every story in every dialect and version, and longer floods.
func allForms() bool { return os.Getenv("PDLOG_INTEROP") != "" }

// Junk frames as fast as a peer can send them, on the control port of both sides
// and on the bootstrap port: rooms are served meanwhile, memory does not grow with
// what came, and the log tells it in few events (F25).
func TestJunkAtLineRate(t *testing.T) {
	seconds := 10
	if allForms() {
		seconds = 60
	}
	for i, side := range []string{"decode", "prefill"} {
		which := dialects
		if !allForms() {
			which = dialects[2*i : 2*i+1] // mooncake at prefill, mori at decode
		}
		for _, dialect := range which {
			t.Run(side+"/"+dialect, func(t *testing.T) {
				t.Parallel()
				flood(t, side, dialect, seconds)
			})
		}
	}
}

// inQueues bounds the messages that the two senders' and the receiver's queues
// hold when the flood ends, and those that the log's next event would have told.
const inQueues = 50_000

func flood(t *testing.T, side, dialect string, seconds int) {
	python(t)
	args := []string{side, "flood", "--dialect", dialect, "--amount", fmt.Sprint(seconds)}
	var n *pdnodeProcess
	var p *peer
	if side == "decode" {
		n = startNode(t, "prefill", dialect, "--bootstrap", "127.0.0.1:0", "--rdma.engine-writes")
		p, _ = startPeer(t, append(args, "--socket", n.socket(), "--bootstrap", n.status().Bootstrap)...)
	} else {
		var told func(string)
		p, told = startPeer(t, args...)
		var at struct{ Bootstrap string }
		p.line(&at)
		n = startNode(t, "decode", dialect, "--peers", at.Bootstrap, "--pages", "64", "--aux-rows", "64")
		told(n.socket())
	}
	var did struct{ Junk, Raw, Rooms int }
	p.line(&did)
	p.wait()
	peak := n.peakBytes()
	n.verify()
	rejected, told, kinds := uint64(0), 0, map[string]bool{}
	for _, e := range n.events() {
		if e.Type == "MessageRejected" {
			rejected += e.Count
			told++
			kinds[e.Kind+" "+e.Reason] = true
		}
	}
	t.Logf("%d junk messages and %d raw connections in %d s; %d rooms served; %d rejections in %d events of %d kinds; peak %d MiB",
		did.Junk, did.Raw, seconds, did.Rooms, rejected, told, len(kinds), peak>>20)
	if did.Rooms < 3 {
		t.Errorf("%d rooms were served in %d s of junk", did.Rooms, seconds)
	}
	if did.Junk < 1000 || rejected < 500 || rejected+inQueues < uint64(did.Junk) {
		t.Errorf("%d of %d junk messages are counted as rejected", rejected, did.Junk)
	}
	if most := (seconds + 30) * (len(kinds) + 1); told > most {
		t.Errorf("%d events for %d kinds of junk in %d s, want at most one of each kind a second", told, len(kinds), seconds)
	}
	if peak > 512<<20 {
		t.Errorf("the node took %d MiB", peak>>20)
	}
}
