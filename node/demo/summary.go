package demo

import (
	"fmt"
	"io"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/pdlog/pdlog/events"
)

// Summary is the result of a demo. Its JSON keys are a contract (cli.md).
type Summary struct {
	Requests     int     `json:"requests"`
	Succeeded    int     `json:"succeeded"`
	Aborted      int     `json:"aborted"` // the stand-in aborted it before it succeeded
	Failed       int     `json:"failed"`
	TooLarge     int     `json:"too_large"` // of Failed: needed more pages than the pool has
	Bytes        uint64  `json:"bytes"`     // written into decode memory
	Seconds      float64 `json:"seconds"`   // from the first request to the last page that came back
	PagesChecked int     `json:"pages_checked"`
	// CorruptPages counts pairs of room incarnation and page whose bytes were wrong.
	CorruptPages int `json:"corrupt_pages"`
	// WrongBytes says whose bytes the stand-in found in them.
	WrongBytes []Found `json:"wrong_bytes"`

	Released Bases `json:"released"` // room incarnations
	Unsafe   int   `json:"unsafe"`   // of Released
	HeldNow  int   `json:"held_now"` // room incarnations whose pages are not released
	// HeldPages and LostPages are pages: held by a room at the end, and neither
	// free nor accounted for.
	HeldPages int `json:"held_pages"`
	LostPages int `json:"lost_pages"`
	// InFlight counts rooms with a write that ended after the abort had reached
	// its writer: the race that this is all about.
	InFlight int `json:"aborted_in_flight"`

	AbortToRelease Quantiles      `json:"abort_to_release_ms"`
	Nodes          []NodeSummary  `json:"nodes"`
	NATSURL        string         `json:"nats_url"`
	DataDir        string         `json:"data_dir"`
	Failures       map[string]int `json:"failures"` // failed requests by cause
	Problems       []string       `json:"problems"` // what made it end badly, in words

	keep bool
}

// Bases counts releases by basis.
type Bases struct {
	Success        int `json:"success"`
	ACKs           int `json:"acks"`
	Fence          int `json:"fence"`
	NeverPublished int `json:"never_published"`
	PeerRestart    int `json:"peer_restart"`
	Forced         int `json:"forced"`
	Timeout        int `json:"timeout"`
	Mixed          int `json:"mixed"`
}

// Quantiles are milliseconds; all 0 when there was nothing to measure.
type Quantiles struct {
	P50 float64 `json:"p50"`
	P99 float64 `json:"p99"`
	Max float64 `json:"max"`
}

// NodeSummary is one node at the end.
type NodeSummary struct {
	Node      string `json:"node"`
	Role      string `json:"role"`
	Events    uint64 `json:"events"`
	Log       string `json:"log"`        // its log folder
	MirrorLag uint64 `json:"mirror_lag"` // events
	// MirrorError is what kept the mirror from taking them; empty if nothing did.
	MirrorError string `json:"mirror_error"`
}

// OK says whether the demo held what it should hold (cli.md: exit 0 or 1).
func (s *Summary) OK() bool { return len(s.Problems) == 0 }

func (b *Bases) add(basis events.Basis) {
	switch basis {
	case events.Basis_BASIS_SUCCESS:
		b.Success++
	case events.Basis_BASIS_ACKS:
		b.ACKs++
	case events.Basis_BASIS_FENCE:
		b.Fence++
	case events.Basis_BASIS_NEVER_PUBLISHED:
		b.NeverPublished++
	case events.Basis_BASIS_PEER_RESTART:
		b.PeerRestart++
	case events.Basis_BASIS_FORCED:
		b.Forced++
	case events.Basis_BASIS_TIMEOUT:
		b.Timeout++
	case events.Basis_BASIS_MIXED, events.Basis_BASIS_UNSPECIFIED:
		b.Mixed++
	}
}

// quantiles by nearest rank: every figure is one that was measured.
func quantiles(ms []uint64) Quantiles {
	if len(ms) == 0 {
		return Quantiles{}
	}
	s := slices.Sorted(slices.Values(ms))
	at := func(q float64) float64 {
		i := int(math.Ceil(q*float64(len(s)))) - 1
		return float64(s[max(i, 0)])
	}
	return Quantiles{P50: at(0.5), P99: at(0.99), Max: float64(s[len(s)-1])}
}

// summarize puts together what the stand-in saw and what the logs say. lost
// are the pages that the stand-in and the node do not agree on.
func summarize(r EngineReport, t *tally, lost int, took time.Duration) *Summary {
	s := &Summary{
		Requests: r.Total, Succeeded: r.Succeeded, Aborted: r.Aborted, Failed: r.Failed, TooLarge: r.TooLarge,
		Bytes: t.bytes, Seconds: took.Seconds(), PagesChecked: r.PagesChecked,
		Unsafe: t.unsafe, HeldPages: len(r.Taken), LostPages: lost, InFlight: len(t.inFlight),
		AbortToRelease: quantiles(t.waits), Failures: r.Faults, Problems: []string{}, Nodes: []NodeSummary{},
	}
	if s.Failures == nil {
		s.Failures = map[string]int{}
	}
	corrupt := make(map[RoomPage]bool, len(t.corrupt))
	for rp := range t.corrupt {
		corrupt[rp] = true
	}
	for _, rp := range r.Corrupt {
		corrupt[rp] = true
	}
	s.CorruptPages, s.WrongBytes = len(corrupt), append([]Found{}, r.Found...)
	for _, basis := range t.released {
		s.Released.add(basis)
	}
	for seq := range t.opened {
		if _, done := t.released[seq]; !done {
			s.HeldNow++
		}
	}
	if s.CorruptPages > 0 {
		s.problem("%d pages held wrong bytes while a request used them", s.CorruptPages)
	}
	if lost > 0 {
		s.problem("%d pages are neither free nor accounted for", lost)
	}
	if r.PoolFault != "" {
		s.problem("%s", r.PoolFault)
	}
	if n := r.Ended(); n != r.Total {
		s.problem("%d of %d requests have no outcome", r.Total-n, r.Total)
	}
	return s
}

func (s *Summary) problem(format string, args ...any) {
	s.Problems = append(s.Problems, fmt.Sprintf(format, args...))
}

// replayTool is how pdreplay is called by someone who called us as arg0: from
// the same folder, or by its bare name.
func replayTool(arg0 string) string {
	if !strings.ContainsRune(arg0, filepath.Separator) {
		return "pdreplay"
	}
	return filepath.Join(filepath.Dir(arg0), "pdreplay")
}

// WriteText prints the summary for people.
func (s *Summary) WriteText(w io.Writer) error {
	var b strings.Builder
	row := func(name, format string, args ...any) {
		fmt.Fprintf(&b, "  %-18s %s\n", name, fmt.Sprintf(format, args...))
	}
	if s.OK() {
		b.WriteString("demo: every page held the right bytes, every page is accounted for\n\n")
	} else {
		b.WriteString("demo: " + strings.Join(s.Problems, "; ") + "\n\n")
	}
	row("requests", "%d: %d succeeded, %d aborted, %d failed", s.Requests, s.Succeeded, s.Aborted, s.Failed)
	if s.TooLarge > 0 {
		row("", "%d of the failed ones need more pages than the pool has", s.TooLarge)
	}
	for _, why := range sortedKeys(s.Failures) {
		row("", "failed, %s: %d", why, s.Failures[why])
	}
	row("moved", "%s in %.1f s (%s/s)", bytesText(float64(s.Bytes)), s.Seconds, bytesText(float64(s.Bytes)/max(s.Seconds, 1e-9)))
	row("pages checked", "%d, every byte, twice each", s.PagesChecked)
	row("corrupt pages", "%d", s.CorruptPages)
	row("aborted in flight", "%d rooms had a write end after the abort reached its writer", s.InFlight)
	row("released", "%s", s.Released.text())
	if s.Unsafe > 0 {
		row("", "%d of them without evidence (unsafe)", s.Unsafe)
	}
	row("held now", "%d rooms, %d pages", s.HeldNow, s.HeldPages)
	row("abort to release", "p50 %.0f ms, p99 %.0f ms, max %.0f ms", s.AbortToRelease.P50, s.AbortToRelease.P99, s.AbortToRelease.Max)
	for _, n := range s.Nodes {
		row("node "+n.Node, "%s, %d events in %s, mirror lag %d", n.Role, n.Events, n.Log, n.MirrorLag)
	}
	for _, n := range s.Nodes {
		if n.MirrorLag > 0 {
			why := n.MirrorError
			if why == "" {
				why = "it had no time to catch up"
			}
			fmt.Fprintf(&b, "\nTHE MIRROR IS BEHIND: it lacks the last %d events of %s (%s).\nThe log has them, and no decision waited for the mirror; the next start of the node publishes them.\n", n.MirrorLag, n.Node, why)
		}
	}
	b.WriteString("\nLook closer:\n")
	tool := replayTool(os.Args[0])
	fmt.Fprintf(&b, "  %s rooms %s\n  %s verify %s\n", tool, s.DataDir, tool, s.DataDir)
	switch {
	case s.keep:
		fmt.Fprintf(&b, "  %s audit %s\n", tool, s.NATSURL)
	case s.CorruptPages > 0:
		fmt.Fprintf(&b, "  %s blame %s\n", tool, s.DataDir)
	default:
		fmt.Fprintf(&b, "  %s timeline %s --out timeline.html\n", tool, s.DataDir)
	}
	if !s.keep {
		fmt.Fprintf(&b, "The mirror was at %s; with --keep it stays up for `%s audit`.\n", s.NATSURL, tool)
	}
	_, err := io.WriteString(w, b.String())
	return err
}

func (b Bases) text() string {
	var parts []string
	for _, p := range []struct {
		word string
		n    int
	}{
		{"success", b.Success},
		{"acks", b.ACKs},
		{"fence", b.Fence},
		{"never_published", b.NeverPublished},
		{"peer_restart", b.PeerRestart},
		{"forced", b.Forced},
		{"timeout", b.Timeout},
		{"mixed", b.Mixed},
	} {
		if p.n > 0 {
			parts = append(parts, fmt.Sprintf("%d %s", p.n, p.word))
		}
	}
	if len(parts) == 0 {
		return "nothing"
	}
	return strings.Join(parts, ", ")
}

func bytesText(n float64) string {
	for _, unit := range []string{"B", "kB", "MB", "GB"} {
		if n < 1000 {
			return fmt.Sprintf("%.3g %s", n, unit)
		}
		n /= 1000
	}
	return fmt.Sprintf("%.3g TB", n)
}

func sortedKeys(m map[string]int) []string {
	keys := make([]string, 0, len(m))
	for k := range m {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	return keys
}
