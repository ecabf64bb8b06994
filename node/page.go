package node

import (
	"context"
	"crypto/subtle"
	"embed"
	"io/fs"
	"log/slog"
	"net"
	"net/http"
	"os"
	"strings"
	"time"

	"connectrpc.com/connect"
	"github.com/cockroachdb/errors"

	"github.com/pdlog/pdlog/node/enginepb"
)

// The page for people: plain files, nothing from the network.
//
//go:embed web
var web embed.FS

// listenHTTP opens the page's own listener.
func (n *Node) listenHTTP(ctx context.Context) error {
	at := n.cfg.HTTP.Listen
	if at == "" {
		return nil
	}
	srv := &http.Server{
		Handler: guard(n.pageHandler(), n.cfg.HTTP), ReadHeaderTimeout: 5 * time.Second, MaxHeaderBytes: 64 << 10,
		ErrorLog: slog.NewLogLogger(n.log.Handler(), slog.LevelDebug),
	}
	if n.cfg.HTTP.TLS.Cert != "" {
		settings, err := n.cfg.HTTP.TLS.server("http.tls", n.log)
		if err != nil {
			return err
		}
		srv.TLSConfig = settings
	}
	ln, err := (&net.ListenConfig{}).Listen(ctx, "tcp", at)
	if err != nil {
		return errors.Wrap(err, "http.listen: listen")
	}
	n.httpAddr = ln.Addr().String()
	n.servers = append(n.servers, &server{http: srv, ln: ln, name: "page"})
	return nil
}

// guard sets what a browser must know, and turns away a request that was lured
// here: a name that resolves to the loopback (DNS rebinding).
func guard(next http.Handler, cfg HTTPConfig) http.Handler {
	host, _, _ := net.SplitHostPort(cfg.Listen)
	local := loopback(host)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		name, _, err := net.SplitHostPort(r.Host)
		if err != nil {
			name = r.Host
		}
		if local && !loopback(strings.Trim(name, "[]")) {
			http.Error(w, "this page is served to the host itself: use 127.0.0.1 or localhost", http.StatusMisdirectedRequest)
			return
		}
		h := w.Header()
		h.Set("Content-Security-Policy", "default-src 'self'; img-src 'self' data:; frame-ancestors 'none'; base-uri 'none'; form-action 'none'")
		h.Set("X-Content-Type-Options", "nosniff")
		h.Set("Referrer-Policy", "no-referrer")
		h.Set("Cache-Control", "no-store")
		next.ServeHTTP(w, r)
	})
}

// pageHandler serves the page, its data, its actions, metrics and probes.
func (n *Node) pageHandler() http.Handler {
	mux := http.NewServeMux()
	n.healthRoutes(mux)
	n.pageRoutes(mux)
	mux.Handle("GET /metrics", n.metricsHandler())
	mux.HandleFunc("POST /page/action", n.action)
	return mux
}

// pageRoutes is what the page reads.
func (n *Node) pageRoutes(mux *http.ServeMux) {
	files, err := fs.Sub(web, "web")
	if err != nil {
		panic(err) // it is in the binary
	}
	mux.Handle("GET /page/", http.StripPrefix("/page/", http.FileServerFS(files)))
	mux.HandleFunc("GET /page/live", n.pageLive)
	mux.HandleFunc("GET /page/events", n.pageEvents)
	mux.HandleFunc("GET /page/room", n.pageRoom)
}

// wantsPage: a person asks, not a program.
func wantsPage(r *http.Request) bool { return strings.Contains(r.Header.Get("Accept"), "text/html") }

func pageIndex(w http.ResponseWriter) {
	b, err := web.ReadFile("web/index.html")
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", "text/html; charset=utf-8")
	_, _ = w.Write(b)
}

// authorized checks an action's token. The file is read each time: a token is
// changed by changing the file.
func (n *Node) authorized(r *http.Request) error {
	if n.cfg.HTTP.TokenFile == "" {
		return errors.New("actions are off: http.token_file is not set. Use the command line on the node's host")
	}
	b, err := os.ReadFile(n.cfg.HTTP.TokenFile)
	want := strings.TrimSpace(string(b))
	if err != nil || want == "" {
		n.log.Error("http.token_file cannot be read, or is empty", "file", n.cfg.HTTP.TokenFile, "err", err)
		return errors.New("actions are off: http.token_file cannot be read, or is empty")
	}
	have, ok := strings.CutPrefix(r.Header.Get("Authorization"), "Bearer ")
	if !ok || subtle.ConstantTimeCompare([]byte(strings.TrimSpace(have)), []byte(want)) != 1 {
		return errors.New("the token is wrong")
	}
	return nil
}

// pageAction is one action that somebody has confirmed.
type pageAction struct {
	Action  string `json:"action"` // drain, abort, fence, release
	Room    uint64 `json:"room,string"`
	Peer    string `json:"peer"`
	Reason  string `json:"reason"`
	Confirm string `json:"confirm"` // the node's name (drain), the peer's, or the room's number, typed again
}

// action does what the page was asked to. Each is what the command line does,
// and says so in the log of the process, with where it came from.
func (n *Node) action(w http.ResponseWriter, r *http.Request) {
	if err := n.authorized(r); err != nil {
		answerJSON(w, http.StatusForbidden, map[string]string{"error": err.Error()})
		return
	}
	var a pageAction
	if err := readJSON(w, r, &a); err != nil {
		answerJSON(w, http.StatusBadRequest, map[string]string{"error": err.Error()})
		return
	}
	n.log.Warn("action from the page", "action", a.Action, "room", a.Room, "peer", a.Peer, "reason", a.Reason, "from", r.RemoteAddr)
	said, err := n.act(r.Context(), &a)
	if err != nil {
		var ce *connect.Error
		text := err.Error()
		if errors.As(err, &ce) {
			text = ce.Message()
		}
		answerJSON(w, http.StatusConflict, map[string]string{"error": text})
		return
	}
	answerJSON(w, http.StatusOK, map[string]string{"done": said})
}

func (n *Node) act(ctx context.Context, a *pageAction) (said string, err error) {
	e := &engine{n: n}
	if want := a.confirms(n.cfg.Node); a.Confirm != want {
		return "", errors.Newf("not confirmed: type %q", want)
	}
	reason := a.Reason
	if reason == "" {
		reason = "operator"
	}
	switch a.Action {
	case "drain":
		_, err = e.Drain(ctx, connect.NewRequest(&enginepb.DrainRequest{GraceMs: uint64(n.live.Load().stopGrace.Milliseconds()), Reason: reason})) //nolint:gosec // not negative
		said = "draining; the node stops when its rooms have ended"
	case "abort":
		_, err = e.Abort(ctx, connect.NewRequest(&enginepb.AbortRequest{Room: a.Room, Reason: reason}))
		said = "aborted; its pages are held until its writers have stopped"
	case "fence":
		_, err = e.Fence(ctx, connect.NewRequest(&enginepb.FenceRequest{Room: a.Room, Peer: a.Peer}))
		said = "fencing"
	case "release":
		_, err = e.ForceRelease(ctx, connect.NewRequest(&enginepb.RoomRequest{Room: a.Room}))
		said = "released without evidence"
	default:
		return "", errors.Newf("no action %q", a.Action)
	}
	return said, err
}

// confirms is what has to be typed again.
func (a *pageAction) confirms(node string) string {
	switch {
	case a.Action == "drain":
		return node
	case a.Peer != "":
		return a.Peer
	}
	return formatRoom(a.Room)
}
