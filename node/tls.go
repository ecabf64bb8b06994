package node

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"log/slog"
	"net"
	"net/http"
	"os"
	"sync"
	"time"

	"github.com/cockroachdb/errors"

	"github.com/pdlog/pdlog/rdma/tcp"
)

// certificate is a key pair that is read again when its file has changed.
type certificate struct {
	cfg TLSConfig
	log *slog.Logger

	mu    sync.Mutex
	pair  *tls.Certificate
	mtime time.Time
}

func (c *certificate) get(*tls.ClientHelloInfo) (*tls.Certificate, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	st, err := os.Stat(c.cfg.Cert)
	if err == nil && c.pair != nil && st.ModTime().Equal(c.mtime) {
		return c.pair, nil
	}
	pair, err := tls.LoadX509KeyPair(c.cfg.Cert, c.cfg.Key)
	if err != nil {
		if c.pair != nil { // half renewed: the old one serves on
			c.log.Warn("certificate not taken", "file", c.cfg.Cert, "err", err)
			return c.pair, nil
		}
		return nil, errors.Wrapf(err, "certificate %s", c.cfg.Cert)
	}
	c.pair = &pair
	if st != nil {
		c.mtime = st.ModTime()
	}
	return c.pair, nil
}

// server makes the settings of a TLS listener. key is the configuration key
// that errors name.
func (t TLSConfig) server(key string, log *slog.Logger) (*tls.Config, error) {
	c := &certificate{cfg: t, log: log}
	if _, err := c.get(nil); err != nil {
		return nil, badKey(key+".cert", "%v", err)
	}
	out := &tls.Config{GetCertificate: c.get, MinVersion: tls.VersionTLS13, NextProtos: []string{"h2", "http/1.1"}}
	if t.ClientCA == "" {
		return out, nil
	}
	pem, err := os.ReadFile(t.ClientCA)
	if err != nil {
		return nil, badKey(key+".client_ca", "%v", err)
	}
	out.ClientCAs = x509.NewCertPool()
	if !out.ClientCAs.AppendCertsFromPEM(pem) {
		return nil, badKey(key+".client_ca", "%s holds no certificate", t.ClientCA)
	}
	out.ClientAuth = tls.RequireAndVerifyClientCert
	return out, nil
}

// validateTLS: the data plane's peers prove who they are to each other, so
// either all three files are there or none.
func (c *RDMAConfig) validateTLS() error {
	t := &c.TLS
	switch {
	case *t == TLSConfig{}:
		return nil
	case c.Provider != tcp.Name && c.Provider != autoProvider:
		return badKey("rdma.tls", "belongs to the providers tcp and auto, this is %s", c.Provider)
	case t.Cert == "" || t.Key == "" || t.ClientCA == "":
		return badKey("rdma.tls", "want cert, key and client_ca: both sides show a certificate")
	}
	return nil
}

// peer makes the settings of a connection in which both sides show a
// certificate; nil without any.
func (t TLSConfig) peer(key string, log *slog.Logger) (*tls.Config, error) {
	if t == (TLSConfig{}) {
		return nil, nil //nolint:nilnil // no TLS is a setting
	}
	out, err := t.server(key, log)
	if err != nil {
		return nil, err
	}
	out.RootCAs, out.NextProtos = out.ClientCAs, nil
	out.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return out.GetCertificate(nil) }
	return out, nil
}

// listenEngine opens the engine API on TCP, with mutual TLS.
func (n *Node) listenEngine(ctx context.Context) error {
	at := n.cfg.Engine.Listen
	if at == "" {
		return nil
	}
	settings, err := n.cfg.Engine.TLS.server("engine.tls", n.log)
	if err != nil {
		return err
	}
	ln, err := (&net.ListenConfig{}).Listen(ctx, "tcp", at)
	if err != nil {
		return errors.Wrap(err, "engine.listen: listen")
	}
	n.engineAddr = ln.Addr().String()
	n.servers = append(n.servers, &server{name: "engine API on TCP", ln: ln, http: tlsServer{&http.Server{
		Handler: n.engineHandler(), ReadHeaderTimeout: 5 * time.Second, TLSConfig: settings,
		ErrorLog: slog.NewLogLogger(n.log.Handler(), slog.LevelDebug),
	}}})
	return nil
}

// tlsServer serves with the certificates of its TLSConfig.
type tlsServer struct{ *http.Server }

// Serve accepts connections with TLS.
func (s tlsServer) Serve(ln net.Listener) error { return s.ServeTLS(ln, "", "") }
