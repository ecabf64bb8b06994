package bootstrap

import (
	"encoding/json"
	"io"
	"log/slog"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"
)

const (
	maxBody = 1 << 20 // http.md 1

	// maxDrain is how much of a body that is not wanted is read and thrown
	// away, so that a client that writes first and reads later gets its answer
	// and not a reset connection.
	maxDrain = 16 << 20
)

var _ http.Handler = (*Server)(nil)

// HTTPServer returns a net/http server for s, not yet serving, with limits
// that keep one slow client from holding a connection for ever.
func (s *Server) HTTPServer() *http.Server {
	return &http.Server{
		Handler:                      s,
		DisableGeneralOptionsHandler: true, // OPTIONS * is an unknown path too
		ReadHeaderTimeout:            5 * time.Second,
		ReadTimeout:                  30 * time.Second, // 1 MiB at 35 KB/s
		WriteTimeout:                 60 * time.Second, // the two above and an answer
		IdleTimeout:                  75 * time.Second, // SGLang's server; its heartbeat comes every 5 s
		MaxHeaderBytes:               64 << 10,
		ErrorLog:                     slog.NewLogLogger(s.cfg.Log.Handler(), slog.LevelDebug),
	}
}

// endpoint is one method of one path.
type endpoint struct {
	method string
	serve  func(s *Server, w http.ResponseWriter, r *http.Request, body []byte)
}

// endpoints are matched by the exact path: no cleaning, no redirect, so that
// /route/ and /Route are unknown.
var endpoints = map[string][]endpoint{
	"/route":                {{http.MethodGet, (*Server).getRoute}, {http.MethodPut, (*Server).putRoute}},
	"/register_dp_rank":     {{http.MethodPost, (*Server).registerDPRank}},
	"/query_dp_ranks":       {{http.MethodPost, (*Server).queryDPRanks}},
	"/health":               {{http.MethodGet, (*Server).health}},
	"/pdlog/v1/node":        {{http.MethodGet, (*Server).node}},
	"/pdlog/v1/outstanding": {{http.MethodGet, (*Server).outstanding}},
}

// ServeHTTP answers one request (http.md 1): path, method, size of the body,
// then the checks of the endpoint.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	methods, ok := endpoints[r.URL.Path]
	if !ok {
		drain(r)
		writeText(w, http.StatusNotFound, "Not found")
		return
	}
	i := slices.IndexFunc(methods, func(e endpoint) bool { return e.method == r.Method })
	if i < 0 {
		drain(r)
		writeMethodNotAllowed(w, r.URL.Path, methods)
		return
	}
	body, tooLarge, err := readBody(r)
	switch {
	case tooLarge:
		drain(r)
		writeText(w, http.StatusRequestEntityTooLarge, "Request too large")
	case err != nil:
		writeBad(w, "the body cannot be read")
	default:
		methods[i].serve(s, w, r, body)
	}
}

func writeMethodNotAllowed(w http.ResponseWriter, path string, methods []endpoint) {
	allow := make([]string, len(methods))
	for i, e := range methods {
		allow[i] = e.method
	}
	w.Header().Set("Allow", strings.Join(allow, ", "))
	contentType := textPlain
	if path == "/route" {
		contentType = applicationJSON // as SGLang says there
	}
	write(w, http.StatusMethodNotAllowed, contentType, []byte("Method not allowed"))
}

// readBody reads a body of up to maxBody. It trusts no Content-Length for its
// memory: the buffer grows with what comes.
func readBody(r *http.Request) (body []byte, tooLarge bool, err error) {
	if r.ContentLength > maxBody {
		return nil, true, nil
	}
	body, err = io.ReadAll(io.LimitReader(r.Body, maxBody+1))
	return body, len(body) > maxBody, err
}

// drain throws a body away. A client that waits for leave to send it is
// answered at once instead.
func drain(r *http.Request) {
	if r.Header.Get("Expect") == "" {
		_, _ = io.CopyN(io.Discard, r.Body, maxDrain) // the answer is the same whether it breaks or not
	}
}

func (s *Server) getRoute(w http.ResponseWriter, r *http.Request, _ []byte) {
	p, err := routeQuery(r.URL.RawQuery)
	if err != nil {
		writeBad(w, err.Error())
		return
	}
	s.mu.Lock()
	ready, ranks := s.table.ready(), len(s.table.ranks)
	topology := s.table.answer(s.cfg.TopologyKeys, s.cfg.DecodeAllocationPolicy)
	addr, found := s.table.ranks[p]
	s.mu.Unlock()

	switch {
	case !ready:
		writeText(w, http.StatusServiceUnavailable,
			"Prefill server not fully registered yet ("+strconv.Itoa(ranks)+" workers registered).")
	case p == wholeTopology:
		writeJSON(w, topology)
	case found:
		writeJSON(w, rankAnswer{addr.ip, addr.port})
	default:
		writeText(w, http.StatusNotFound, "Rank not registered.")
	}
}

func (s *Server) putRoute(w http.ResponseWriter, _ *http.Request, body []byte) {
	reg, err := parseRegistration(body)
	if err != nil {
		s.countBad()
	} else {
		err = s.register(reg)
	}
	if err != nil {
		s.cfg.Log.Warn("bad registration refused", "why", err)
		writeBad(w, err.Error())
		return
	}
	writeText(w, http.StatusOK, "OK")
}

func (s *Server) registerDPRank(w http.ResponseWriter, _ *http.Request, body []byte) {
	o, err := parseObject(body)
	if err != nil {
		writeBad(w, err.Error())
		return
	}
	f := fields{o: o}
	room := f.integer("bootstrap_room", 0, maxRoom)
	rank := f.integer("dp_rank", 0, maxI31)
	if f.err != nil {
		writeBad(w, f.err.Error())
		return
	}
	now := s.cfg.Now()
	s.mu.Lock()
	s.dpRanks.put(room, rank, now)
	s.mu.Unlock()
	writeText(w, http.StatusOK, "OK")
}

func (s *Server) queryDPRanks(w http.ResponseWriter, _ *http.Request, body []byte) {
	o, err := parseObject(body)
	if err != nil {
		writeBad(w, err.Error())
		return
	}
	raw := o["bootstrap_rooms"]
	if !integers(raw, maxRoom, func(int64) {}) {
		writeBad(w, "bootstrap_rooms is not an array of integers in 0 … "+strconv.Itoa(maxRoom))
		return
	}
	now := s.cfg.Now()
	answer := map[string]int64{}
	s.mu.Lock()
	s.dpRanks.sweep(now)
	integers(raw, maxRoom, func(room int64) {
		if rank, ok := s.dpRanks.get(room, now); ok {
			answer[strconv.FormatInt(room, 10)] = rank
		}
	})
	s.mu.Unlock()
	writeJSON(w, answer)
}

// health says that the process lives, not that it is ready: two failures in a
// row make a decode fail every room of this prefill (http.md 5).
func (s *Server) health(w http.ResponseWriter, _ *http.Request, _ []byte) {
	writeText(w, http.StatusOK, "OK")
}

func (s *Server) node(w http.ResponseWriter, _ *http.Request, _ []byte) {
	if !s.cfg.Extension {
		writeText(w, http.StatusNotFound, "Not found")
		return
	}
	writeJSON(w, s.nodeAnswer())
}

func (s *Server) outstanding(w http.ResponseWriter, r *http.Request, _ []byte) {
	a, err := outstandingQuery(r.URL.RawQuery)
	switch {
	case err != nil: // in the order of the table: bad input before not found
		writeBad(w, err.Error())
		return
	case !s.cfg.Extension:
		writeText(w, http.StatusNotFound, "Not found")
		return
	case s.cfg.Outstanding == nil:
		writeText(w, http.StatusServiceUnavailable, "Cannot tell")
		return
	}
	known, open, err := s.cfg.Outstanding(a)
	if err != nil {
		s.cfg.Log.Warn("cannot say what is outstanding", "asked_by", a.Node, "boot", formatBoot(a.Boot), "err", err)
		writeText(w, http.StatusServiceUnavailable, "Cannot tell")
		return
	}
	writeJSON(w, outstandingAnswer{s.cfg.Node, formatBoot(s.cfg.Boot), s.cfg.Incarnation, known, open})
}

const (
	textPlain       = "text/plain; charset=utf-8"
	applicationJSON = "application/json"
)

func writeBad(w http.ResponseWriter, why string) {
	writeText(w, http.StatusBadRequest, "Bad request: "+why)
}

func writeText(w http.ResponseWriter, status int, text string) {
	write(w, status, textPlain, []byte(text))
}

// writeJSON writes one of this package's answers, which all can be encoded.
func writeJSON(w http.ResponseWriter, answer any) {
	b, err := json.Marshal(answer)
	if err != nil {
		panic("bootstrap: encode an answer: " + err.Error())
	}
	write(w, http.StatusOK, applicationJSON, b)
}

func write(w http.ResponseWriter, status int, contentType string, body []byte) {
	w.Header().Set("Content-Type", contentType)
	w.Header().Set("Content-Length", strconv.Itoa(len(body)))
	w.WriteHeader(status)
	_, _ = w.Write(body) //nolint:gosec // text or JSON of our own making; a client that went away needs no answer
}
