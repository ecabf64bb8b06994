package interop

import (
	"fmt"
	"slices"
	"testing"
)

// tellPrefill plays stories of a Python prefill against a pdnode decode.
func tellPrefill(t *testing.T, dialect, version string, ranks int, flags, stories []string, args ...string) *pdnodeProcess {
	t.Helper()
	python(t)
	p, told := startPeer(t, slices.Concat([]string{"prefill"}, stories, []string{
		"--dialect", dialect, "--version", version, "--ranks", fmt.Sprint(ranks),
	}, args)...)
	var at struct{ Bootstrap string }
	p.line(&at)
	n := startNode(t, "decode", dialect, append([]string{"--peers", at.Bootstrap, "--pages", "64", "--aux-rows", "64"}, flags...)...)
	told(n.socket())
	p.wait()
	return n
}

// A Python prefill of every dialect, of the two versions that prove a drain,
// against a pdnode decode.
func TestPythonPrefill(t *testing.T) {
	for _, dialect := range dialects {
		for _, version := range versions[1:] {
			t.Run(dialect+"/"+version, func(t *testing.T) {
				t.Parallel()
				tellPrefill(t, dialect, version, 2, nil, []string{
					"topology_of_another_version", "transfer", "abort_is_held_until_each_rank_has_drained", "failure_is_held_too",
					"lost_abort_and_lost_ack", "forged_acks", "one_missed_heartbeat_is_not_the_end", "old_ack_and_reuse",
					"comes_back_as_another_process",
				}).verify()
			})
		}
	}
}

// A prefill with other pages is found and refused.
func TestPythonPrefillThatDoesNotFit(t *testing.T) {
	t.Parallel()
	tellPrefill(t, "mooncake", "v3", 1, nil, []string{"other_pages_are_refused"}).verify()
}

// A prefill that answers with receipts is served or refused by policy.
func TestPythonPrefillThatIsWeak(t *testing.T) {
	for _, dialect := range dialects {
		for story, policy := range map[string]string{"receipts_prove_nothing": "allow", "weak_peer_is_refused": "refuse"} {
			t.Run(story+"/"+dialect, func(t *testing.T) {
				t.Parallel()
				tellPrefill(t, dialect, "v1", 1, []string{"--sglang-ack-form", "v1", "--weak-peers", policy}, []string{story}).verify()
			})
		}
	}
}

// Every page of a thousand aborted rooms comes free, none before its ACK, and
// the log holds together.
func TestPythonPrefillAThousandRoomsAborted(t *testing.T) {
	t.Parallel()
	const rooms = 1000
	n := tellPrefill(t, "mooncake", "v3", 1, nil, []string{"many_rooms"}, "--amount", fmt.Sprint(rooms))
	n.verify()
	evs := n.events()
	if have := count(evs, func(e event) bool { return e.Type == "Released" && (e.Basis == "acks" || e.Basis == "never_published") }); have != rooms {
		t.Errorf("%d rooms are released by acks or unpublished, want %d", have, rooms)
	}
}
