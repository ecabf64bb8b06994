package mirrortest

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/pdlog/pdlog/store/mirror"
)

// processEnv names the configuration of a server that is a process.
const processEnv = "PDLOG_TEST_NATS_SERVER"

// patience is a deadline for what must happen at all, on a loaded machine.
const patience = 60 * time.Second

// Main is a NATS server in the processes that Start makes; elsewhere it returns
// at once.
func Main() {
	conf := os.Getenv(processEnv)
	if conf == "" {
		return
	}
	s, err := startServer(conf)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	go EndWithParent()
	s.WaitForShutdown() // by a signal
	os.Exit(0)
}

// EndWithParent ends this process when the other end of its standard input is
// closed, which the death of the test does.
func EndWithParent() {
	_, _ = io.Copy(io.Discard, os.Stdin)
	os.Exit(0)
}

func startServer(conf string) (*server.Server, error) {
	opts, err := server.ProcessConfigFile(conf)
	if err != nil {
		return nil, err
	}
	opts.DisableJetStreamBanner = true
	opts.NoSigs = os.Getenv(processEnv) == ""
	s, err := server.NewServer(opts)
	if err != nil {
		return nil, err
	}
	s.Start()
	return s, nil
}

// Auth is how the servers know their users.
type Auth int

// Kinds of Auth.
const (
	Open        Auth = iota
	Password         // user "node", password "secret", in the URL
	NKeys            // Servers.Access names the seed
	Credentials      // Servers.Access names the file; operator mode
)

// Options of Start.
type Options struct {
	Count     int  // servers; more than one are a cluster. Default 1
	Processes bool // each a process of its own; else in this one
	TLS       bool // clients and routes; clients show a certificate too
	Auth      Auth
	Lazy      bool     // sync at the server's interval, not at each message
	Publish   []string // with Password and NKeys: what the user may publish and
	Subscribe []string // subscribe; empty = everything
	More      string   // lines of configuration for all of them
	Host      string   // that they listen on; default 127.0.0.1
	Enter     []string // processes: goes before the command, `nsenter --net=…`
}

// Servers are the servers of one test. Their names are s0, s1, …
type Servers struct {
	Access mirror.Access // a client's way in

	t      testing.TB
	o      Options
	dir    string
	ports  []int
	inside []*server.Server
	procs  []*exec.Cmd
}

// Start starts servers that end with the test.
func Start(t testing.TB, o Options) *Servers {
	t.Helper()
	o.Count, o.Host = max(o.Count, 1), cmp.Or(o.Host, "127.0.0.1")
	s := &Servers{
		t: t, o: o, dir: t.TempDir(), ports: freePorts(t, 2*o.Count),
		inside: make([]*server.Server, o.Count), procs: make([]*exec.Cmd, o.Count),
	}
	s.configure()
	t.Cleanup(func() {
		for i := range o.Count {
			s.Kill(i)
		}
	})
	for i := range o.Count {
		s.Run(i)
	}
	s.WaitReady()
	return s
}

// configure writes the configuration files.
func (s *Servers) configure() {
	t, o := s.t, s.o
	var common strings.Builder
	tls := ""
	if o.TLS {
		s.Access.CA = filepath.Join(s.dir, "ca.pem")
		ca := newAuthority(t, s.Access.CA)
		cert, key := ca.issue(t, s.dir, "server")
		s.Access.Cert, s.Access.Key = ca.issue(t, s.dir, "client")
		tls = fmt.Sprintf("tls { cert_file: %q, key_file: %q, ca_file: %q, verify: true, timeout: 10 }\n", cert, key, s.Access.CA)
		common.WriteString(tls)
	}
	permissions := ""
	if len(o.Publish)+len(o.Subscribe) > 0 {
		permissions = fmt.Sprintf(", permissions: { publish: %s, subscribe: %s }", list(o.Publish), list(o.Subscribe))
	}
	users := func(user string) string {
		return fmt.Sprintf("accounts {\n  A { jetstream: enabled, users: [ %s ] }\n  SYS {}\n}\nsystem_account: SYS\n", user)
	}
	switch o.Auth {
	case Open:
	case Password:
		common.WriteString(users("{ user: node, password: secret" + permissions + " }"))
	case NKeys:
		s.Access.NKey = filepath.Join(s.dir, "user.nk")
		common.WriteString(users("{ nkey: " + newUser(t, s.Access.NKey) + permissions + " }"))
	case Credentials:
		s.Access.Credentials = filepath.Join(s.dir, "user.creds")
		common.WriteString(newOperator(t, s.Access.Credentials))
	}
	var routes []string
	for i := range o.Count {
		routes = append(routes, fmt.Sprintf("nats://%s:%d", o.Host, s.ports[o.Count+i]))
	}
	for i := range o.Count {
		sync := "always"
		if o.Lazy {
			sync = "2m"
		}
		conf := fmt.Sprintf("server_name: s%d\nlisten: \"%s\"\njetstream { store_dir: %q, sync_interval: %s }\n%s%s",
			i, s.Addr(i), s.StoreDir(i), sync, common.String(), o.More)
		if o.Count > 1 {
			conf += fmt.Sprintf("cluster {\n  name: test\n  listen: \"%s:%d\"\n  routes: %s\n  %s}\n", o.Host, s.ports[o.Count+i], list(routes), tls)
		}
		write(t, s.conf(i), []byte(conf))
	}
}

func list(words []string) string {
	quoted := make([]string, len(words))
	for i, w := range words {
		quoted[i] = fmt.Sprintf("%q", w)
	}
	return "[" + strings.Join(quoted, ", ") + "]"
}

func (s *Servers) conf(i int) string { return filepath.Join(s.dir, fmt.Sprintf("s%d.conf", i)) }

// StoreDir is where server i keeps its streams.
func (s *Servers) StoreDir(i int) string { return filepath.Join(s.dir, fmt.Sprintf("s%d", i)) }

// URL names all servers.
func (s *Servers) URL() string {
	user := ""
	if s.o.Auth == Password {
		user = "node:secret@"
	}
	urls := make([]string, s.o.Count)
	for i := range urls {
		urls[i] = fmt.Sprintf("nats://%s%s", user, s.Addr(i))
	}
	return strings.Join(urls, ",")
}

// Addr is the address of server i.
func (s *Servers) Addr(i int) string { return fmt.Sprintf("%s:%d", s.o.Host, s.ports[i]) }

// Run starts server i, which does not run, and returns when it listens.
func (s *Servers) Run(i int) {
	s.t.Helper()
	if !s.o.Processes {
		srv, err := startServer(s.conf(i))
		if err != nil {
			s.t.Fatal(err)
		}
		s.inside[i] = srv
		return
	}
	self, err := os.Executable()
	if err != nil {
		s.t.Fatal(err)
	}
	argv := append(slices.Clone(s.o.Enter), self)
	cmd := exec.Command(argv[0], argv[1:]...) //nolint:gosec // the caller's words
	cmd.Env = append(os.Environ(), processEnv+"="+s.conf(i))
	cmd.Stderr = os.Stderr
	// It ends with the test, which a signal at the parent's death would not say: that
	// goes by the thread that forked, and threads end.
	if _, err := cmd.StdinPipe(); err != nil {
		s.t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		s.t.Fatal(err)
	}
	s.procs[i] = cmd
	s.eventually("server listens", func(context.Context) bool {
		c, err := net.DialTimeout("tcp", s.Addr(i), time.Second)
		if err == nil {
			_ = c.Close()
		}
		return err == nil
	})
}

// Edit replaces words in the configuration of server i, for its next Run.
func (s *Servers) Edit(i int, old, by string) {
	s.t.Helper()
	b, err := os.ReadFile(s.conf(i))
	if err != nil {
		s.t.Fatal(err)
	}
	write(s.t, s.conf(i), []byte(strings.ReplaceAll(string(b), old, by)))
}

// Kill ends server i: a process with SIGKILL, one in this process as fast as it
// can be. It does nothing to one that does not run.
func (s *Servers) Kill(i int) {
	if srv := s.inside[i]; srv != nil {
		s.inside[i] = nil
		srv.Shutdown()
		srv.WaitForShutdown()
	}
	if p := s.procs[i]; p != nil {
		s.procs[i] = nil
		_ = p.Process.Kill()
		_ = p.Wait()
	}
}

// Connect is a client that waits for servers for ever.
func (s *Servers) Connect(more ...nats.Option) *nats.Conn {
	s.t.Helper()
	opts := append([]nats.Option{nats.MaxReconnects(-1), nats.ReconnectWait(20 * time.Millisecond), nats.RetryOnFailedConnect(true)}, more...)
	nc, err := mirror.Dial(s.URL(), s.Access, opts...)
	if err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(nc.Close)
	return nc
}

// WaitReady returns when JetStream answers, which in a cluster needs a leader.
func (s *Servers) WaitReady() {
	s.t.Helper()
	js := s.JetStream(s.Connect())
	s.eventually("JetStream answers", func(ctx context.Context) bool {
		_, err := js.AccountInfo(ctx)
		return err == nil || len(s.o.Publish) > 0 // a user who may not ask
	})
}

// JetStream is a JetStream client.
func (s *Servers) JetStream(nc *nats.Conn) jetstream.JetStream {
	s.t.Helper()
	js, err := jetstream.New(nc)
	if err != nil {
		s.t.Fatal(err)
	}
	return js
}

// Leader is the index of the server that leads a stream.
func (s *Servers) Leader(js jetstream.JetStream, stream string) int {
	s.t.Helper()
	leader := -1
	s.eventually("stream "+stream+" has a leader", func(ctx context.Context) bool {
		st, err := js.Stream(ctx, stream)
		if err != nil || st.CachedInfo().Cluster == nil || st.CachedInfo().Cluster.Leader == "" {
			return false
		}
		_, err = fmt.Sscanf(st.CachedInfo().Cluster.Leader, "s%d", &leader)
		return err == nil
	})
	return leader
}

// eventually polls until ok.
func (s *Servers) eventually(what string, ok func(context.Context) bool) {
	s.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for {
		try, end := context.WithTimeout(ctx, 2*time.Second)
		done := ok(try)
		end()
		if done {
			return
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			s.t.Fatalf("%s: not within %v", what, patience)
		}
	}
}

// freePorts are ports that nobody listens on now: servers come back at theirs.
func freePorts(t testing.TB, n int) []int {
	t.Helper()
	ports := make([]int, n)
	for i := range ports {
		ln, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = ln.Close() }()
		ports[i] = ln.Addr().(*net.TCPAddr).Port
	}
	return ports
}
