package mirror

import (
	"fmt"
	"log/slog"
	"time"

	"github.com/cockroachdb/errors"
	"github.com/nats-io/nats-server/v2/server"
)

// EmbeddedOptions of StartEmbedded. StoreDir is required.
type EmbeddedOptions struct {
	StoreDir string
	Host     string // default 127.0.0.1
	Port     int    // -1: any free one; 0: 4222
	// Lazy leaves syncing to the server's interval. The default syncs each
	// message before it is acknowledged (sync_interval: always, store.md 4.2).
	Lazy   bool
	Name   string // server name, for people
	Logger *slog.Logger
}

// readyTimeout bounds recovery of the server's own store at start.
const readyTimeout = 30 * time.Second

// Embedded is a NATS server with JetStream in this process.
type Embedded struct{ srv *server.Server }

// StartEmbedded starts a server and returns when it takes connections.
func StartEmbedded(o EmbeddedOptions) (*Embedded, error) {
	if o.StoreDir == "" {
		return nil, errors.New("embedded nats: store directory is required")
	}
	if o.Host == "" {
		o.Host = "127.0.0.1"
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	srv, err := server.NewServer(&server.Options{
		ServerName: o.Name,
		Host:       o.Host,
		Port:       o.Port,
		JetStream:  true,
		StoreDir:   o.StoreDir,
		SyncAlways: !o.Lazy,
		NoSigs:     true,

		DisableJetStreamBanner: true,
	})
	if err != nil {
		return nil, errors.Wrap(err, "embedded nats")
	}
	srv.SetLoggerV2(serverLog{o.Logger}, false, false, false)
	srv.Start()
	e := &Embedded{srv: srv}
	if !srv.ReadyForConnections(readyTimeout) {
		e.Shutdown()
		return nil, errors.Newf("embedded nats: not ready on %s:%d after %v: is the port taken?", o.Host, o.Port, readyTimeout)
	}
	if !srv.JetStreamEnabled() {
		e.Shutdown()
		return nil, errors.Newf("embedded nats: JetStream did not start in %s", o.StoreDir)
	}
	return e, nil
}

// ClientURL is what to connect to.
func (e *Embedded) ClientURL() string { return e.srv.ClientURL() }

// Shutdown stops the server and returns when its store is closed.
func (e *Embedded) Shutdown() {
	e.srv.Shutdown()
	e.srv.WaitForShutdown()
}

// serverLog hands the server's log on. Notices are its start-up chatter.
type serverLog struct{ log *slog.Logger }

func (l serverLog) Noticef(f string, v ...any) { l.log.Debug(fmt.Sprintf(f, v...)) }
func (l serverLog) Debugf(f string, v ...any)  { l.log.Debug(fmt.Sprintf(f, v...)) }
func (l serverLog) Tracef(f string, v ...any)  { l.log.Debug(fmt.Sprintf(f, v...)) }
func (l serverLog) Warnf(f string, v ...any)   { l.log.Warn(fmt.Sprintf(f, v...)) }
func (l serverLog) Errorf(f string, v ...any)  { l.log.Error(fmt.Sprintf(f, v...)) }
func (l serverLog) Fatalf(f string, v ...any)  { l.log.Error(fmt.Sprintf(f, v...)) }

var _ server.Logger = serverLog{}
