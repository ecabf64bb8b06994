package node

import (
	"encoding/binary"
	"encoding/json"

	"github.com/cockroachdb/errors"

	"github.com/pdlog/pdlog/events"
	"github.com/pdlog/pdlog/projector"
)

// fold is everything a node makes of its log: the protocol's state, and what
// the shell keeps beside it. A start and the snapshots behind it fold the same
// events with the same code.
type fold struct {
	m       *projector.Machine
	clock   uint64                  // latest instant of the deadline clock, ms
	foreign map[uint64]foreignLease // by lease
	waits   waits
}

func newFold(cfg projector.Config) *fold {
	return &fold{m: projector.New(cfg), foreign: map[uint64]foreignLease{}, waits: newWaits()}
}

func (f *fold) apply(e *events.Event) {
	f.m.Apply(e)
	f.clock = max(f.clock, deadlineClock(e))
	noteForeign(f.foreign, e)
	f.waits.note(e)
}

type foreignLease struct{ Room, Seq uint64 }

// noteForeign follows publishes to peers that are not pdlog, of all lives: no
// lease was granted for them, so none of them can be fenced by us.
func noteForeign(open map[uint64]foreignLease, e *events.Event) {
	switch p := e.Payload.(type) {
	case *events.Event_PublishStarted:
		if s := p.PublishStarted; !s.Pdlog && !s.Dummy {
			open[s.Lease] = foreignLease{Room: e.Room, Seq: e.RoomSeq}
		}
	case *events.Event_Released:
		for id, f := range open {
			if f.Seq == e.RoomSeq {
				delete(open, id)
			}
		}
	}
}

// shellState is the shell's part of a snapshot; projector.Machine has its own
// form. A snapshot's data is the length of this part as JSON (u32,
// little-endian), this part, and the machine's.
type shellState struct {
	Version     int                     `json:"version"`
	Clock       uint64                  `json:"clock"`
	Foreign     map[uint64]foreignLease `json:"foreign,omitempty"`
	Armed       map[uint64]uint64       `json:"armed,omitempty"`
	Quarantined map[uint64]uint64       `json:"quarantined,omitempty"`
}

const shellVersion = 1

// errOtherSnapshot: well kept, but not for this build.
var errOtherSnapshot = errors.New("snapshot of another version")

// encode is the fold as a snapshot has it; size is how long it may become.
func (f *fold) encode(size int) ([]byte, error) {
	b, err := json.Marshal(shellState{
		Version: shellVersion, Clock: f.clock, Foreign: f.foreign, Armed: f.waits.armed, Quarantined: f.waits.quarantined,
	})
	if err != nil {
		return nil, errors.Wrap(err, "encode snapshot")
	}
	out := binary.LittleEndian.AppendUint32(make([]byte, 0, size), uint32(len(b))) //nolint:gosec // rooms that wait, some bytes each
	return f.m.AppendSnapshot(append(out, b...)), nil
}

// decodeFold reads what encode wrote, for this node's configuration.
func decodeFold(cfg projector.Config, b []byte) (*fold, error) {
	if len(b) < 4 || uint64(binary.LittleEndian.Uint32(b)) > uint64(len(b)-4) {
		return nil, errors.Wrapf(projector.ErrSnapshot, "%d bytes", len(b))
	}
	n := binary.LittleEndian.Uint32(b)
	var s shellState
	if err := json.Unmarshal(b[4:4+n], &s); err != nil {
		return nil, errors.Wrap(errors.CombineErrors(projector.ErrSnapshot, err), "the shell's part")
	}
	if s.Version != shellVersion {
		return nil, errors.Wrapf(errOtherSnapshot, "have %d, this build knows %d", s.Version, shellVersion)
	}
	f := newFold(cfg)
	f.clock = s.Clock
	for id, l := range s.Foreign {
		f.foreign[id] = l
	}
	for id, at := range s.Armed {
		f.waits.armed[id] = at
	}
	for id, at := range s.Quarantined {
		f.waits.quarantined[id] = at
	}
	return f, f.m.Restore(b[4+n:])
}
