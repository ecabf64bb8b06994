package interop

import (
	"fmt"
	"slices"
	"testing"
)

var (
	dialects = []string{"mooncake", "nixl", "mori"}
	versions = []string{"v1", "v2", "v3"}
)

// tellDecode plays stories of a Python decode against a pdnode prefill.
func tellDecode(t *testing.T, dialect, version string, stories []string, args ...string) *pdnodeProcess {
	t.Helper()
	python(t)
	n := startNode(t, "prefill", dialect, "--bootstrap", "127.0.0.1:0", "--rdma.engine-writes")
	p, _ := startPeer(t, slices.Concat([]string{"decode"}, stories, []string{
		"--dialect", dialect, "--version", version, "--socket", n.socket(), "--bootstrap", n.status().Bootstrap,
	}, args)...)
	p.wait()
	return n
}

// A Python decode of every dialect and version against a pdnode prefill.
func TestPythonDecode(t *testing.T) {
	for _, dialect := range dialects {
		for _, version := range versions {
			t.Run(dialect+"/"+version, func(t *testing.T) {
				t.Parallel()
				tellDecode(t, dialect, version, []string{
					"transfer", "two_decode_ranks", "dummy_and_prefix", "abort_waits_for_the_drain", "forms_of_abort", "lost_ack", "strangers",
					"prefill_abort_is_told", "comes_back", "http",
				}).verify()
			})
		}
	}
}

// Every source page of a thousand aborted rooms comes free, none before its
// write has ended, and the log holds together.
func TestPythonDecodeAbortsAThousandRooms(t *testing.T) {
	t.Parallel()
	const rooms = 1000
	n := tellDecode(t, "mooncake", "v3", []string{"many_rooms"}, "--amount", fmt.Sprint(rooms))
	n.verify()
	evs := n.events()
	for _, typ := range []string{"AckSent", "Drained", "SourceReleased"} {
		if have := count(evs, func(e event) bool { return e.Type == typ }); have != rooms {
			t.Errorf("%d %s for %d rooms", have, typ, rooms)
		}
	}
}
