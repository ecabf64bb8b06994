package replay

import (
	"context"
	"fmt"
	"io"
	"text/tabwriter"
	"time"

	"github.com/cockroachdb/errors"

	"github.com/pdlog/pdlog/events"
	"github.com/pdlog/pdlog/projector"
)

// Instant is a moment of a log: a sequence, or a time.
type Instant struct {
	Seq  uint64    // 0 = Time counts
	Time time.Time // its own moment is in
}

func (i Instant) after(e *events.Event) bool {
	if i.Seq != 0 {
		return e.Seq > i.Seq
	}
	return e.Time().After(i.Time)
}

// RoomState is one room the node kept state for.
type RoomState struct {
	Room        uint64   `json:"room"`
	RoomSeq     uint64   `json:"room_seq"`
	State       string   `json:"state"`
	Cause       string   `json:"cause"`
	Reason      string   `json:"reason"`
	Generation  uint64   `json:"generation"`
	Acks        int      `json:"acks"`
	Pairs       int      `json:"pairs"`
	Missing     []string `json:"missing"`
	Outstanding int      `json:"outstanding"`
	AckTargets  int      `json:"ack_targets"`
	Pages       []uint32 `json:"pages"`
}

// NodeState is a node's projection as of a moment.
type NodeState struct {
	Node        string         `json:"node"`
	Role        string         `json:"role"`
	Seq         uint64         `json:"seq"` // last event that counts
	Time        *Time          `json:"time"`
	Incarnation uint64         `json:"incarnation"`
	Rooms       []RoomState    `json:"rooms"`
	Pages       map[string]int `json:"pages"` // how many are in each state
}

// StateAt folds one log up to a moment with the machine that a node itself
// runs. The log must begin at its first event (ErrBadSource).
func StateAt(ctx context.Context, l *Log, at Instant) (*NodeState, error) {
	if l.First != 1 {
		return nil, errors.Wrapf(ErrBadSource, "%s: the log of %s begins at event %d: the state before it is not here", l.Source, l.Node, l.First)
	}
	st := &NodeState{Node: l.Node, Rooms: []RoomState{}, Pages: map[string]int{}}
	var m *projector.Machine
	var pages uint64
	for e, err := range l.Events(ctx) {
		if err != nil {
			return nil, err
		}
		if at.after(e) {
			break
		}
		if s := e.GetNodeStarted(); s != nil && m == nil {
			m, pages = projector.New(ConfigOf(l.Node, s)), s.GetPages()
			st.Role = events.EnumWord(s.GetRole().Descriptor(), s.GetRole().Number())
		}
		if m == nil {
			return nil, errors.Wrapf(ErrBadSource, "%s: the log of %s does not begin with the node's start", l.Source, l.Node)
		}
		m.Apply(e)
		when := Time{e.Time()}
		st.Seq, st.Time, st.Incarnation = e.Seq, &when, e.Incarnation
	}
	if m == nil {
		return st, nil
	}
	for _, v := range m.RoomViews() {
		st.Rooms = append(st.Rooms, stateOf(v))
	}
	if st.Role == "decode" {
		for p := range pages {
			st.Pages[m.Page(uint32(p)).State]++ //nolint:gosec // a pool fits
		}
	}
	return st, nil
}

// ConfigOf is the configuration that a node's start records, as far as its
// state depends on it.
func ConfigOf(node string, s *events.NodeStarted) projector.Config {
	cfg := projector.DefaultConfig()
	cfg.Node, cfg.Role, cfg.Version, cfg.Dialect, cfg.Provider = node, s.GetRole(), s.GetVersion(), s.GetDialect(), s.GetProvider()
	cfg.Pages, cfg.AuxRows, cfg.PageSize = int(s.GetPages()), int(s.GetAuxRows()), int(s.GetPageSize()) //nolint:gosec // a pool fits
	cfg.Policy, cfg.AllowWeak, cfg.PageCheck = s.GetPolicy(), s.GetAllowWeak(), s.GetPageCheck()
	cfg.AckTimeout = time.Duration(s.GetAckTimeoutMs()) * time.Millisecond             //nolint:gosec // ms of a config
	cfg.AbortRetry = time.Duration(s.GetAbortRetryMs()) * time.Millisecond             //nolint:gosec // ms of a config
	cfg.BootstrapTimeout = time.Duration(s.GetBootstrapTimeoutMs()) * time.Millisecond //nolint:gosec // ms of a config
	cfg.WaitingTimeout = time.Duration(s.GetWaitingTimeoutMs()) * time.Millisecond     //nolint:gosec // ms of a config
	cfg.TransferTimeout = time.Duration(s.GetTransferTimeoutMs()) * time.Millisecond   //nolint:gosec // ms of a config
	for i := range s.GetRanks() {
		rank := projector.LocalRank{WireID: uint32(i)} //nolint:gosec // few
		if int(i) < len(s.GetRankAddresses()) {        //nolint:gosec // few
			rank.Address = s.GetRankAddresses()[i]
		}
		cfg.Ranks = append(cfg.Ranks, rank)
	}
	return cfg
}

func stateOf(v projector.RoomView) RoomState {
	s := RoomState{
		Room: v.Room, RoomSeq: v.RoomSeq, State: v.State, Cause: v.Cause, Reason: v.Reason, Generation: v.Generation,
		Acks: v.Acked, Pairs: v.Pairs, Missing: []string{}, Outstanding: v.Outstanding, AckTargets: v.AckTargets,
		Pages: append([]uint32{}, v.Pages...),
	}
	for _, r := range v.Missing {
		s.Missing = append(s.Missing, string(r))
	}
	return s
}

// Write prints the state for people.
func (s *NodeState) Write(w io.Writer) error {
	when := "before its first event"
	if s.Time != nil {
		when = s.Time.Format("2006-01-02 15:04:05.000") + " UTC"
	}
	fmt.Fprintf(w, "%s (%s) after event %d, %s, life %d\n", s.Node, s.Role, s.Seq, when, s.Incarnation)
	if s.Role == "decode" {
		fmt.Fprintf(w, "pages: %d free, %d owned, %d held, %d quarantined, %d fenced\n",
			s.Pages["free"], s.Pages["owned"], s.Pages["held"], s.Pages["quarantined"], s.Pages["fenced"])
	}
	if len(s.Rooms) == 0 {
		_, err := fmt.Fprintln(w, "no rooms")
		return err
	}
	tw := tabwriter.NewWriter(w, 0, 8, 2, ' ', 0)
	fmt.Fprintln(tw, "ROOM\tSEQ\tSTATE\tCAUSE\tGEN\tACKS\tMISSING\tOPEN\tPAGES")
	for _, r := range s.Rooms {
		fmt.Fprintf(tw, "%d\t%d\t%s\t%s\t%s\t%d/%d\t%v\t%d\t%s\n", r.Room, r.RoomSeq, r.State, dash(r.Cause),
			generationText(r.Generation), r.Acks, r.Pairs, r.Missing, r.Outstanding, pagesText(r.Pages))
	}
	return tw.Flush()
}
