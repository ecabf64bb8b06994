package node

import (
	"net/http"

	"google.golang.org/protobuf/encoding/protojson"
)

// probeRoutes serves what a supervisor asks.
//
//	/healthz, /livez, /live, /health  the process answers
//	/readyz           it takes rooms: 200, or 503 and why not
func (n *Node) probeRoutes(mux *http.ServeMux) {
	alive := func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte("ok\n")) }
	mux.HandleFunc("GET /healthz", alive)
	mux.HandleFunc("GET /livez", alive)
	mux.HandleFunc("GET /live", alive) // the names that Dynamo probes
	mux.HandleFunc("GET /health", alive)
	mux.HandleFunc("GET /readyz", func(w http.ResponseWriter, _ *http.Request) {
		if s := n.status(); !s.Ready {
			http.Error(w, s.NotReady, http.StatusServiceUnavailable)
			return
		}
		_, _ = w.Write([]byte("ok\n"))
	})
}

// healthRoutes serves the probes, and at / the page to a browser and the status
// as JSON to everybody else.
func (n *Node) healthRoutes(mux *http.ServeMux) {
	n.probeRoutes(mux)
	mux.HandleFunc("GET /{$}", func(w http.ResponseWriter, r *http.Request) {
		w.Header().Add("Vary", "Accept")
		if wantsPage(r) {
			pageIndex(w)
			return
		}
		b, err := protojson.MarshalOptions{EmitUnpopulated: true, UseProtoNames: true}.Marshal(n.status())
		if err != nil {
			http.Error(w, err.Error(), http.StatusInternalServerError)
			return
		}
		w.Header().Set("Content-Type", "application/json")
		_, _ = w.Write(append(b, '\n'))
	})
}
