package node

import (
	"net/http"
	"sync"
	"time"

	"google.golang.org/protobuf/encoding/protojson"

	"github.com/pdlog/pdlog/events"
	"github.com/pdlog/pdlog/projector"
)

// probeRoutes serves what a supervisor asks.
//
//	/healthz, /livez  the process answers
//	/readyz           it takes rooms: 200, or 503 and why not
func (n *Node) probeRoutes(mux *http.ServeMux) {
	alive := func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte("ok\n")) }
	mux.HandleFunc("GET /healthz", alive)
	mux.HandleFunc("GET /livez", alive)
	mux.HandleFunc("GET /readyz", func(w http.ResponseWriter, _ *http.Request) {
		if s := n.status(); !s.Ready {
			http.Error(w, s.NotReady, http.StatusServiceUnavailable)
			return
		}
		_, _ = w.Write([]byte("ok\n"))
	})
}

// healthRoutes serves the probes, and at / the status as JSON.
func (n *Node) healthRoutes(mux *http.ServeMux) {
	n.probeRoutes(mux)
	mux.HandleFunc("GET /{$}", func(w http.ResponseWriter, _ *http.Request) {
		b, err := protojson.MarshalOptions{EmitUnpopulated: true, UseProtoNames: true}.Marshal(n.status())
		if err != nil {
			http.Error(w, err.Error(), http.StatusInternalServerError)
			return
		}
		w.Header().Set("Content-Type", "application/json")
		_, _ = w.Write(append(b, '\n'))
	})
}

// engineClock runs while no engine watches, after one has.
type engineClock struct {
	mu    sync.Mutex
	timer *time.Timer
}

// engineCame stops the clock.
func (n *Node) engineCame() {
	n.engines.mu.Lock()
	defer n.engines.mu.Unlock()
	if n.engines.timer != nil {
		n.engines.timer.Stop()
		n.engines.timer = nil
	}
}

// engineGone starts it: an engine that does not come back in time has no use
// for its rooms any more (events.md, terminal outcomes).
func (n *Node) engineGone() {
	n.engines.mu.Lock()
	defer n.engines.mu.Unlock()
	if n.engines.timer == nil && n.cfg.EngineTimeout > 0 && n.life.Err() == nil {
		n.engines.timer = time.AfterFunc(n.cfg.EngineTimeout, n.engineLost)
	}
}

// engineLost ends what the engine left: its open rooms are aborted, its ended
// ones finished or cleared.
func (n *Node) engineLost() {
	if n.hub.watchers() > 0 || n.life.Err() != nil {
		return
	}
	n.log.Warn("the engine has not come back", "after", n.cfg.EngineTimeout)
	var cmds []projector.Command
	err := n.loop.see(func(m *projector.Machine, _ uint64) {
		for _, v := range m.RoomViews() {
			prefill := m.State().PRooms[v.RoomSeq] != nil
			switch {
			case v.State == "succeeded" && !prefill:
				cmds = append(cmds, projector.FinishRoom{Room: v.Room})
			case prefill && (v.State == "succeeded" || v.State == "failed"):
				cmds = append(cmds, projector.ClearRoom{Room: v.Room})
			case v.State != "held" && v.State != "quarantined":
				cmds = append(cmds, projector.AbortRoom{Room: v.Room, Reason: "the engine went away", Cause: events.AbortCause_ABORT_CAUSE_ENGINE_LOST})
			}
		}
	})
	if err != nil {
		return
	}
	for _, c := range cmds {
		n.loop.tell(c)
	}
}
