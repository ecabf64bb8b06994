package node

import (
	"context"
	"encoding/hex"
	"os"
	"path/filepath"
	"strings"
	"time"

	"connectrpc.com/connect"
	"github.com/cockroachdb/errors"
	"github.com/google/renameio/v2"

	"github.com/pdlog/pdlog/backends"
	"github.com/pdlog/pdlog/events"
	"github.com/pdlog/pdlog/node/enginepb"
	"github.com/pdlog/pdlog/projector"
	"github.com/pdlog/pdlog/store"
)

// status is the node's answer to how it is.
func (n *Node) status() *enginepb.StatusResponse {
	id := n.store.LogID()
	s := &enginepb.StatusResponse{
		Node: n.cfg.Node, Role: n.cfg.Role, Boot: n.boot, Incarnation: n.store.Incarnation(), LogId: hex.EncodeToString(id[:]),
		LogDir: n.cfg.LogDir(), Version: Version, Dialect: n.cfg.Dialect, Provider: n.cfg.RDMA.Provider,
		ReleasePolicy: n.cfg.ReleasePolicy, Draining: n.draining.Load(), DurableSeq: n.store.Durable(),
		Http: n.httpAddr, EngineListen: n.engineAddr, Engine: n.hub.watchers() > 0,
		Bootstrap: n.bootAddr, RankAddresses: n.addresses, UptimeSeconds: time.Since(n.began).Seconds(),
		Counters: map[string]uint64{
			"effects_done":       n.effects.Load(),
			"effects_pending":    uint64(n.out.pending()), //nolint:gosec // a count
			"messages_lost":      n.senders.lost.Load(),
			"revocations_failed": n.revokeFailed.Load(),
			"watchers":           uint64(n.hub.watchers()), //nolint:gosec // a count
			"commands_waiting":   uint64(len(n.loop.queue)),
		},
	}
	if n.receive != nil {
		s.Counters["leases_live"] = uint64(n.receive.live()) //nolint:gosec // a count
	}
	if n.cfg.Role == "decode" {
		for f := backends.AckReceipt; f <= backends.AckDrainFull; f++ {
			s.Counters["acks_"+f.String()] = n.acks[f].Load()
		}
	}
	ready := false
	err := n.loop.see(func(m *projector.Machine, seq uint64) {
		s.LastSeq, ready, s.Rooms = seq, m.Ready(), uint64(m.Rooms()) //nolint:gosec // a count
		if n.cfg.Role == "decode" {
			var weak uint64
			for _, p := range m.State().Peers {
				if p.Weak {
					weak++
				}
			}
			s.Counters["peers_weak"] = weak
			c := m.PageCounts()
			s.Pages = uint64(n.cfg.Pages)                 //nolint:gosec // positive
			s.PagesFree = uint64(c["free"])               //nolint:gosec // counts
			s.PagesOwned = uint64(c["owned"])             //nolint:gosec // counts
			s.PagesHeld = uint64(c["held"])               //nolint:gosec // counts
			s.PagesQuarantined = uint64(c["quarantined"]) //nolint:gosec // counts
		}
	})
	switch {
	case n.store.Err() != nil:
		s.NotReady = n.store.Err().Error()
	case err != nil:
		s.NotReady = err.Error()
	case s.Draining:
		s.NotReady = "draining"
	case !ready && n.store.Full():
		s.NotReady = "the log takes no new rooms: its volume is full or it is behind"
	case !ready:
		s.NotReady = "the node takes no rooms now"
	case !n.memory.ready():
		s.NotReady = "memory is not registered"
	default:
		s.NotReady = n.unregistered()
		s.Ready = s.NotReady == ""
	}
	if n.mirror != nil {
		n.mirror.describe(s)
	}
	return s
}

// Status says how the node is.
func (e *engine) Status(context.Context, *connect.Request[enginepb.StatusRequest]) (*connect.Response[enginepb.StatusResponse], error) {
	return connect.NewResponse(e.n.status()), nil
}

func roomView(m *projector.Machine, v *projector.RoomView) *enginepb.RoomView {
	out := &enginepb.RoomView{
		Room: v.Room, RoomSeq: v.RoomSeq, State: v.State, Pages: v.Pages, Aux: v.Aux, Generation: v.Generation,
		Cause: v.Cause, Reason: v.Reason, Basis: v.Basis, RequestId: v.RequestID, OpenedMs: v.OpenedAt,
		Outstanding: uint64(v.Outstanding), DeadlineMs: v.Until, Fenced: v.Fenced, //nolint:gosec // a count
	}
	for _, r := range v.Missing {
		out.Missing = append(out.Missing, string(r))
	}
	outcome := projector.OutcomeNone
	if r := m.State().Rooms[v.RoomSeq]; r != nil {
		outcome, out.TraceId = r.Outcome, r.TraceID
		for _, p := range r.Pairs {
			w := &enginepb.PairView{Rank: string(p.Rank), To: string(p.To), Dummy: p.Dummy, State: publishWords[p.Publish]}
			if p.Evidence != 0 {
				w.Evidence = events.EnumWord(p.Evidence.Descriptor(), p.Evidence.Number())
			}
			out.Pairs = append(out.Pairs, w)
		}
	} else if r := m.State().PRooms[v.RoomSeq]; r != nil {
		outcome, out.TraceId = r.Outcome, r.TraceID
		for _, d := range r.Dests {
			out.Pairs = append(out.Pairs, &enginepb.PairView{Rank: string(d.Rank), To: string(d.To), Dummy: d.Dummy, State: "received"})
		}
	}
	switch outcome {
	case projector.OutcomeSucceeded:
		out.Outcome = "succeeded"
	case projector.OutcomeFailed:
		out.Outcome = "failed"
	case projector.OutcomeNone:
	}
	return out
}

var publishWords = map[projector.Publish]string{
	projector.PublishNone: "unpublished", projector.PublishStarted: "publishing",
	projector.PublishDone: "published", projector.PublishFailed: "publish_failed",
}

// Rooms lists the rooms the node holds.
func (e *engine) Rooms(_ context.Context, req *connect.Request[enginepb.RoomsRequest]) (*connect.Response[enginepb.RoomsResponse], error) {
	limit := int(req.Msg.Limit)
	if limit == 0 {
		limit = 1000
	}
	out := &enginepb.RoomsResponse{}
	err := e.n.loop.see(func(m *projector.Machine, _ uint64) {
		for _, v := range m.RoomViews() {
			if len(out.Rooms) == limit {
				break
			}
			out.Rooms = append(out.Rooms, roomView(m, &v))
		}
	})
	if err != nil {
		return nil, apiError(err)
	}
	return connect.NewResponse(out), nil
}

// Room shows one room.
func (e *engine) Room(_ context.Context, req *connect.Request[enginepb.RoomViewRequest]) (*connect.Response[enginepb.RoomsResponse], error) {
	out := &enginepb.RoomsResponse{}
	err := e.n.loop.see(func(m *projector.Machine, _ uint64) {
		v := m.RoomView(req.Msg.Room)
		room := roomView(m, &v)
		room.WaitingChunks = e.n.gate.waiting(v.RoomSeq)
		out.Rooms = []*enginepb.RoomView{room}
	})
	if err != nil {
		return nil, apiError(err)
	}
	return connect.NewResponse(out), nil
}

// Peers lists the peers.
func (e *engine) Peers(context.Context, *connect.Request[enginepb.PeersRequest]) (*connect.Response[enginepb.PeersResponse], error) {
	out := &enginepb.PeersResponse{}
	err := e.n.loop.see(func(m *projector.Machine, _ uint64) {
		for _, v := range m.PeerViews() {
			p := &enginepb.PeerView{
				Node: v.Node, State: v.State, Pdlog: v.PDLog, Boot: v.Boot, Incarnation: v.Incarnation, Fence: v.Fence, Weak: v.Weak,
			}
			if q := m.State().Peers[v.Node]; q != nil {
				p.AckForm = events.EnumWord(q.Form.Descriptor(), q.Form.Number())
			}
			for _, r := range v.Ranks {
				p.Ranks = append(p.Ranks, &enginepb.PeerRankView{Rank: string(r.Rank), Address: r.Address, WireId: r.WireID})
			}
			out.Peers = append(out.Peers, p)
		}
	})
	if err != nil {
		return nil, apiError(err)
	}
	if e.n.peers != nil {
		for _, p := range out.Peers {
			p.Bootstrap, p.Incompatible = e.n.peers.about(p.Node)
		}
	}
	return connect.NewResponse(out), nil
}

// Pages shows the pool.
func (e *engine) Pages(_ context.Context, req *connect.Request[enginepb.PagesRequest]) (*connect.Response[enginepb.PagesResponse], error) {
	out := &enginepb.PagesResponse{}
	if e.n.cfg.Role != "decode" {
		return connect.NewResponse(out), nil
	}
	err := e.n.loop.see(func(m *projector.Machine, _ uint64) {
		for p := range uint32(e.n.cfg.Pages) { //nolint:gosec // bounded by configuration
			v := m.Page(p)
			switch v.State {
			case "free":
				out.Free++
			case "owned":
				out.Owned++
			case "quarantined":
				out.Quarantined++
			default:
				out.Held++
			}
			if req.Msg.All || v.State != "free" {
				out.Pages = append(out.Pages, &enginepb.PageView{Page: p, State: v.State, Room: v.Room, RoomSeq: v.Seq})
			}
		}
	})
	if err != nil {
		return nil, apiError(err)
	}
	return connect.NewResponse(out), nil
}

const (
	eventsDefault = 1000
	eventsMax     = 10000
	framesMax     = 1 << 20 // bytes of one page of frames
)

// Events reads a page of the durable log.
func (e *engine) Events(_ context.Context, req *connect.Request[enginepb.EventsRequest]) (*connect.Response[enginepb.EventsResponse], error) {
	q := req.Msg
	out := &enginepb.EventsResponse{Node: e.n.cfg.Node, DurableSeq: e.n.store.Durable()}
	from := max(q.FromSeq, e.n.store.First())
	if q.Frames {
		fs, err := e.n.store.ReadFrames(from, framesMax)
		if err != nil {
			return nil, apiError(err)
		}
		for i, f := range fs {
			if i == 0 {
				out.FirstSeq = f.Info.FirstSeq
			}
			out.LastSeq = f.Info.LastSeq
			out.Frames = append(out.Frames, f.Data...)
		}
		return connect.NewResponse(out), nil
	}
	limit := int(q.Limit)
	if limit == 0 {
		limit = eventsDefault
	}
	evs, err := e.n.store.ReadFrom(from, min(limit, eventsMax))
	if err != nil {
		return nil, apiError(err)
	}
	for i, ev := range evs {
		if i == 0 {
			out.FirstSeq = ev.Seq
		}
		out.LastSeq = ev.Seq
		out.Json = append(out.Json, string(events.AppendJSON(nil, ev)))
	}
	return connect.NewResponse(out), nil
}

// Backup copies the durable log, in short reads: into a log folder if the path is
// a directory or ends in "/", as JSON lines if it ends in ".jsonl", else into one
// segment file. pdreplay reads them all.
func (e *engine) Backup(ctx context.Context, req *connect.Request[enginepb.BackupRequest]) (*connect.Response[enginepb.BackupResponse], error) {
	path, l := req.Msg.Path, e.n.store
	if path == "" {
		return nil, refuse("bad_request", "path is empty")
	}
	if err := l.Sync(ctx); err != nil {
		return nil, apiError(err)
	}
	var out enginepb.BackupResponse
	var err error
	st, statErr := os.Stat(path)
	switch {
	case strings.HasSuffix(path, "/") || statErr == nil && st.IsDir():
		var info store.DirInfo
		if info, err = l.BackupTo(ctx, filepath.Join(path, "log")); err == nil {
			out.DurableSeq = info.LastSeq
			out.Bytes, err = bytesIn(filepath.Join(path, "log"))
		}
	case strings.HasSuffix(path, ".jsonl"):
		out.DurableSeq, out.Bytes, err = backupLines(l, path)
	default:
		var info store.DirInfo
		var size int64
		info, size, err = l.BackupFile(ctx, path)
		out.DurableSeq, out.Bytes = info.LastSeq, uint64(size) //nolint:gosec // of a file
	}
	if err != nil {
		return nil, apiError(errors.Wrapf(err, "backup to %s", path))
	}
	return connect.NewResponse(&out), nil
}

func bytesIn(dir string) (sum uint64, err error) {
	entries, err := os.ReadDir(dir)
	for _, e := range entries {
		if st, err := e.Info(); err == nil {
			sum += uint64(st.Size()) //nolint:gosec // of a file
		}
	}
	return sum, err
}

// backupLines writes the durable log as JSON lines.
func backupLines(l *store.Log, path string) (to, size uint64, err error) {
	f, err := renameio.NewPendingFile(path, renameio.WithPermissions(0o644), renameio.WithExistingPermissions())
	if err != nil {
		return 0, 0, err
	}
	defer func() { _ = f.Cleanup() }() // nothing to do once it has replaced the file
	to = l.Durable()
	for from := l.First(); from <= to; {
		evs, err := l.ReadFrom(from, eventsMax)
		if err != nil {
			return 0, 0, err
		}
		var b []byte
		for _, ev := range evs {
			if ev.Seq <= to {
				b = append(events.AppendJSON(b, ev), '\n')
			}
		}
		if _, err := f.Write(b); err != nil {
			return 0, 0, err
		}
		size += uint64(len(b))
		from = evs[len(evs)-1].Seq + 1
	}
	if err := f.CloseAtomicallyReplace(); err != nil && !os.IsExist(err) {
		return 0, 0, err
	}
	return to, size, nil
}
