package sim

import (
	"fmt"
	"strings"

	"github.com/pdlog/pdlog/projector"
)

// digest is a node's protocol state as text. What belongs to one life only
// (answered heartbeats, counters of repeats) is left out.
func digest(m *projector.Machine) string {
	var b strings.Builder
	st := m.State()
	fmt.Fprintf(&b, "seq=%d gen=%d inc=%d unsettled=%v past=%v pages=%v", st.Seq, st.LastGen, st.Incarnation, sorted(st.Unsettled), st.UnknownPast, m.PageCounts())
	for _, k := range sorted(st.Rooms) {
		r := st.Rooms[k]
		fmt.Fprintf(&b, "\nroom %d/%d out=%d gen=%d q=%v f=%v c=%v", r.Room, r.Seq, r.Outcome, r.Gen, r.Quarantined, r.Finished, r.Covered)
		for _, p := range r.Pairs {
			fmt.Fprintf(&b, " %s>%s:%d,%d,%d,%v,%v", p.Rank, p.To, p.Publish, p.Evidence, p.Lease, p.Succeeded, p.Fencing)
		}
	}
	for _, k := range sorted(st.PRooms) {
		r := st.PRooms[k]
		fmt.Fprintf(&b, "\nproom %d/%d out=%d c=%v s=%v q=%d t=%v", r.Room, r.Seq, r.Outcome, r.Cleared, r.SourceFree, len(r.Queue), sorted(r.Tokens))
		for _, t := range r.Targets {
			fmt.Fprintf(&b, " %s>%s:%v,%v", t.Rank, t.To, t.Answered, t.Held)
		}
	}
	for _, k := range sorted(st.Receipts) {
		fmt.Fprintf(&b, "\nreceipts %d: %d", k, len(st.Receipts[k]))
	}
	for _, k := range sorted(st.Watermark) {
		fmt.Fprintf(&b, "\nwatermark %s %d", k, st.Watermark[k])
	}
	return b.String()
}
