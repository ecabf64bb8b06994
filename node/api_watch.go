package node

import (
	"context"
	"io"

	"connectrpc.com/connect"
	"github.com/cockroachdb/errors"

	"github.com/pdlog/pdlog/node/enginepb"
	"github.com/pdlog/pdlog/projector"
)

// endOf is nil for the ordinary end of a stream.
func endOf(err error) error {
	if errors.Is(err, io.EOF) {
		return nil
	}
	return err
}

// refusalOf gives the refusal of an error of ours.
func refusalOf(err error) *projector.Refusal {
	var no *projector.Refusal
	if errors.As(err, &no) {
		return no
	}
	return &projector.Refusal{Word: "bad_request", Detail: err.Error()}
}

// Watch streams what the node tells its engine.
func (e *engine) Watch(ctx context.Context, req *connect.Request[enginepb.WatchRequest], stream *connect.ServerStream[enginepb.Notice]) error {
	s := &subscriber{ch: make(chan *enginepb.Notice, watchBuffer)}
	n := e.n
	n.engineCame()
	after := req.Msg.AfterSeq
	if after == 0 {
		after = n.acknowledged.Load()
	}
	// The past is taken in the loop and given in the outbox, behind everything
	// it rests on, but for what waits there for a revocation.
	err := n.loop.submit(task{look: func(m *projector.Machine, seq uint64) {
		past := pastOf(m, after)
		n.out.call(seq, 0, func() {
			past := notYetTold(past, n.out.apart.untold())
			if n.engineWrites != nil {
				past = append(past, n.engineWrites.again()...)
			}
			n.hub.join(s, past)
		})
	}})
	if err != nil {
		return apiError(err)
	}
	defer n.hub.leave(s)
	// An answer that has begun tells the client that it is connected.
	stream.ResponseHeader().Set("Pdlog-Node", n.cfg.Node)
	for {
		select {
		case m, ok := <-s.ch:
			if !ok {
				return connect.NewError(connect.CodeUnavailable, errors.New("the stream has ended: watch again"))
			}
			if err := stream.Send(m); err != nil {
				return err
			}
		case <-ctx.Done():
			return ctx.Err()
		case <-n.loop.done:
			return e.rest(s, stream)
		}
	}
}

// rest sends what a stream was told before the node ended.
func (e *engine) rest(s *subscriber, stream *connect.ServerStream[enginepb.Notice]) error {
	for {
		select {
		case m, ok := <-s.ch:
			if !ok {
				return nil
			}
			if err := stream.Send(m); err != nil {
				return err
			}
		case <-e.n.life.Done():
			return nil
		}
	}
}

// Acknowledge notes how far the engine has dealt with what it was told.
func (e *engine) Acknowledge(_ context.Context, req *connect.Request[enginepb.AcknowledgeRequest]) (*connect.Response[enginepb.AcknowledgeResponse], error) {
	seq := req.Msg.Seq
	if last := e.n.store.Durable(); seq > last {
		return nil, refuse("bad_request", "nothing above sequence %d was told, %d is acknowledged", last, seq)
	}
	for {
		have := e.n.acknowledged.Load()
		if seq <= have || e.n.acknowledged.CompareAndSwap(have, seq) {
			return connect.NewResponse(&enginepb.AcknowledgeResponse{}), nil
		}
	}
}

// pollMax bounds the rooms of one Poll: the loop answers them in one go.
const pollMax = 4096

// Poll says how rooms do.
func (e *engine) Poll(_ context.Context, req *connect.Request[enginepb.PollRequest]) (*connect.Response[enginepb.PollResponse], error) {
	rooms := req.Msg.Rooms
	if len(rooms) > pollMax {
		return nil, refuse("bad_request", "%d rooms in one call, at most %d", len(rooms), pollMax)
	}
	out := &enginepb.PollResponse{Rooms: make([]*enginepb.RoomState, 0, len(rooms))}
	err := e.n.loop.see(func(m *projector.Machine, _ uint64) {
		for _, room := range rooms {
			out.Rooms = append(out.Rooms, roomState(m, room, e.n.out.untold))
		}
	})
	if err != nil {
		return nil, apiError(err)
	}
	return connect.NewResponse(out), nil
}

var pollWords = map[string]enginepb.RoomState_Poll{
	"bootstrapping": enginepb.RoomState_POLL_BOOTSTRAPPING,
	"waiting":       enginepb.RoomState_POLL_WAITING_FOR_INPUT,
	"transferring":  enginepb.RoomState_POLL_TRANSFERRING,
	"succeeded":     enginepb.RoomState_POLL_SUCCESS,
	"failed":        enginepb.RoomState_POLL_FAILED,
	"held":          enginepb.RoomState_POLL_FAILED,
	"quarantined":   enginepb.RoomState_POLL_FAILED,
	"unknown":       enginepb.RoomState_POLL_UNKNOWN,
}

// roomState is a room in SGLang's terms. On decode a published room transfers,
// whether something has landed yet or not. An end that is decided and not told
// to the engine yet (not on disk, or its keys are not taken back) is not said
// here either.
func roomState(m *projector.Machine, room uint64, told func(roomSeq uint64) untold) *enginepb.RoomState {
	v := m.RoomView(room)
	out := endOfRoom(m, &v)
	u := told(v.RoomSeq)
	if u.release {
		out.PagesFree, out.Basis, out.Unsafe = false, "", false
	}
	if u.outcome {
		out.Poll, out.Cause, out.Reason = enginepb.RoomState_POLL_TRANSFERRING, "", ""
	}
	return out
}

func endOfRoom(m *projector.Machine, v *projector.RoomView) *enginepb.RoomState {
	room := v.Room
	out := &enginepb.RoomState{Room: room, RoomSeq: v.RoomSeq, Cause: v.Cause, Reason: v.Reason, Basis: v.Basis, Unsafe: v.Unsafe}
	st := m.State()
	switch p := st.PRooms[v.RoomSeq]; {
	case v.State == "released":
		out.PagesFree = true
		out.Poll = enginepb.RoomState_POLL_SUCCESS
		if v.Cause != "" {
			out.Poll = enginepb.RoomState_POLL_FAILED
		}
		return out
	case v.State == "waiting" && st.Rooms[v.RoomSeq] != nil:
		out.Poll = enginepb.RoomState_POLL_TRANSFERRING
		return out
	case p != nil:
		out.PagesFree = p.SourceFree
	case st.Receipts[room] != nil: // cleared: its writes have ended
		out.PagesFree = true
	}
	out.Poll = pollWords[v.State]
	return out
}
