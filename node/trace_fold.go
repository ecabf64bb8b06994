package node

import (
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/trace"

	"github.com/pdlog/pdlog/events"
	"github.com/pdlog/pdlog/projector"
)

// chunkSpans is how many writes of a room become spans; the room's span counts
// all of them.
const chunkSpans = 64

// traceFold makes spans of a node's events: a root for each room on decode, from
// its opening to the release of its pages; below it the prefill's part, its
// writes, aborts and fences.
type traceFold struct {
	node  string
	logID []byte
	rooms map[uint64]*tracedRoom // by room_seq
	emit  func(span)
}

// tracedRoom is what is open of a room.
type tracedRoom struct {
	room, seq uint64
	role      events.Role
	label     string // the engine's trace id
	request   string
	opened    time.Time
	landed    time.Time // decode: the first write
	armed     time.Time
	fences    map[string]time.Time // by rank and target
	writes    map[uint64]write     // prefill: by token
	aborted   map[string]time.Time // prefill: by rank and target
	chunks    int
	bytes     uint64
	failed    string
	over      bool // prefill: its outcome is there
	resumed   bool // an earlier life opened it; writes and bytes are those of this one

	decode    string // prefill: decode node of the room
	decodeLog []byte
	decodeSeq uint64
}

type write struct {
	at    time.Time
	chunk uint32
	to    string
}

// resume begins with the rooms that an earlier life left open, as the fold of
// its log has them. What that life had under way below a room (a fence, a write)
// has no span; the room and the prefill's part of it have.
func (f *traceFold) resume(st *projector.State) {
	for _, r := range st.Rooms {
		t := f.open(r.Room, r.Seq, events.Role_ROLE_DECODE, r.OpenedAt)
		t.label, t.request = r.TraceID, r.RequestID
		t.landed, t.armed = instant(r.LandedAt), instant(r.ArmedAt)
		if r.Outcome == projector.OutcomeFailed {
			t.failed = word(r.Cause)
		}
	}
	for _, r := range st.PRooms {
		t := f.open(r.Room, r.Seq, events.Role_ROLE_PREFILL, r.OpenedAt)
		t.label, t.request, t.over = r.TraceID, r.RequestID, r.Outcome != projector.OutcomeNone
		for _, d := range r.Dests {
			if t.decode == "" {
				t.decode, t.decodeLog, t.decodeSeq = d.Node, d.LogID, d.RoomSeq
			}
		}
	}
}

func instant(ms uint64) time.Time {
	if ms == 0 {
		return time.Time{}
	}
	return time.UnixMilli(int64(ms)) //nolint:gosec // milliseconds fit
}

func (f *traceFold) open(room, seq uint64, role events.Role, at uint64) *tracedRoom {
	r := &tracedRoom{
		room: room, seq: seq, role: role, opened: instant(at), resumed: true,
		fences: map[string]time.Time{}, writes: map[uint64]write{}, aborted: map[string]time.Time{},
	}
	f.rooms[seq] = r
	return r
}

func (f *traceFold) take(e *events.Event) {
	at := e.Time()
	r := f.rooms[e.RoomSeq]
	switch p := e.Payload.(type) {
	case *events.Event_RoomOpened:
		if r == nil {
			r = f.begin(e, p.RoomOpened.Role)
		}
		r.label, r.request = p.RoomOpened.TraceId, p.RoomOpened.RequestId
	case *events.Event_MetadataReceived: // may come before the engine's request
		if r == nil {
			r = f.begin(e, events.Role_ROLE_PREFILL)
		}
	}
	if r == nil {
		return // it was over before this life began
	}
	if r.role == events.Role_ROLE_PREFILL {
		f.prefill(r, e, at)
	} else {
		f.decode(r, e, at)
	}
}

func (f *traceFold) begin(e *events.Event, role events.Role) *tracedRoom {
	r := &tracedRoom{
		room: e.Room, seq: e.RoomSeq, role: role, opened: e.Time(),
		fences: map[string]time.Time{}, writes: map[uint64]write{}, aborted: map[string]time.Time{},
	}
	f.rooms[e.RoomSeq] = r
	return r
}

// place is a room's trace, the id of its root, and that root's own parent.
func (f *traceFold) place(r *tracedRoom) (id trace.TraceID, root, above trace.SpanID) {
	node, log, seq := f.node, f.logID, r.seq
	if r.role == events.Role_ROLE_PREFILL && r.decode != "" && r.decodeSeq != 0 {
		node, log, seq = r.decode, r.decodeLog, r.decodeSeq
	}
	root = spanID(node, log, seq, "room")
	if id, above, ok := engineTrace(r.label); ok {
		return id, root, above
	}
	return traceID(node, log, seq), root, trace.SpanID{}
}

func (f *traceFold) child(r *tracedRoom, name, part string, parent trace.SpanID, from, to time.Time, failed string, attrs ...attribute.KeyValue) {
	id, _, _ := f.place(r)
	f.emit(span{name: name, trace: id, id: spanID(f.node, f.logID, r.seq, part), parent: parent, from: from, to: to, failed: failed, attrs: attrs})
}

func (r *tracedRoom) attrs(more ...attribute.KeyValue) []attribute.KeyValue {
	out := []attribute.KeyValue{attribute.Int64("pdlog.room", int64(r.room)), attribute.Int64("pdlog.room_seq", int64(r.seq))} //nolint:gosec // 63 bits
	if r.request != "" {
		out = append(out, attribute.String("pdlog.request_id", r.request))
	}
	if r.resumed {
		out = append(out, attribute.Bool("pdlog.resumed", true))
	}
	return append(out, more...)
}

func (f *traceFold) decode(r *tracedRoom, e *events.Event, at time.Time) {
	_, root, above := f.place(r)
	switch p := e.Payload.(type) {
	case *events.Event_WriteLanded:
		if r.landed.IsZero() {
			r.landed = at
		}
		r.chunks++
		r.bytes += p.WriteLanded.Bytes
	case *events.Event_RoomSucceeded:
		if !r.landed.IsZero() {
			f.child(r, "transfer", "transfer", root, r.landed, at, "", attribute.Int64("pdlog.bytes", int64(r.bytes))) //nolint:gosec // bytes
		}
	case *events.Event_RoomFailed:
		r.failed = word(p.RoomFailed.Cause)
	case *events.Event_AbortArmed:
		r.armed = at
	case *events.Event_FenceStarted:
		r.fences[e.Rank+">"+p.FenceStarted.To] = at
	case *events.Event_Fenced:
		f.fenced(r, e.Rank+">"+p.Fenced.To, root, at, "", word(p.Fenced.Evidence))
	case *events.Event_FenceFailed:
		f.fenced(r, e.Rank+">"+p.FenceFailed.To, root, at, p.FenceFailed.Reason, "none")
	case *events.Event_Released:
		basis := word(p.Released.Basis)
		if !r.armed.IsZero() {
			f.child(r, "abort", "abort", root, r.armed, at, "", attribute.String("pdlog.basis", basis))
		}
		id, _, _ := f.place(r)
		f.emit(span{
			name: "room", trace: id, id: root, parent: above, from: r.opened, to: at, failed: r.failed,
			attrs: r.attrs(attribute.String("pdlog.basis", basis), attribute.Int("pdlog.pages", len(p.Released.Pages)),
				attribute.Int("pdlog.writes", r.chunks), attribute.Bool("pdlog.unsafe", p.Released.Unsafe)),
		})
		delete(f.rooms, r.seq)
	}
}

func (f *traceFold) fenced(r *tracedRoom, pair string, root trace.SpanID, at time.Time, failed, evidence string) {
	from, ok := r.fences[pair]
	if !ok {
		return
	}
	delete(r.fences, pair)
	f.child(r, "fence", "fence "+pair+" "+from.String(), root, from, at, failed, attribute.String("pdlog.pair", pair), attribute.String("pdlog.evidence", evidence))
}

func (f *traceFold) prefill(r *tracedRoom, e *events.Event, at time.Time) {
	switch p := e.Payload.(type) {
	case *events.Event_MetadataReceived:
		if r.decode == "" {
			r.decode, r.decodeLog, r.decodeSeq = p.MetadataReceived.DecodeNode, p.MetadataReceived.DecodeLogId, p.MetadataReceived.DecodeRoomSeq
		}
	case *events.Event_ChunkPosted:
		if r.chunks++; r.chunks <= chunkSpans {
			r.writes[p.ChunkPosted.Token] = write{at: at, chunk: p.ChunkPosted.Chunk, to: e.Rank + ">" + p.ChunkPosted.To}
		}
	case *events.Event_ChunkCompleted:
		r.bytes += p.ChunkCompleted.Bytes
		f.written(r, p.ChunkCompleted.Token, at, "")
	case *events.Event_ChunkFailed:
		f.written(r, p.ChunkFailed.Token, at, p.ChunkFailed.Reason)
	case *events.Event_ChunkDrained:
		f.written(r, p.ChunkDrained.Token, at, "drained: "+p.ChunkDrained.How)
	case *events.Event_AbortReceived:
		if pair := e.Rank + ">" + p.AbortReceived.To; r.aborted[pair].IsZero() {
			r.aborted[pair] = at
		}
	case *events.Event_AckSent:
		pair := e.Rank + ">" + p.AckSent.To
		if from := r.aborted[pair]; !from.IsZero() && !p.AckSent.Repeat {
			delete(r.aborted, pair)
			f.child(r, "drain", "drain "+pair+" "+from.String(), f.send(r), from, at, "", attribute.String("pdlog.pair", pair), attribute.String("pdlog.proof", word(p.AckSent.Proof)))
		}
	case *events.Event_RoomSucceeded:
		f.sent(r, at)
	case *events.Event_RoomFailed:
		r.failed = word(p.RoomFailed.Cause)
		f.sent(r, at)
	case *events.Event_RoomCleared:
		delete(f.rooms, r.seq)
	}
}

// send is the id of the prefill's own span.
func (f *traceFold) send(r *tracedRoom) trace.SpanID { return spanID(f.node, f.logID, r.seq, "send") }

func (f *traceFold) sent(r *tracedRoom, at time.Time) {
	if r.over {
		return
	}
	r.over = true
	id, root, above := f.place(r)
	if r.decode == "" || r.decodeSeq == 0 { // no pdlog node on the other side: this is all there is of the room
		root = above
	}
	f.emit(span{
		name: "send", trace: id, id: f.send(r), parent: root, from: r.opened, to: at, failed: r.failed,
		attrs: r.attrs(attribute.Int("pdlog.writes", r.chunks), attribute.Int64("pdlog.bytes", int64(r.bytes)), attribute.String("pdlog.decode_node", r.decode)), //nolint:gosec // bytes
	})
}

func (f *traceFold) written(r *tracedRoom, token uint64, at time.Time, failed string) {
	w, ok := r.writes[token]
	if !ok {
		return
	}
	delete(r.writes, token)
	f.child(r, "write", "write "+formatRoom(token), f.send(r), w.at, at, failed,
		attribute.Int64("pdlog.chunk", int64(w.chunk)), attribute.String("pdlog.pair", w.to))
}
