package mirror

import (
	"bytes"
	"context"
	"fmt"
	"strconv"
	"sync"
	"time"

	"github.com/cockroachdb/errors"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/pdlog/pdlog/events"
	"github.com/pdlog/pdlog/store"
)

// IsMilestone says which events go to the audit stream (store.md 6.5).
func IsMilestone(e *events.Event) bool {
	switch e.Payload.(type) {
	case *events.Event_AbortArmed, *events.Event_Released, *events.Event_Fenced, *events.Event_FenceFailed,
		*events.Event_Quarantined, *events.Event_AckTimedOut, *events.Event_LateWriteRejected,
		*events.Event_PageCheckFailed, *events.Event_NodeStarted, *events.Event_NodeStopped, *events.Event_PeerLost:
		return true
	default:
		return false
	}
}

// milestoneTypes are theirs: the rest of a frame need not be decoded.
var milestoneTypes = sync.OnceValue(func() map[events.Type]bool { return events.TypesOf(IsMilestone) })

// auditLane publishes milestones, one a message, behind the log lane.
type auditLane struct {
	m     *Mirror
	js    jetstream.JetStream
	salt  int
	after uint64 // stream sequence of the node's last milestone, 0 = none
	next  uint64 // first sequence to look at; 0 = nothing was looked at yet
	sent  uint64 // record of the last milestone that was acknowledged here
}

func (l *auditLane) filter() string {
	return prefixAudit + token(l.m.opts.Cluster) + "." + token(l.m.opts.Node) + ".>"
}

func (l *auditLane) session(ctx context.Context) (done bool, err error) {
	if err := l.waitForLog(ctx); err != nil {
		return false, err
	}
	if err := l.resume(ctx); err != nil {
		return false, err
	}
	idle := time.NewTicker(l.m.opts.CheckEvery)
	defer idle.Stop()
	for {
		moved := l.m.moved()
		mirrored := l.m.mirrored.Load()
		if l.next > mirrored && l.m.audited.Load() != l.next-1 {
			l.m.moveAudit(l.next - 1)
			continue
		}
		for l.next <= mirrored {
			frames, err := l.m.opts.Log.ReadFrames(l.next, messageBytes)
			if err != nil {
				return done, errors.Wrap(err, "read log for the audit stream")
			}
			if len(frames) == 0 {
				break
			}
			for _, f := range frames {
				if f.Info.FirstSeq > mirrored { // its log message comes first
					break
				}
				milestone := func(h events.Head) bool { return h.Seq >= l.next && milestoneTypes()[h.Type] }
				_, err := events.DecodeFrameIf(f.Data, l.m.opts.Node, milestone, func(e *events.Event) error {
					if e.Seq < l.next || !IsMilestone(e) {
						return nil
					}
					done = true
					return l.send(ctx, e)
				})
				if err != nil {
					if errors.Is(err, errDuplicate) {
						l.salt++
					}
					return done, err
				}
				l.next = f.Info.LastSeq + 1
			}
			l.m.moveAudit(l.next - 1)
			mirrored = l.m.mirrored.Load()
			moved = l.m.moved()
		}
		if l.next <= l.m.mirrored.Load() {
			continue
		}
		select {
		case <-moved:
		case <-idle.C:
			if err := l.m.unchanged(ctx, l.js, StreamAudit, l.filter(), l.after); err != nil {
				return done, err
			}
		case <-ctx.Done():
			return done, ctx.Err()
		}
	}
}

// waitForLog waits until the log lane knows where it stands.
func (l *auditLane) waitForLog(ctx context.Context) error {
	for {
		l.m.mu.Lock()
		synced, ch := l.m.synced, l.m.progress
		l.m.mu.Unlock()
		if synced {
			return nil
		}
		select {
		case <-ch:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

func (l *auditLane) resume(ctx context.Context) error {
	s, err := l.m.ensureStream(ctx, l.js, StreamAudit, prefixAudit+">")
	if err != nil {
		return err
	}
	last, err := findLast(ctx, s, l.filter())
	if err != nil {
		return err
	}
	log := l.m.opts.Log
	l.after = 0
	if last == nil {
		l.start(0, false)
		return nil
	}
	l.after = last.Sequence
	header := last.Header
	if header.Get(HeaderLogID) != log.LogID().String() {
		if header, err = findLastOf(ctx, l.js, StreamAudit, l.filter(), last.Sequence, log.LogID()); err != nil {
			return err
		}
		if header == nil {
			l.start(0, false)
			return nil
		}
	}
	p := headParser{h: header}
	seq := p.uint(HeaderSeq, 10, 64)
	if p.err != nil {
		return errors.Wrapf(ErrMirrorDiverged, "message %d of %s: headers: %v", last.Sequence, StreamAudit, p.err)
	}
	if durable := log.Durable(); seq > durable {
		return errors.Wrapf(ErrMirrorAhead, "the audit stream has record %d of log %s, the log ends at %d: acknowledged events are missing here",
			seq, log.LogID(), durable)
	}
	l.start(seq, true)
	return nil
}

// start goes on behind record seq, the last of this log's on the stream (any says
// whether there is one), and says what the stream has lost, and what of that the
// log does not keep any more. Milestones are rare: of a start that finds some
// nobody can tell how far the life before had looked.
func (l *auditLane) start(seq uint64, any bool) {
	first, looked := l.m.opts.Log.First(), l.next
	from := seq + 1
	switch {
	case l.sent > seq:
		l.m.notice(NoticeLost, fmt.Sprintf("stream %s ends at the milestone of record %d of this log, it had acknowledged that of %d: what it lost is published again",
			StreamAudit, seq, l.sent))
		l.sent = seq
	case looked > 0:
		from = max(from, looked)
	}
	if from < first && (looked > 0 || !any) {
		l.m.notice(NoticeHole, fmt.Sprintf("milestones among the records %d to %d are not on stream %s, and the log does not keep them any more", from, first-1, StreamAudit))
	}
	l.next = max(seq+1, first)
}

func (l *auditLane) send(ctx context.Context, e *events.Event) error {
	id := e.Node + "/" + strconv.FormatUint(e.Seq, 10)
	msg := auditMessage(l.m.opts.Cluster, l.m.opts.Log.LogID(), e)
	if l.salt > 0 {
		id = fmt.Sprintf("%s;%d", id, l.salt)
	}
	seq, err := l.m.publish(ctx, l.js, StreamAudit, msg, id, l.filter(), l.after)
	if err != nil {
		return err
	}
	l.after, l.next, l.sent = seq, e.Seq+1, e.Seq
	return nil
}

// auditMessage is a milestone as a CloudEvent in binary mode (docs/asyncapi.yaml).
func auditMessage(cluster string, log store.LogID, e *events.Event) *nats.Msg {
	seq := strconv.FormatUint(e.Seq, 10)
	return &nats.Msg{
		Subject: SubjectAudit(cluster, e.Node, e.TypeName()),
		Header: nats.Header{
			"ce-specversion":  {"1.0"},
			"ce-id":           {e.Node + "/" + seq},
			"ce-source":       {"/pdlog/" + token(cluster) + "/" + token(e.Node)},
			"ce-type":         {"pdlog.events.v1." + e.TypeName()},
			"ce-time":         {e.Time().Format(time.RFC3339Nano)},
			headerContentType: {AuditContentType},
			HeaderNode:        {e.Node},
			HeaderLogID:       {log.String()},
			HeaderSeq:         {seq},
		},
		Data: appendAuditJSON(nil, e),
	}
}

// appendAuditJSON is events.AppendJSON with the room number as a string: rooms
// are 63-bit and JavaScript rounds such numbers (store.md 3). `,"room":` is
// only ever a key there: inside a string its quotes would be escaped.
func appendAuditJSON(b []byte, e *events.Event) []byte {
	key := []byte(`,"room":`)
	rest := events.AppendJSON(nil, e)
	for {
		i := bytes.Index(rest, key)
		if i < 0 {
			return append(b, rest...)
		}
		i += len(key)
		end := i
		for end < len(rest) && rest[end] >= '0' && rest[end] <= '9' {
			end++
		}
		b = append(b, rest[:i]...)
		if end > i {
			b = append(append(append(b, '"'), rest[i:end]...), '"')
		}
		rest = rest[end:]
	}
}
