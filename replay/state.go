package replay

import (
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"strconv"
	"text/tabwriter"
	"time"

	"github.com/cockroachdb/errors"

	"github.com/pdlog/pdlog/events"
	"github.com/pdlog/pdlog/projector"
	"github.com/pdlog/pdlog/store"
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
	// FreeUnknown: what is kept of the log does not say how many pages there are.
	FreeUnknown bool `json:"free_unknown,omitempty"`
}

// StateAt folds one log up to a moment with the machine that a node itself
// runs. A log whose beginning was let go is folded from a snapshot that lies
// beside it, and ErrBadSource says from where on there is none.
func StateAt(ctx context.Context, l *Log, at Instant) (*NodeState, error) {
	st := &NodeState{Node: l.Node, Rooms: []RoomState{}, Pages: map[string]int{}}
	var m *projector.Machine
	var pages uint64
	if l.First != 1 {
		var err error
		var role events.Role
		if m, role, pages, err = fromSnapshot(ctx, l, at); err != nil {
			return nil, err
		}
		when := Time{m.State().HLC.Time()}
		st.Role = events.EnumWord(role.Descriptor(), role.Number())
		st.Seq, st.Time, st.Incarnation = m.State().Seq, &when, m.State().Incarnation
	}
	for e, err := range l.Events(ctx) {
		if err != nil {
			return nil, err
		}
		if e.Seq <= st.Seq { // it is in the snapshot
			continue
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
		if st.FreeUnknown = pages == anyPool; st.FreeUnknown {
			delete(st.Pages, "free")
		}
	}
	return st, nil
}

// anyPool is larger than a pool whose size is not known.
const anyPool = 1 << 20

// fromSnapshot is the machine of the newest snapshot beside a log folder that is
// not younger than a moment and that what is kept of the log goes on from.
func fromSnapshot(ctx context.Context, l *Log, at Instant) (m *projector.Machine, role events.Role, pages uint64, err error) {
	bad := func(why string) error {
		return errors.Wrapf(ErrBadSource, "%s: the log of %s begins at event %d: the state before it is not here, and %s", l.Source, l.Node, l.First, why)
	}
	if !hasSegments(l.Source) {
		return nil, 0, 0, bad("snapshots are beside a log folder alone")
	}
	cfg := projector.DefaultConfig()
	cfg.Node, cfg.Pages, cfg.AuxRows = l.Node, anyPool, anyPool
	starts := events.TypesOf(func(e *events.Event) bool { return e.GetNodeStarted() != nil })
	want := func(h events.Head) bool { return starts[h.Type] }
	for e, err := range l.Select(ctx, want) {
		if err != nil {
			return nil, 0, 0, err
		}
		if s := e.GetNodeStarted(); s != nil {
			cfg = ConfigOf(l.Node, s)
		}
	}
	oldest := uint64(0)
	for snap, err := range store.DirSnapshots(l.Source) {
		if err != nil || snap.Seq+1 < l.First {
			continue
		}
		m, role, err := restored(cfg, snap.Data)
		if err != nil {
			continue
		}
		if at.Seq != 0 && snap.Seq <= at.Seq || at.Seq == 0 && !m.State().HLC.Time().After(at.Time) {
			return m, role, uint64(cfg.Pages), nil //nolint:gosec // a pool
		}
		oldest = snap.Seq
	}
	if oldest == 0 {
		return nil, 0, 0, bad("no snapshot beside it can be read by this build")
	}
	return nil, 0, 0, bad(fmt.Sprintf("the oldest snapshot that can be read is of event %d", oldest))
}

// restored is the machine of a node's snapshot: the length of the shell's part,
// that part, and the machine's own.
func restored(cfg projector.Config, b []byte) (*projector.Machine, events.Role, error) {
	if len(b) < 4 || uint64(binary.LittleEndian.Uint32(b)) > uint64(len(b)-4) {
		return nil, 0, errors.Wrapf(projector.ErrSnapshot, "%d bytes", len(b))
	}
	own := b[4+binary.LittleEndian.Uint32(b):]
	var err error
	for _, role := range []events.Role{events.Role_ROLE_DECODE, events.Role_ROLE_PREFILL} {
		cfg.Role = role
		m := projector.New(cfg)
		if err = m.Restore(own); err == nil {
			return m, role, nil
		}
	}
	return nil, 0, err
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
		free := strconv.Itoa(s.Pages["free"])
		if s.FreeUnknown {
			free = "unknown"
		}
		fmt.Fprintf(w, "pages: %s free, %d owned, %d held, %d quarantined, %d fenced\n",
			free, s.Pages["owned"], s.Pages["held"], s.Pages["quarantined"], s.Pages["fenced"])
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
