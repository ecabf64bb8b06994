package node

import (
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"connectrpc.com/connect"
	"github.com/cockroachdb/errors"

	"github.com/pdlog/pdlog/backends"
	"github.com/pdlog/pdlog/node/enginepb"
	"github.com/pdlog/pdlog/projector"
)

// keyring is the keys of some nodes, in files as an operator has them.
type keyring struct {
	t      *testing.T
	dir    string
	public map[string]string
}

func newKeyring(t *testing.T, nodes ...string) *keyring {
	t.Helper()
	k := &keyring{t: t, dir: t.TempDir(), public: map[string]string{}}
	for _, n := range nodes {
		k.draw(n)
	}
	return k
}

// draw gives a node a new key.
func (k *keyring) draw(node string) {
	k.t.Helper()
	public, secret, err := NewCurveKey()
	if err != nil {
		k.t.Fatal(err)
	}
	k.public[node] = public
	k.write(node+".key", "# secret key of "+node+"\n"+secret+"\n", 0o600)
}

func (k *keyring) write(name, text string, mode os.FileMode) string {
	k.t.Helper()
	path := filepath.Join(k.dir, name)
	if err := os.WriteFile(path, []byte(text), mode); err != nil {
		k.t.Fatal(err)
	}
	return path
}

// peers writes whom a node knows.
func (k *keyring) peers(of string, nodes ...string) {
	k.t.Helper()
	text := "# a comment\n\n"
	for _, n := range nodes {
		text += n + "  " + k.public[n] + "\n"
	}
	k.write(of+".peers", text, 0o644)
}

func (k *keyring) give(cfg *Config) {
	cfg.Curve = CurveConfig{SecretFile: filepath.Join(k.dir, cfg.Node+".key"), PeersFile: filepath.Join(k.dir, cfg.Node+".peers")}
}

// transport is libzmq with a node's key, and where it expects whom.
func (k *keyring) transport(node, address, there string) (*zmqTransport, *curve) {
	k.t.Helper()
	k.peers(node, there)
	cfg := Config{Node: node}
	k.give(&cfg)
	c, err := openCurve(&cfg.Curve, testLogger(k.t))
	if err != nil {
		k.t.Fatal(err)
	}
	c.learn(address, k.public[there])
	z, err := newZMQ(1<<20, c)
	if err != nil {
		k.t.Fatal(err)
	}
	return z, c
}

func TestCurvePairMovesPagesAndOutlivesRestarts(t *testing.T) {
	for _, dialect := range []string{"mooncake", "nixl", "mori"} {
		t.Run(dialect, func(t *testing.T) {
			k := newKeyring(t, "p0", "d0")
			k.peers("p0", "d0")
			k.peers("d0", "p0")
			pc, dc := testConfig(t, "prefill", "p0"), testConfig(t, "decode", "d0")
			pc.Dialect, dc.Dialect = dialect, dialect
			k.give(&pc)
			k.give(&dc)
			q := startPair(t, pc, dc, 4096)
			q.run(1, []uint32{1, 2})
			q.finish(1)

			// An abort, its ACK, and a room that the restarted prefill answers for.
			q.open(2, 3, 4)
			q.d.awaitEvent("MetadataPublished", 2, 0)
			if _, err := q.d.client.Abort(testContext(t), connect.NewRequest(&enginepb.AbortRequest{Room: 2})); err != nil {
				t.Fatal(err)
			}
			if n := q.d.await(enginepb.Notice_KIND_RELEASED, 2); n.Basis != "acks" {
				t.Errorf("released by %s, want acks", n.Basis)
			}
			q.p.close()
			q.p.start(q.pc)
			q.d.awaitEvent("PeerIncarnationSeen", 0, 0)
			q.run(3, []uint32{5, 6})
			q.finish(3)
			q.d.close()
			q.d.start(q.dc)
			// The prefill tells again how room 3 ended, once it has found the restarted node.
			q.d.awaitEvent("StatusReceived", 0, q.d.awaitEvent("NodeStarted", 0, q.d.node.store.First()))
			q.run(4, []uint32{6, 7})
		})
	}
}

// incompatible waits until a decode node says why it does not serve its
// prefill.
func incompatible(t *testing.T, d *side) string {
	t.Helper()
	ctx := testContext(t)
	for ctx.Err() == nil {
		r, err := d.client.Peers(ctx, connect.NewRequest(&enginepb.PeersRequest{}))
		if err != nil {
			t.Fatal(err)
		}
		if len(r.Msg.Peers) > 0 && r.Msg.Peers[0].Incompatible != "" {
			_, err := d.client.OpenReceive(ctx, connect.NewRequest(&enginepb.OpenReceiveRequest{Room: 1, Pages: []uint32{1}}))
			if err == nil || !strings.Contains(err.Error(), r.Msg.Peers[0].Incompatible) {
				t.Fatalf("a room is opened to it: %v", err)
			}
			return r.Msg.Peers[0].Incompatible
		}
	}
	t.Fatalf("the peer is taken\n%s", d.events())
	return ""
}

func TestCurveAndPlainNodesRefuseEachOther(t *testing.T) {
	for _, c := range []struct {
		name  string
		files func(k *keyring, pc, dc *Config)
		want  string
	}{
		{"prefill demands it", func(k *keyring, pc, _ *Config) { k.give(pc) }, "this node has none (curve.secret_file)"},
		{"decode demands it", func(k *keyring, _, dc *Config) { k.give(dc) }, "its control sockets are plain, and this node demands CURVE"},
		{"decode demands it of SGLang", func(k *keyring, pc, dc *Config) {
			pc.Extension = false
			k.give(dc)
		}, "it is not pdlog and cannot speak CURVE"},
		{"another key than is known", func(k *keyring, pc, dc *Config) {
			k.give(pc)
			k.give(dc)
			k.draw("p0")
		}, "is not the one of p0 in curve.peers_file"},
		{"no key is known", func(k *keyring, pc, dc *Config) {
			k.give(pc)
			k.give(dc)
			k.peers("d0", "d0")
		}, "no CURVE key of p0 is in curve.peers_file"},
	} {
		t.Run(c.name, func(t *testing.T) {
			k := newKeyring(t, "p0", "d0")
			k.peers("p0", "d0")
			k.peers("d0", "p0")
			pc, dc := testConfig(t, "prefill", "p0"), testConfig(t, "decode", "d0")
			c.files(k, &pc, &dc)
			p := startSide(t, pc, 64)
			dc.Peers = []string{p.node.Bootstrap()}
			d := startSide(t, dc, 64)
			if got := incompatible(t, d); !strings.Contains(got, c.want) {
				t.Errorf("have %q, want %q", got, c.want)
			}
		})
	}
}

// rejected waits until the node has refused something of a kind, and gives why.
func (s *side) rejected(want ...string) {
	s.t.Helper()
	var seq uint64
	for {
		seq = s.awaitEvent("MessageRejected", 0, seq)
		evs, err := s.node.store.ReadFrom(seq, 1)
		if err != nil {
			s.t.Fatal(err)
		}
		r := evs[0].GetMessageRejected()
		if r.Kind == "curve" && slices.ContainsFunc(want, func(w string) bool { return strings.Contains(r.Reason, w) }) {
			return
		}
	}
}

// push sends until the message has left, or it is known that it cannot.
func push(t *testing.T, p pusher, m backends.Message) {
	t.Helper()
	d, err := backends.Lookup("mooncake")
	if err != nil {
		t.Fatal(err)
	}
	f, err := d.Encode(m)
	if err != nil {
		t.Fatal(err)
	}
	for ctx := testContext(t); ctx.Err() == nil; {
		if err := p.Send(f); err == nil {
			return
		} else if !errors.Is(err, errAgain) {
			t.Fatal(err)
		}
	}
	t.Fatal("nothing leaves")
}

func TestCurveTakesNoStranger(t *testing.T) {
	k := newKeyring(t, "p0", "d0", "d1", "thief")
	k.peers("p0", "d0", "d1")
	pc := testConfig(t, "prefill", "p0")
	k.give(&pc)
	p := startSide(t, pc, 64)
	at := p.node.rankAddress(0)
	register := func(node string) *backends.Registration {
		ep, err := backends.ParseEndpoint("127.0.0.1:7")
		if err != nil {
			t.Fatal(err)
		}
		return &backends.Registration{
			Peer: ep, SessionID: "127.0.0.1:7", KVDataPtrs: []uint64{0}, KVItemLen: 64, KVItemLens: []uint64{64}, DstTPRank: backends.Some(int32(0)), AttnTPSize: 1,
			Ext: &backends.Extension{Node: node, Boot: 7, Incarnation: 1, LogID: make([]byte, 16)},
		}
	}

	// Without a key at all.
	plain := newStranger(t, at)
	plain.dialect = "mooncake"
	plain.send(register("d0"))
	p.rejected("the other side is plain, and this node speaks CURVE alone", endedInHandshake)

	// With a key that nobody knows.
	dial := func(as, there string) (pusher, *curve, func()) {
		z, c := k.transport(as, at, there)
		s, err := z.Dial(at, toPrefill)
		if err != nil {
			t.Fatal(err)
		}
		return s, c, func() {
			if err := errors.CombineErrors(s.Close(0), z.Close()); err != nil {
				t.Error(err)
			}
		}
	}
	s, _, end := dial("thief", "p0")
	push(t, s, register("d0"))
	p.rejected("its key " + k.public["thief"] + " is not in curve.peers_file")
	end()

	// With a known key, to somebody who is not who the sender takes it for.
	var told []string
	s, c, end := dial("d0", "d1")
	said := make(chan string, 100)
	c.report(func(cmd projector.Command) { said <- cmd.(projector.Rejected).Reason })
	push(t, s, register("d0"))
	for ctx := testContext(t); ctx.Err() == nil && len(told) == 0; {
		s.Dropped()
		select {
		case why := <-said:
			told = append(told, why)
		default:
		}
	}
	if len(told) == 0 {
		t.Error("the sender is not told that another node answers")
	}
	end()

	// With the key of one node, for another.
	s, _, end = dial("d1", "p0")
	push(t, s, register("d0"))
	p.rejected("a message of d0 over a connection of d1")
	push(t, s, register("d1")) // and for itself
	p.awaitEvent("PeerRegistered", 0, 0)
	end()
	for _, v := range p.peers() {
		if !strings.HasPrefix(v.Node, "d1") {
			t.Errorf("%s is registered", v.Node)
		}
	}
}

func (s *side) peers() []*enginepb.PeerView {
	s.t.Helper()
	r, err := s.client.Peers(testContext(s.t), connect.NewRequest(&enginepb.PeersRequest{}))
	if err != nil {
		s.t.Fatal(err)
	}
	return r.Msg.Peers
}

// A key that is taken out of the file is not listened to any more, also on a
// connection that is there already; one that is put in is, without a restart.
func TestCurvePeersFileIsReadAgain(t *testing.T) {
	k := newKeyring(t, "p0", "d0")
	k.peers("p0", "d0")
	k.peers("d0", "p0")
	cfg := Config{Node: "p0"}
	k.give(&cfg)
	c, err := openCurve(&cfg.Curve, testLogger(t))
	if err != nil {
		t.Fatal(err)
	}
	if n := c.node(k.public["d0"]); n != "d0" {
		t.Fatalf("have %q", n)
	}
	old := k.public["d0"]
	changed := func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.looked = time.Time{} // as if a second had passed
	}
	k.write("p0.peers", "d0 "+old+" and more\n", 0o644)
	changed()
	if n := c.node(old); n != "d0" {
		t.Errorf("a file that cannot be read leaves %q, want d0", n)
	}
	k.draw("d0")
	k.peers("p0", "d0", "p0")
	changed()
	if n := c.node(old); n != "" {
		t.Errorf("the old key is still that of %q", n)
	}
	if n := c.node(k.public["d0"]); n != "d0" {
		t.Errorf("the new key is that of %q", n)
	}
	if why := c.misfit(&backends.Abort{Ext: &backends.Extension{Node: "d0"}}, old); !strings.Contains(why, "is not in curve.peers_file") {
		t.Errorf("a message with the old key: %q", why)
	}
}

func TestCurveKeyFiles(t *testing.T) {
	k := newKeyring(t, "p0", "d0")
	secret := filepath.Join(k.dir, "p0.key")
	if public, err := CurvePublicKey(secret); err != nil || public != k.public["p0"] {
		t.Fatalf("have %q, %v", public, err)
	}
	k.peers("p0", "d0")
	good := filepath.Join(k.dir, "p0.peers")
	for i, c := range []struct{ secret, peers, key, want string }{
		{filepath.Join(k.dir, "none"), good, "curve.secret_file", "no such file"},
		{k.write("open", "x", 0o644), good, "curve.secret_file", "open to everybody (mode 0644): chmod 0600"},
		{k.write("short", "abc\n", 0o600), good, "curve.secret_file", "one line with a secret key of 40 characters"},
		{secret, filepath.Join(k.dir, "none"), "curve.peers_file", "no such file"},
		{secret, k.write("words", "d0\n", 0o644), "curve.peers_file", `have "d0"`},
		{secret, k.write("twice", fmt.Sprintf("d0 %s\nd1 %[1]s\n", k.public["d0"]), 0o644), "curve.peers_file", "d0 and d1 have one key"},
	} {
		_, err := openCurve(&CurveConfig{SecretFile: c.secret, PeersFile: c.peers}, testLogger(t))
		var bad *ConfigError
		if !errors.As(err, &bad) || bad.Key != c.key || !strings.Contains(err.Error(), c.want) {
			t.Errorf("case %d: %v, want %s of %s", i, err, c.want, c.key)
		}
	}
	for _, c := range []struct {
		change func(*Config)
		want   string
	}{
		{func(c *Config) { c.Curve.SecretFile = "x" }, "curve.peers_file: is not set"},
		{func(c *Config) { c.Curve.PeersFile = "x" }, "curve.secret_file: is not set"},
		{func(c *Config) { c.Curve, c.Extension = CurveConfig{"x", "y"}, false }, "extension is off"},
		{func(c *Config) { c.Curve, c.RegisterOwn = CurveConfig{"x", "y"}, false }, "register_own is off"},
	} {
		cfg := testConfig(t, "prefill", "p0")
		c.change(&cfg)
		if err := cfg.Validate(); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("have %v, want %s", err, c.want)
		}
	}
}

func testLogger(t *testing.T) *slog.Logger {
	t.Helper()
	return slog.New(slog.NewTextHandler(testLog{t}, nil))
}
