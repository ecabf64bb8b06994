package mirror

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/cockroachdb/errors"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/pdlog/pdlog/store"
)

// ensureStream finds the stream or creates it. A stream that exists keeps its
// settings: they are the operator's.
func (m *Mirror) ensureStream(ctx context.Context, js jetstream.JetStream, name, subjects string) (jetstream.Stream, error) {
	s, err := js.Stream(ctx, name)
	if errors.Is(err, jetstream.ErrStreamNotFound) {
		s, err = js.CreateStream(ctx, jetstream.StreamConfig{
			Name:     name,
			Subjects: []string{subjects},
			Storage:  jetstream.FileStorage,
			Discard:  jetstream.DiscardNew, // a full stream says so; DiscardOld loses silently (store.md 4.3)
			Replicas: m.opts.Replicas,
		})
		if errors.Is(err, jetstream.ErrStreamNameAlreadyInUse) { // another node was first
			s, err = js.Stream(ctx, name)
		}
	}
	if err != nil {
		return nil, errors.Wrapf(err, "stream %s", name)
	}
	if c := s.CachedInfo().Config; c.Discard != jetstream.DiscardNew || c.Storage != jetstream.FileStorage {
		m.notice(NoticeStream, fmt.Sprintf("stream %s has discard policy %s and storage %s: it may lose messages", name, c.Discard, c.Storage))
	}
	return s, nil
}

// publish sends one message that must follow the message at stream sequence
// after among those that match filter, and waits for the acknowledgement.
func (m *Mirror) publish(ctx context.Context, js jetstream.JetStream, stream string, msg *nats.Msg, id, filter string, after uint64) (uint64, error) {
	ctx, cancel := context.WithTimeout(ctx, m.opts.PublishTimeout)
	defer cancel()
	ack, err := js.PublishMsg(ctx, msg, jetstream.WithMsgID(id), jetstream.WithExpectLastSequenceForSubject(after, filter))
	if err != nil {
		var api *jetstream.APIError
		if errors.As(err, &api) && (api.ErrorCode == jetstream.JSErrCodeStreamWrongLastSequence ||
			api.ErrorCode == jetstream.JSErrCodeStreamWrongLastSequenceConstant) {
			return 0, errors.Wrapf(errConflict, "%s: %v", id, err)
		}
		m.noteFull(stream, err)
		return 0, errors.Wrapf(err, "publish %s", id)
	}
	m.noteFull(stream, nil)
	if ack.Duplicate {
		return 0, errors.Wrapf(errDuplicate, "%s", id)
	}
	return ack.Sequence, nil
}

// noteFull tells, once each, that a stream takes nothing more for want of room
// and that it does again.
func (m *Mirror) noteFull(stream string, err error) {
	full := &m.full[0]
	if stream == StreamAudit {
		full = &m.full[1]
	}
	if err == nil {
		if full.CompareAndSwap(true, false) {
			m.notice(NoticeCaughtUp, fmt.Sprintf("stream %s takes messages again", stream))
		}
		return
	}
	var api *jetstream.APIError
	if errors.As(err, &api) && slices.Contains(fullCodes, api.ErrorCode) && full.CompareAndSwap(false, true) {
		m.notice(NoticeFull, fmt.Sprintf("stream %s takes nothing more: %s; the log keeps what is not mirrored", stream, api.Description))
	}
}

// fullCodes are the server's ways to say that there is no room: limits of the
// account and the server, and what the stream's store says (its own limits, the
// disk).
var fullCodes = []jetstream.ErrorCode{10002, 10023, 10028, 10047, 10077}

// findLast gives the last message that matches filter, nil if there is none.
func findLast(ctx context.Context, s jetstream.Stream, filter string) (*jetstream.RawStreamMsg, error) {
	msg, err := ask(ctx, func(ctx context.Context) (*jetstream.RawStreamMsg, error) { return s.GetLastMsgForSubject(ctx, filter) })
	if errors.Is(err, jetstream.ErrMsgNotFound) {
		return nil, nil
	}
	return msg, errors.Wrapf(err, "read back the last message of %s", filter)
}

// unchanged checks that the last message that matches filter is still the one
// at stream sequence want: a stream that was deleted while nothing happened is
// noticed and written again.
func (m *Mirror) unchanged(ctx context.Context, js jetstream.JetStream, stream, filter string, want uint64) error {
	s, err := ask(ctx, func(ctx context.Context) (jetstream.Stream, error) { return js.Stream(ctx, stream) })
	if err != nil {
		return errors.Wrapf(err, "stream %s", stream)
	}
	last, err := findLast(ctx, s, filter)
	if err != nil {
		return err
	}
	have := uint64(0)
	if last != nil {
		have = last.Sequence
	}
	if have != want {
		return errors.Wrapf(errConflict, "the last message of %s is %d, want %d", filter, have, want)
	}
	return nil
}

// findLastOf gives the headers of the last message of one log among those that
// match filter, nil if there is none. It walks the subject: it is for the rare
// case that another log of the same node name was mirrored last.
func findLastOf(ctx context.Context, js jetstream.JetStream, stream, filter string, upTo uint64, id store.LogID) (nats.Header, error) {
	var found nats.Header
	err := walk(ctx, js, stream, filter, upTo, true, func(msg jetstream.Msg, _ uint64) error {
		if msg.Headers().Get(HeaderLogID) == id.String() {
			found = msg.Headers()
		}
		return nil
	})
	return found, err
}

// walkPatience is how long the next message of a stream may take, a leader's
// election and a replica's catching up included.
const walkPatience = 30 * time.Second

// walk calls visit with every message that matches filter up to stream
// sequence upTo, which matches, in order, holding a bounded number of them.
func walk(ctx context.Context, js jetstream.JetStream, stream, filter string, upTo uint64, headersOnly bool, visit func(jetstream.Msg, uint64) error) error {
	c, err := ask(ctx, func(ctx context.Context) (jetstream.Consumer, error) {
		return js.OrderedConsumer(ctx, stream, jetstream.OrderedConsumerConfig{FilterSubjects: []string{filter}, HeadersOnly: headersOnly})
	})
	if err != nil {
		return errors.Wrapf(err, "read stream %s", stream)
	}
	const ahead = 16 // messages of up to 512 KiB
	it, err := c.Messages(jetstream.PullMaxMessages(ahead))
	if err != nil {
		return errors.Wrapf(err, "read stream %s", stream)
	}
	defer it.Stop()
	stop := context.AfterFunc(ctx, it.Stop)
	defer stop()
	for {
		msg, err := it.Next(jetstream.NextMaxWait(walkPatience))
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if errors.Is(err, nats.ErrTimeout) {
			return errors.Newf("read stream %s: message %d did not come within %v", stream, upTo, walkPatience)
		}
		if err != nil {
			return errors.Wrapf(err, "read stream %s", stream)
		}
		meta, err := msg.Metadata()
		if err != nil {
			return errors.Wrapf(err, "read stream %s", stream)
		}
		if err := visit(msg, meta.Sequence.Stream); err != nil {
			return err
		}
		if meta.Sequence.Stream >= upTo { // not NumPending: a replica that catches up knows no better
			return nil
		}
	}
}
