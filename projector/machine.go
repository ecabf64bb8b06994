package projector

import (
	"cmp"
	"maps"
	"slices"

	"github.com/pdlog/pdlog/events"
)

// Machine runs the protocol of one node. See the package comment for what the
// caller owes.
type Machine struct {
	cfg Config
	st  *State

	// Of the present life only; none of it is needed to fold the log.
	boot    uint64
	inc     uint64
	started bool
	stopped bool
	logFull bool
	now     Instant
	res     Result
	parked  parked
	pool    *events.Pool
	events  arena[*events.Event]
	effects arena[Effect]
	pairs   arena[*events.Pair]
	proofs  arena[*events.Evidence]
	timers  timers
	gates   map[string]bool // decode endpoints that read our extension (wire.md 9.1)
	retries map[roomKey]retry
	rejects map[rejectKey]*reject
	checks  map[roomKey]bool // CheckPages under way
	badPeer map[string]string
	unsafe  map[uint64]bool          // leases whose room was released unsafely
	asks    []stagingAsk             // decode: requests for room in a ring that is full
	staging map[roomKey]*stagingRoom // prefill: what its chunks wait for
	marks   map[stagingRing]mark     // prefill: up to where decode's rings are free
	limits  map[roomKey]uint64       // prefill: when a request's own time is over
	older   bool                     // a peer has seen more of this log than it holds
	hot     *Room                    // the one that was asked for last; see room
	phot    *PRoom                   // the same of prefill
	nodes   map[string]*Endpoint     // prefill: what firstOf has found, until an endpoint is another's
	reason  string                   // see intern
	told    map[string]uint64        // decode node -> highest cause that a message of this life named to it
}

type retry struct {
	attempt uint64
	at      uint64
	again   bool // asked again since the last retry
}

// New makes the machine of a node with an empty log.
func New(cfg Config) *Machine {
	cfg.fill()
	m := &Machine{cfg: cfg, st: newState(&cfg), parked: parked{}, pool: events.NewPool(), nodes: map[string]*Endpoint{}}
	m.reset()
	return m
}

func (m *Machine) reset() {
	m.timers = timers{}
	m.gates = map[string]bool{}
	m.retries = map[roomKey]retry{}
	m.rejects = map[rejectKey]*reject{}
	m.checks = map[roomKey]bool{}
	m.badPeer = map[string]string{}
	m.unsafe = map[uint64]bool{}
	m.limits = map[roomKey]uint64{}
	m.asks = nil
	m.staging = map[roomKey]*stagingRoom{}
	m.marks = map[stagingRing]mark{}
	m.older = false
	m.told = map[string]uint64{}
}

// Apply folds one event of the log. Events come in sequence order.
func (m *Machine) Apply(e *events.Event) { m.apply(e) }

// ReuseResults: from now on the events and lists that Step returns stay the
// machine's own. Recycle makes them free to be used again: nobody may look at what
// Step has returned before. What the actions of effects hold is the receiver's.
func (m *Machine) ReuseResults() {
	m.pool.Reuse()
	m.events.reuse, m.effects.reuse, m.pairs.reuse, m.proofs.reuse = true, true, true, true
}

// Recycle ends the use of all that Step has returned since the last Recycle or Keep.
func (m *Machine) Recycle() {
	m.pool.Recycle()
	m.rewind(false)
}

// Keep leaves all of it to those who hold it.
func (m *Machine) Keep() {
	m.pool.Keep()
	m.rewind(true)
}

func (m *Machine) rewind(keep bool) {
	m.events.rewind(keep)
	m.effects.rewind(keep)
	m.pairs.rewind(keep)
	m.proofs.rewind(keep)
}

// Step takes one command and returns the events to append and what the shell
// must do after them, in order. The same inputs give the same results, byte
// for byte, on every host and in every replay.
func (m *Machine) Step(now Instant, cmd Command) Result {
	m.now = now
	m.res = Result{Events: m.events.open(), Effects: m.effects.open()}
	if !m.started {
		if s, ok := cmd.(Start); ok {
			m.start(s)
		} else {
			m.refuse("not_ready", "the node has not started")
		}
		return m.take()
	}
	if m.stopped {
		m.refuse("not_ready", "the node has stopped")
		return m.take()
	}
	m.merge(cmd)
	switch c := cmd.(type) {
	case Tick:
	case Stop:
		m.stop(c)
	case LogState:
		m.logFull = c.Full
	case ReRegister:
		m.reregister(c)
	case MemoryAdded:
		m.emit(&events.Event{Payload: &events.Event_MemoryRegistered{MemoryRegistered: c.Memory}})
	case MemoryRemoved:
		for _, name := range c.Names {
			m.emit(&events.Event{Payload: &events.Event_MemoryUnregistered{MemoryUnregistered: &events.MemoryUnregistered{Name: name, Reason: c.Reason}}})
		}
	case Rejected:
		m.reject(c)
	case PeerDiscovered:
		m.discovered(c)
	case Heartbeat:
		m.heartbeat(c)
	case ConnectionEnded:
		m.connectionEnded(c)
	case GateClosed:
		delete(m.gates, c.Address)
	case PastQuestion:
		m.pastQuestion(c)
	case PastAnswer:
		m.pastAnswer(c)
	case PeerFenced:
		m.peerFenced(c)
	default:
		if m.cfg.Role == events.Role_ROLE_PREFILL {
			m.stepPrefill(cmd)
		} else {
			m.stepDecode(cmd)
		}
	}
	m.fire()
	return m.take()
}

func (m *Machine) stepDecode(cmd Command) {
	switch c := cmd.(type) {
	case OpenRoom:
		m.open(c)
	case PublishRoom:
		m.publishRoom(c)
	case PublishResult:
		m.publishResult(c)
	case FinishRoom:
		m.finish(c.Room, "finish")
	case AbortRoom:
		m.abortRoom(c)
	case ForceRelease:
		m.force(c)
	case FenceRoom:
		m.fenceRoom(c)
	case PageReport:
		m.pageReport(c)
	case PagesChecked:
		m.pagesChecked(c)
	case Landed:
		m.landed(c)
	case LateWrite:
		m.lateWrite(c)
	case AuxArrived:
		m.auxArrived(c)
	case CopyDone:
		m.copyDone(c)
	case FenceResult:
		m.fenceResult(c)
	case WireAck:
		m.ack(c)
	case WireStatus:
		m.status(c)
	case WireNotification:
		m.notified(c)
	case WireStagingReq:
		m.stagingReq(c)
	case WireChunkReady:
		m.chunkReady(c)
	default:
		m.refuse("bad_request", "not a command of a decode node")
	}
}

func (m *Machine) stepPrefill(cmd Command) {
	switch c := cmd.(type) {
	case WireRegister:
		m.register(c)
	case WireMetadata:
		m.metadata(c)
	case WireAbort:
		m.abort(c)
	case WireStagingRsp:
		m.stagingRsp(c)
	case WireWatermark:
		m.watermark(c)
	case AwaitRoom:
		m.await(c)
	case SendChunk:
		m.sendChunk(c)
	case WriteDone:
		m.writeDone(c)
	case AbortRoom:
		m.abortPRoom(c)
	case ClearRoom:
		m.clear(c)
	default:
		m.refuse("bad_request", "not a command of a prefill node")
	}
}

func (m *Machine) take() Result {
	r := m.res
	m.res = Result{}
	r.Events, r.Effects = m.events.close(r.Events), m.effects.close(r.Effects)
	return r
}

func (m *Machine) refuse(word, detail string) {
	m.res.Refused = &Refusal{Word: word, Detail: detail}
}

// emit appends an event to the result and folds it. Room, RoomSeq, Rank, Cause
// and Payload are the caller's; the rest is filled in here.
func (m *Machine) emit(e *events.Event) uint64 {
	e.Seq = m.st.Seq + 1
	h := m.st.HLC.Next(m.now.Wall)
	e.Hlc = uint64(h)
	e.Node = m.cfg.Node
	e.Boot = m.boot
	e.Incarnation = m.inc
	e.TimeOffsetMs = int64(m.now.Clock) - int64(h.Millis()) //nolint:gosec // ms fit
	m.apply(e)
	m.res.Events = append(m.res.Events, e)
	return e.Seq
}

// do appends an effect that waits for everything emitted so far.
func (m *Machine) do(a Action) { m.doAfter(m.st.Seq, a) }

func (m *Machine) doAfter(seq uint64, a Action) {
	m.res.Effects = append(m.res.Effects, Effect{After: seq, Do: a})
}

// merge moves the hybrid clock past the sender's (wire.md 9.3, field 4).
func (m *Machine) merge(cmd Command) {
	if x := extOf(cmd); x != nil {
		m.st.HLC = m.st.HLC.Merge(events.HLC(x.HLC))
	}
}

func extOf(cmd Command) *Ext {
	switch c := cmd.(type) {
	case WireRegister:
		return c.Ext
	case WireMetadata:
		return c.Ext
	case WireAbort:
		return c.Ext
	case WireAck:
		return c.Ext
	case WireStatus:
		return c.Ext
	}
	return nil
}

func (m *Machine) causeOf(x *Ext) *events.Cause {
	if x == nil || x.CauseSeq == 0 {
		return nil
	}
	c := m.pool.Cause()
	c.Node, c.Seq = x.Node, x.CauseSeq
	return c
}

func (m *Machine) localCause(seq uint64) *events.Cause {
	c := m.pool.Cause()
	c.Seq = seq
	return c
}

// ext is what every outgoing extension says of this node.
func (m *Machine) ext(roomSeq, causeSeq uint64) Ext {
	return Ext{
		Node: m.cfg.Node, Boot: m.boot, Incarnation: m.inc, HLC: uint64(m.st.HLC),
		RoomSeq: roomSeq, CauseSeq: causeSeq, LogID: m.st.LogID,
	}
}

// extTo is the extension of a message to a decode node.
func (m *Machine) extTo(node string, roomSeq, causeSeq uint64) Ext {
	m.told[node] = max(m.told[node], causeSeq)
	return m.ext(roomSeq, causeSeq)
}

func sortedKeys[K cmp.Ordered, V any](mp map[K]V) []K {
	return slices.Sorted(maps.Keys(mp))
}
