package node

import (
	"context"
	"sync"

	"connectrpc.com/connect"
	"github.com/cockroachdb/errors"

	"github.com/pdlog/pdlog/node/enginepb"
	"github.com/pdlog/pdlog/projector"
)

// chunk makes the loop's task of a chunk.
func (e *engine) chunk(q *enginepb.SendChunkRequest) (task, error) {
	n := e.n
	switch {
	case n.post == nil:
		return task{}, refuse("bad_request", "this is a decode node")
	case int(q.Rank) >= n.cfg.Ranks:
		return task{}, refuse("bad_request", "rank %d of %d", q.Rank, n.cfg.Ranks)
	}
	cmd := projector.SendChunk{
		Room: q.Room, RoomSeq: q.RoomSeq, Rank: projector.MakeRank(n.cfg.Node, int(q.Rank)), Chunk: q.Chunk,
		Pages: q.Pages, First: q.First, Count: q.Count, SourcePages: q.SourcePages, Last: q.Last,
	}
	for _, to := range q.To {
		cmd.To = append(cmd.To, projector.RankID(to))
	}
	if m := n.memory.rank(int(q.Rank)); m != nil {
		cmd.Bytes = uint64(max(len(q.Pages), int(q.Count))) * m.pageBytes
	}
	if q.Last {
		cmd.SourceAux = q.SourceAux
	}
	if len(q.After) > 0 {
		n.gate.used.Store(true)
	}
	if !n.gate.used.Load() {
		return task{cmd: cmd}, nil
	}
	return task{build: func(m *projector.Machine) ([]projector.Command, *projector.Refusal) {
		return n.gate.take(m, cmd, q.After)
	}}, nil
}

// SendChunk posts a chunk. It is answered when it is decided: its write does
// not wait for the disk either.
func (e *engine) SendChunk(ctx context.Context, req *connect.Request[enginepb.SendChunkRequest]) (*connect.Response[enginepb.Done], error) {
	t, err := e.chunk(req.Msg)
	if err != nil {
		return nil, err
	}
	r, err := e.n.loop.ask(ctx, t)
	if err != nil {
		return nil, apiError(err)
	}
	return connect.NewResponse(&enginepb.Done{RoomSeq: r.RoomSeq}), nil
}

// chunksAhead is how many chunks of one stream may be undecided or unanswered:
// an engine that does not read its answers is not read from either.
const chunksAhead = 4096

// chunkStream is one SendChunks call.
type chunkStream struct {
	slots chan struct{}
	wake  chan struct{}

	mu      sync.Mutex
	taken   uint64
	refused []*enginepb.ChunkRefused
}

func (s *chunkStream) decided(index, room uint64, no *projector.Refusal) {
	s.mu.Lock()
	s.taken++
	if no != nil {
		s.refused = append(s.refused, &enginepb.ChunkRefused{Index: index, Room: room, Refusal: &enginepb.Refusal{Word: no.Word, Detail: no.Detail}})
	}
	s.mu.Unlock()
	select {
	case s.wake <- struct{}{}:
	default:
	}
}

func (s *chunkStream) answer() *enginepb.SendChunksResponse {
	s.mu.Lock()
	defer s.mu.Unlock()
	out := &enginepb.SendChunksResponse{Taken: s.taken, Refused: s.refused}
	s.refused = nil
	return out
}

// SendChunks posts chunks in a row.
func (e *engine) SendChunks(ctx context.Context, stream *connect.BidiStream[enginepb.SendChunksRequest, enginepb.SendChunksResponse]) error {
	s := &chunkStream{slots: make(chan struct{}, chunksAhead), wake: make(chan struct{}, 1)}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var sent uint64 // chunks received; the reader's own until ended is closed
	ended := make(chan error, 1)
	go func() {
		var err error
		sent, err = e.receiveChunks(ctx, stream, s)
		ended <- err
	}()
	var answered, total uint64
	over := false
	for !over || answered < total {
		select {
		case <-s.wake:
			a := s.answer()
			if err := stream.Send(a); err != nil {
				cancel()
				if !over {
					late := <-ended
					e.n.log.Debug("chunk stream cut off", "err", late)
				}
				return err
			}
			for ; answered < a.Taken; answered++ {
				<-s.slots
			}
		case err := <-ended:
			if err != nil {
				return err
			}
			over, total = true, sent
		case <-e.n.loop.done:
			cancel()
			return connect.NewError(connect.CodeUnavailable, ErrStopped)
		}
	}
	return nil
}

// receiveChunks hands a stream's chunks to the loop until the stream ends.
func (e *engine) receiveChunks(ctx context.Context, stream *connect.BidiStream[enginepb.SendChunksRequest, enginepb.SendChunksResponse], s *chunkStream) (sent uint64, err error) {
	for {
		batch, err := stream.Receive()
		if err != nil {
			return sent, endOf(err)
		}
		for _, q := range batch.Chunks {
			select {
			case s.slots <- struct{}{}:
			case <-ctx.Done():
				return sent, ctx.Err()
			}
			index, room := sent, q.Room
			sent++
			t, err := e.chunk(q)
			if err != nil {
				s.decided(index, room, refusalOf(err))
				continue
			}
			t.result = func(r projector.Result) { s.decided(index, room, r.Refused) }
			if err := e.n.loop.submit(t); err != nil {
				return sent, apiError(err)
			}
		}
	}
}

// Signal moves timelines.
func (e *engine) Signal(ctx context.Context, req *connect.Request[enginepb.SignalRequest]) (*connect.Response[enginepb.SignalResponse], error) {
	if e.n.post == nil {
		return nil, refuse("bad_request", "this is a decode node")
	}
	out := &enginepb.SignalResponse{}
	_, err := e.n.loop.ask(ctx, task{build: func(*projector.Machine) ([]projector.Command, *projector.Refusal) {
		cmds, no := e.n.gate.signal(req.Msg.Points)
		out.Released = uint64(len(cmds))
		return cmds, no
	}})
	var no *projector.Refusal // of one of the chunks: it is on the log
	if err != nil && (!errors.As(err, &no) || out.Released == 0) {
		return nil, apiError(err)
	}
	return connect.NewResponse(out), nil
}

// dropChunks gives up what waits in a room that has ended, 0: in every room.
func (n *Node) dropChunks(roomSeq uint64) {
	if n.gate.used.Load() {
		_ = n.loop.submit(task{build: func(*projector.Machine) ([]projector.Command, *projector.Refusal) { return n.gate.drop(roomSeq), nil }})
	}
}
