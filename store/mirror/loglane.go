package mirror

import (
	"context"
	"fmt"
	"time"

	"github.com/cockroachdb/errors"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/pdlog/pdlog/store"
)

// logLane publishes the log's frames, stop and wait (store.md 4.4).
type logLane struct {
	m    *Mirror
	js   jetstream.JetStream
	salt int // makes a message id new where the server remembers one it no longer has

	after uint64 // stream sequence of the node's last message, 0 = none
	next  uint64 // first sequence to publish
	chain uint32 // chain before it
	other store.LogID
	sent  time.Time // when the last message was acknowledged
}

// pace waits until the last message is Options.Pace ago, if less than another full
// one waits. A node that is idle has waited already.
func (l *logLane) pace(ctx context.Context) error {
	wait := l.m.opts.Pace - time.Since(l.sent)
	if wait <= 0 || l.m.opts.Log.Durable() >= l.next+messageEvents {
		return nil
	}
	timer := time.NewTimer(wait)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// session reads back where the stream stands and publishes from there until
// something goes wrong. done says that something was published.
func (l *logLane) session(ctx context.Context) (done bool, err error) {
	if err := l.resume(ctx); err != nil {
		return false, err
	}
	idle := time.NewTicker(l.m.opts.CheckEvery)
	defer idle.Stop()
	for {
		if err := l.pace(ctx); err != nil {
			return done, err
		}
		changed := l.m.opts.Log.Changed()
		frames, err := l.m.opts.Log.ReadFrames(l.next, messageBytes)
		if err != nil {
			return done, errors.Wrap(err, "read log for the mirror")
		}
		for len(frames) > 0 {
			n := group(frames)
			if err := l.send(ctx, frames[:n]); err != nil {
				if errors.Is(err, errDuplicate) {
					l.salt++
				}
				return done, err
			}
			done, l.sent = true, time.Now()
			frames = frames[n:]
		}
		if l.next <= l.m.opts.Log.Durable() {
			continue
		}
		select {
		case <-changed:
		case <-idle.C:
			if err := l.m.unchanged(ctx, l.js, StreamLog, l.m.subject, l.after); err != nil {
				return done, err
			}
		case <-ctx.Done():
			return done, ctx.Err()
		}
	}
}

// group is how many of the frames go into the next message: those of one boot
// and incarnation within the limits, at least one.
func group(frames []store.Frame) int {
	size, count := 0, 0
	for i, f := range frames {
		size += len(f.Data)
		count += f.Info.Count
		if i > 0 && (size > messageBytes || count > messageEvents ||
			f.Info.Boot != frames[0].Info.Boot || f.Info.Incarnation != frames[0].Info.Incarnation) {
			return i
		}
	}
	return len(frames)
}

func (l *logLane) send(ctx context.Context, frames []store.Frame) error {
	first, last := frames[0].Info, frames[len(frames)-1].Info
	if first.FirstSeq != l.next || first.PrevChain != l.chain {
		return errors.Wrapf(ErrMirrorDiverged, "the log has a frame from %d with chain %08x, the mirror goes on at %d with %08x",
			first.FirstSeq, first.PrevChain, l.next, l.chain)
	}
	h := logHead{
		node: l.m.opts.Node, logID: l.m.opts.Log.LogID(),
		first: first.FirstSeq, last: last.LastSeq, chainBefore: first.PrevChain, chain: last.Chain,
		boot: first.Boot, incarnation: first.Incarnation,
	}
	msg := &nats.Msg{Subject: l.m.subject, Header: h.header()}
	for _, f := range frames {
		msg.Data = append(msg.Data, f.Data...)
	}
	id := fmt.Sprintf("%s/%d-%d", h.logID, h.first, h.last)
	if l.salt > 0 {
		id = fmt.Sprintf("%s;%d", id, l.salt)
	}
	seq, err := l.m.publish(ctx, l.js, StreamLog, msg, id, l.m.subject, l.after)
	if err != nil {
		return err
	}
	l.after, l.next, l.chain = seq, h.last+1, h.chain
	l.m.moveLog(h.last)
	return nil
}

// resume finds out what the stream has, which is the only mark there is.
func (l *logLane) resume(ctx context.Context) error {
	s, err := l.m.ensureStream(ctx, l.js, StreamLog, prefixLog+">")
	if err != nil {
		return err
	}
	last, err := findLast(ctx, s, l.m.subject)
	if err != nil {
		return err
	}
	l.after = 0
	if last == nil {
		return l.start(0, 0)
	}
	l.after = last.Sequence
	h, err := parseLogHead(last.Header)
	if err != nil {
		return errors.Wrapf(err, "message %d of %s", last.Sequence, StreamLog)
	}
	if id := l.m.opts.Log.LogID(); h.logID != id {
		// The node name had another log: it was wiped, or an old copy came
		// back. Whatever of this log is on the stream is not published again.
		if l.other != h.logID {
			l.other = h.logID
			l.m.notice(NoticeOtherLog, fmt.Sprintf("stream %s has log %s of this node up to record %d, this is log %s", StreamLog, h.logID, h.last, id))
		}
		header, err := findLastOf(ctx, l.js, StreamLog, l.m.subject, last.Sequence, id)
		if err != nil {
			return err
		}
		if header == nil {
			return l.start(0, 0)
		}
		if h, err = parseLogHead(header); err != nil {
			return err
		}
	}
	return l.start(h.last, h.chain)
}

// start goes on behind record last, after checking that the log has the same
// one.
func (l *logLane) start(last uint64, chain uint32) error {
	log := l.m.opts.Log
	if had := l.m.mirrored.Load(); had > last { // cases.md C-75, C-77
		l.m.notice(NoticeLost, fmt.Sprintf("stream %s ends at record %d of this log, it had acknowledged %d: what it lost is published again", StreamLog, last, had))
	}
	if durable := log.Durable(); last > durable {
		return errors.Wrapf(ErrMirrorAhead, "the stream has record %d of log %s, the log ends at %d: acknowledged events are missing here",
			last, log.LogID(), durable)
	}
	l.next, l.chain = last+1, chain
	first := log.First()
	switch {
	case last >= first && last > 0:
		frames, err := log.ReadFrames(last, 1)
		if err != nil {
			return errors.Wrap(err, "read log for the mirror")
		}
		if len(frames) == 0 || frames[0].Info.LastSeq != last || frames[0].Info.Chain != chain {
			return errors.Wrapf(ErrMirrorDiverged, "the stream ends at record %d with chain %08x, the log has no frame that ends so", last, chain)
		}
	case l.next < first:
		frames, err := log.ReadFrames(first, 1)
		if err != nil {
			return errors.Wrap(err, "read log for the mirror")
		}
		if len(frames) > 0 { // retention was faster than the mirror (store.md 6.8)
			l.m.notice(NoticeHole, fmt.Sprintf("records %d to %d are not on stream %s, and the log does not keep them any more", l.next, first-1, StreamLog))
			l.next, l.chain = first, frames[0].Info.PrevChain
		}
	}
	l.m.moveLog(l.next - 1)
	return nil
}
