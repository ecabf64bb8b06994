package node

import (
	"context"
	"log/slog"
	"math"
	"net/http"
	"net/http/pprof"
	"slices"
	"time"

	"connectrpc.com/connect"
	"connectrpc.com/grpchealth"
	"connectrpc.com/grpcreflect"
	"github.com/cockroachdb/errors"

	"github.com/pdlog/pdlog/node/callserver"
	"github.com/pdlog/pdlog/node/enginepb"
	"github.com/pdlog/pdlog/projector"
)

// compressFrom is the size of a message, bytes, from which it is compressed. An
// engine is on the same host: a short message costs less to send than to pack.
const compressFrom = 256 << 10

// engine answers the engine API. It is thin: a call becomes a command, and is
// answered when what it decided is on disk.
type engine struct {
	n *Node
}

var _ enginepb.EngineHandler = (*engine)(nil)

// engineServer serves the engine API, health and the status page on the unix
// socket. HTTP/2 comes without TLS there, for gRPC clients; calls with one
// message each way are served by the goroutine of their connection.
func (n *Node) engineServer() *callserver.Server {
	var p http.Protocols
	p.SetHTTP1(true)
	p.SetUnencryptedHTTP2(true)
	return callserver.New(&http.Server{
		Handler: n.engineHandler(), Protocols: &p, ReadHeaderTimeout: 5 * time.Second, ConnContext: withPassed,
		ErrorLog: slog.NewLogLogger(n.log.Handler(), slog.LevelDebug),
	}, isCall)
}

// calls are the paths of the engine API's calls with one message each way.
var calls = func() map[string]bool {
	out := map[string]bool{}
	s := enginepb.File_engine_proto.Services().ByName("Engine")
	for i := range s.Methods().Len() {
		if m := s.Methods().Get(i); !m.IsStreamingClient() && !m.IsStreamingServer() {
			out["/"+string(s.FullName())+"/"+string(m.Name())] = true
		}
	}
	return out
}()

func isCall(path []byte) bool { return calls[string(path)] }

// engineHandler is everything that is served to an engine and to operators:
// the API, gRPC's health and reflection services, probes, metrics, profiles.
func (n *Node) engineHandler() http.Handler {
	mux := http.NewServeMux()
	mux.Handle(enginepb.NewEngineHandler(&engine{n: n}, connect.WithReadMaxBytes(n.cfg.Limits.MessageBytes), connect.WithCompressMinBytes(compressFrom)))
	mux.Handle(grpchealth.NewHandler(serving{n}))
	services := grpcreflect.NewStaticReflector(enginepb.EngineName, grpchealth.HealthV1ServiceName)
	mux.Handle(grpcreflect.NewHandlerV1(services))
	mux.Handle(grpcreflect.NewHandlerV1Alpha(services))
	n.healthRoutes(mux)
	n.pageRoutes(mux)
	mux.Handle("GET /metrics", n.metricsHandler())
	mux.HandleFunc("GET /debug/pprof/", pprof.Index)
	mux.HandleFunc("GET /debug/pprof/profile", pprof.Profile)
	mux.HandleFunc("GET /debug/pprof/trace", pprof.Trace)
	mux.HandleFunc("GET /debug/pprof/symbol", pprof.Symbol)
	return mux
}

// serving answers gRPC's health service: the node as a whole ("") and the
// engine API are in service while the node takes rooms.
type serving struct{ n *Node }

// Check implements grpchealth.Checker.
func (s serving) Check(_ context.Context, req *grpchealth.CheckRequest) (*grpchealth.CheckResponse, error) {
	if req.Service != "" && req.Service != enginepb.EngineName {
		return nil, connect.NewError(connect.CodeNotFound, errors.Newf("service %q is not served here", req.Service))
	}
	if !s.n.status().Ready {
		return &grpchealth.CheckResponse{Status: grpchealth.StatusNotServing}, nil
	}
	return &grpchealth.CheckResponse{Status: grpchealth.StatusServing}, nil
}

// do runs one command and answers with the room it was about.
func (e *engine) do(ctx context.Context, cmd projector.Command) (*connect.Response[enginepb.Done], error) {
	r, err := e.n.loop.ask(ctx, task{cmd: cmd, durable: true})
	if err != nil {
		return nil, apiError(err)
	}
	return connect.NewResponse(&enginepb.Done{RoomSeq: r.RoomSeq}), nil
}

// apiError gives a refusal its code and its words.
func apiError(err error) error {
	var no *projector.Refusal
	switch {
	case errors.As(err, &no):
		code := connect.CodeFailedPrecondition
		switch no.Word {
		case "bad_request":
			code = connect.CodeInvalidArgument
		case "unknown_room":
			code = connect.CodeNotFound
		case "limit":
			code = connect.CodeResourceExhausted
		}
		e := connect.NewError(code, no)
		if d, derr := connect.NewErrorDetail(&enginepb.Refusal{Word: no.Word, Detail: no.Detail}); derr == nil {
			e.AddDetail(d)
		}
		return e
	case errors.Is(err, ErrStopped):
		return connect.NewError(connect.CodeUnavailable, err)
	case errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded):
		return connect.NewError(connect.CodeDeadlineExceeded, err)
	}
	return connect.NewError(connect.CodeInternal, err)
}

func refuse(word, format string, args ...any) error {
	return apiError(&projector.Refusal{Word: word, Detail: errors.Newf(format, args...).Error()})
}

// roomNumber refuses a room that no dialect can name: it would be opened and
// then neither published nor aborted on the wire.
func roomNumber(room uint64) error {
	if room > math.MaxInt64 {
		return refuse("bad_request", "room %d is above 2^63-1", room)
	}
	return nil
}

// OpenReceive opens a room on decode.
func (e *engine) OpenReceive(ctx context.Context, req *connect.Request[enginepb.OpenReceiveRequest]) (*connect.Response[enginepb.OpenReceiveResponse], error) {
	q := req.Msg
	if e.n.peers == nil {
		return nil, refuse("bad_request", "this is a prefill node")
	}
	if err := roomNumber(q.Room); err != nil {
		return nil, err
	}
	if !e.n.offered.Load() {
		return nil, refuse("not_ready", "the memory of %d local ranks is not registered yet", e.n.cfg.Ranks)
	}
	open := projector.OpenRoom{
		Room: q.Room, Pages: q.Pages, Aux: -1, Reserve: q.ReserveOnly, RequestID: q.RequestId, TraceID: q.TraceId,
		Timeout: q.TimeoutMs,
	}
	if q.Aux != nil {
		open.Aux = int(*q.Aux)
	}
	var err error
	if open.Pairs, err = e.n.pairs(ctx, q); err != nil {
		return nil, apiError(err)
	}
	r, err := e.n.loop.ask(ctx, task{durable: true, build: func(m *projector.Machine) ([]projector.Command, *projector.Refusal) {
		if !e.n.offered.Load() { // let go while this waited
			return nil, &projector.Refusal{Word: "not_ready", Detail: "memory is not registered"}
		}
		if len(open.Pages) == 0 && q.Count > 0 {
			var no *projector.Refusal
			if open.Pages, no = e.n.freePages(m, int(q.Count)); no != nil {
				return nil, no
			}
		}
		return []projector.Command{open}, nil
	}})
	if err != nil {
		return nil, apiError(err)
	}
	return connect.NewResponse(&enginepb.OpenReceiveResponse{RoomSeq: r.RoomSeq, Pages: open.Pages, Aux: r.Aux}), nil
}

// freePages takes the first free pages of the pool. It runs in the loop.
func (n *Node) freePages(m *projector.Machine, count int) ([]uint32, *projector.Refusal) {
	if count > n.cfg.Pages {
		return nil, &projector.Refusal{Word: "pages_busy", Detail: "the room needs more pages than the pool has"}
	}
	out, ok := m.FreePages(count)
	if !ok {
		return nil, &projector.Refusal{Word: "pages_busy", Detail: "not enough free pages"}
	}
	return out, nil
}

// pairs finds out who writes to whom in a room.
func (n *Node) pairs(ctx context.Context, q *enginepb.OpenReceiveRequest) ([]projector.OpenPair, error) {
	if len(q.Pairs) > 0 {
		out := make([]projector.OpenPair, len(q.Pairs))
		for i, p := range q.Pairs {
			out[i] = projector.OpenPair{Rank: projector.RankID(p.Rank), To: projector.RankID(p.To), Dummy: p.Dummy, Required: p.Required}
		}
		return out, nil
	}
	name := q.Prefill
	if name == "" {
		only, ok := n.peers.only()
		if !ok {
			return nil, &projector.Refusal{Word: "bad_request", Detail: "prefill is not given and there is not just one"}
		}
		name = only
	}
	p, ok := n.peers.find(name)
	if !ok {
		return nil, &projector.Refusal{Word: "not_ready", Detail: "prefill " + name + " is not known yet"}
	}
	if why := p.seen.Incompatible; why != "" { // its ranks were not asked for
		return nil, &projector.Refusal{Word: "incompatible", Detail: name + ": " + why}
	}
	dp, err := n.groupOf(ctx, p, q.Room)
	if err != nil {
		return nil, &projector.Refusal{Word: "not_ready", Detail: err.Error()}
	}
	out, err := pairsOf(p.ranks, p.topology, dp, n.cfg.Node, n.cfg.Ranks)
	if err != nil {
		return nil, &projector.Refusal{Word: "incompatible", Detail: err.Error()}
	}
	return out, nil
}

// Publish publishes a reserved room.
func (e *engine) Publish(ctx context.Context, req *connect.Request[enginepb.RoomRequest]) (*connect.Response[enginepb.Done], error) {
	return e.do(ctx, projector.PublishRoom{Room: req.Msg.Room})
}

// Finish ends the use of a succeeded room.
func (e *engine) Finish(ctx context.Context, req *connect.Request[enginepb.RoomRequest]) (*connect.Response[enginepb.Done], error) {
	return e.do(ctx, projector.FinishRoom{Room: req.Msg.Room})
}

// ReportPage records wrong bytes.
func (e *engine) ReportPage(ctx context.Context, req *connect.Request[enginepb.ReportPageRequest]) (*connect.Response[enginepb.Done], error) {
	q := req.Msg
	return e.do(ctx, projector.PageReport{Room: q.Room, Page: q.Page, To: projector.RankID(q.To), Detail: q.Detail, PageOff: q.PageOff, PageLen: q.PageLen})
}

// OpenSend waits for a room's metadata on prefill.
func (e *engine) OpenSend(ctx context.Context, req *connect.Request[enginepb.OpenSendRequest]) (*connect.Response[enginepb.Done], error) {
	q := req.Msg
	if err := roomNumber(q.Room); err != nil {
		return nil, err
	}
	if e.n.cfg.Role == "prefill" {
		if err := e.n.sayGroup(q.Room); err != nil {
			return nil, refuse("bad_request", "%v", err)
		}
	}
	cmd := projector.AwaitRoom{Room: q.Room, RequestID: q.RequestId, TraceID: q.TraceId, Timeout: q.TimeoutMs}
	for _, r := range q.Ranks {
		cmd.Ranks = append(cmd.Ranks, projector.MakeRank(e.n.cfg.Node, int(r)))
	}
	return e.do(ctx, cmd)
}

// Clear forgets a room on prefill.
func (e *engine) Clear(ctx context.Context, req *connect.Request[enginepb.RoomRequest]) (*connect.Response[enginepb.Done], error) {
	return e.do(ctx, projector.ClearRoom{Room: req.Msg.Room})
}

// WriteDone ends a write that the engine made, or says that it cannot tell.
func (e *engine) WriteDone(ctx context.Context, req *connect.Request[enginepb.WriteDoneRequest]) (*connect.Response[enginepb.Done], error) {
	q := req.Msg
	outcome, ok := outcomes[q.Outcome]
	switch w := e.n.engineWrites; {
	case w == nil:
		return nil, refuse("bad_request", "this node asks no engine to write (rdma.engine_writes)")
	case !ok:
		return nil, refuse("bad_request", "outcome %d is none", q.Outcome)
	case outcome == projector.WriteUncertain && w.has(q.Token), outcome != projector.WriteUncertain && w.end(q.Token):
	default:
		return nil, refuse("bad_request", "write %d is not open", q.Token)
	}
	reason := q.Reason
	if reason == "" && outcome != projector.WriteCompleted {
		reason = "the engine's library gives no reason"
	}
	return e.do(ctx, projector.WriteDone{Token: q.Token, Outcome: outcome, Reason: reason})
}

// Destination gives a decode rank's registration to the engine that writes to
// it.
func (e *engine) Destination(_ context.Context, req *connect.Request[enginepb.DestinationRequest]) (*connect.Response[enginepb.DestinationResponse], error) {
	w := e.n.engineWrites
	if w == nil {
		return nil, refuse("bad_request", "this node asks no engine to write (rdma.engine_writes)")
	}
	f, ok := w.registration(req.Msg.Address)
	if !ok {
		return nil, refuse("not_ready", "%s has not registered in this life of the node", req.Msg.Address)
	}
	return connect.NewResponse(&enginepb.DestinationResponse{Frames: f}), nil
}

// Abort aborts a room.
func (e *engine) Abort(ctx context.Context, req *connect.Request[enginepb.AbortRequest]) (*connect.Response[enginepb.Done], error) {
	return e.do(ctx, projector.AbortRoom{Room: req.Msg.Room, Reason: req.Msg.Reason})
}

// Drain begins the graceful stop.
func (e *engine) Drain(_ context.Context, req *connect.Request[enginepb.DrainRequest]) (*connect.Response[enginepb.Done], error) {
	reason := req.Msg.Reason
	if reason == "" {
		reason = "drain"
	}
	const longest = 24 * time.Hour
	grace := min(time.Duration(min(req.Msg.GraceMs, uint64(longest.Milliseconds())))*time.Millisecond, longest) //nolint:gosec // bounded
	if err := e.n.Drain(grace, reason); err != nil {
		return nil, apiError(err)
	}
	return connect.NewResponse(&enginepb.Done{}), nil
}

// ForceRelease is the operator's unsafe release.
func (e *engine) ForceRelease(ctx context.Context, req *connect.Request[enginepb.RoomRequest]) (*connect.Response[enginepb.Done], error) {
	return e.do(ctx, projector.ForceRelease{Room: req.Msg.Room})
}

// Fence fences what one room still waits for, or a peer in every room that
// waits for it: other peers of these rooms may answer yet. It takes rooms
// that have failed: the writers of one that is open are at work, and an abort
// comes first.
func (e *engine) Fence(ctx context.Context, req *connect.Request[enginepb.FenceRequest]) (*connect.Response[enginepb.FenceResponse], error) {
	q := req.Msg
	var rooms []uint64
	known, found := false, false
	err := e.n.loop.see(func(m *projector.Machine, _ uint64) {
		for _, p := range m.PeerViews() {
			known = known || p.Node == q.Peer || slices.ContainsFunc(p.Ranks, func(r projector.PeerRank) bool { return string(r.Rank) == q.Peer })
		}
		for _, v := range m.RoomViews() {
			found = found || v.Room == q.Room
			switch {
			case v.State != "held" && v.State != "quarantined":
			case q.Peer == "" && v.Room == q.Room:
				rooms = []uint64{q.Room} // all uses of the number at once
			case slices.ContainsFunc(v.Missing, func(r projector.RankID) bool { return string(r) == q.Peer || r.Node() == q.Peer }):
				rooms = append(rooms, v.Room)
			}
		}
	})
	switch {
	case err != nil:
		return nil, apiError(err)
	case q.Peer == "" && !found:
		return nil, refuse("unknown_room", "room %d is none of this node's", q.Room)
	case q.Peer == "" && len(rooms) == 0:
		return nil, refuse("room_live", "room %d holds no pages of an abort: abort it first", q.Room)
	case q.Peer != "" && !known && len(rooms) == 0: // a typing mistake must not look like a fence
		return nil, refuse("bad_request", "no peer here is called %s", q.Peer)
	}
	var fenced uint64
	for _, room := range rooms {
		_, err := e.do(ctx, projector.FenceRoom{Room: room, Peer: q.Peer})
		if err == nil {
			fenced++
		} else if q.Peer == "" || connect.CodeOf(err) == connect.CodeUnavailable {
			return nil, err
		}
	}
	return connect.NewResponse(&enginepb.FenceResponse{Rooms: fenced}), nil
}
