package whatif

import (
	"fmt"
	"io"
	"text/tabwriter"
	"time"

	"github.com/pdlog/pdlog/events"
)

// Plan is the policy to try.
type Plan struct {
	Policy     events.Policy
	AckTimeout time.Duration // 0 = as recorded
}

// Fate is how a room's pages came free in one of the two runs.
type Fate struct {
	Basis  *string `json:"basis"` // nil: still held where the log ends
	HeldMS int64   `json:"held_ms"`
}

// RoomFate compares the two runs for one room incarnation that had been aborted
// or failed after it was published.
type RoomFate struct {
	Node        string `json:"node"`
	Room        uint64 `json:"room"`
	RoomSeq     uint64 `json:"room_seq"` // on Node, in the recorded run
	Pages       int    `json:"pages"`
	Changed     bool   `json:"changed"`
	Recorded    Fate   `json:"recorded"`
	UnderPolicy Fate   `json:"under_policy"`
}

// Both is a number of each run.
type Both[T int | float64] struct {
	Recorded    T `json:"recorded"`
	UnderPolicy T `json:"under_policy"`
}

// Result is cli.md's answer of whatif.
type Result struct {
	Policy          string        `json:"policy"`
	AckTimeoutMS    *int64        `json:"ack_timeout_ms"` // nil = as recorded
	ReleasesChanged int           `json:"releases_changed"`
	Corruptions     Both[int]     `json:"corruptions"` // pairs of victim incarnation and page, as blame counts them
	HeldPageSeconds Both[float64] `json:"held_page_seconds"`
	// PeakHeldPages is the most pages that were held at once after an abort.
	PeakHeldPages Both[int] `json:"peak_held_pages"`
	// Unplaced rooms could not have been opened, as a rule for want of free
	// pages: what they did is left out. UnplacedWhy is the reason of one.
	Unplaced    int        `json:"rooms_unplaced"`
	UnplacedWhy string     `json:"rooms_unplaced_why"`
	Rooms       []RoomFate `json:"rooms"`
}

// Write prints the answer for people.
func (r *Result) Write(w io.Writer) error {
	timeout := "the recorded ack timeout"
	if r.AckTimeoutMS != nil {
		timeout = "ack timeout " + (time.Duration(*r.AckTimeoutMS) * time.Millisecond).String()
	}
	fmt.Fprintf(w, "under policy %s with %s:\n", r.Policy, timeout)
	fmt.Fprintf(w, "  releases that differ     %d of %d rooms that had to wait for one\n", r.ReleasesChanged, len(r.Rooms))
	fmt.Fprintf(w, "  corrupted pages          %d recorded, %d under the policy\n", r.Corruptions.Recorded, r.Corruptions.UnderPolicy)
	fmt.Fprintf(w, "  pages held after aborts  %.1f page·s recorded, %.1f under the policy\n", r.HeldPageSeconds.Recorded, r.HeldPageSeconds.UnderPolicy)
	fmt.Fprintf(w, "  most held at once        %d pages recorded, %d under the policy\n", r.PeakHeldPages.Recorded, r.PeakHeldPages.UnderPolicy)
	if r.Unplaced > 0 {
		fmt.Fprintf(w, "  rooms left out           %d could not have been opened: %s\n", r.Unplaced, r.UnplacedWhy)
	}
	if r.ReleasesChanged == 0 {
		return nil
	}
	fmt.Fprintln(w)
	tw := tabwriter.NewWriter(w, 0, 8, 2, ' ', 0)
	fmt.Fprintln(tw, "NODE\tROOM\tSEQ\tPAGES\tRECORDED\tHELD\tUNDER POLICY\tHELD")
	for _, f := range r.Rooms {
		if f.Changed {
			fmt.Fprintf(tw, "%s\t%d\t%d\t%d\t%s\t%s\t%s\t%s\n", f.Node, f.Room, f.RoomSeq, f.Pages,
				f.Recorded.word(), f.Recorded.held(), f.UnderPolicy.word(), f.UnderPolicy.held())
		}
	}
	return tw.Flush()
}

func (f Fate) word() string {
	if f.Basis == nil {
		return "still held"
	}
	return *f.Basis
}

func (f Fate) held() string { return (time.Duration(f.HeldMS) * time.Millisecond).String() }
