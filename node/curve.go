package node

import (
	"bufio"
	"bytes"
	"log/slog"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/cockroachdb/errors"
	zmq "github.com/pebbe/zmq4"

	"github.com/pdlog/pdlog/backends"
	"github.com/pdlog/pdlog/projector"
)

// CurveConfig is ZeroMQ's CURVE on the control sockets, between pdlog nodes:
// what they say is encrypted, and comes from a node whose key is known. SGLang's
// ranks cannot speak it, so a node that has it serves pdlog peers alone.
type CurveConfig struct {
	SecretFile string `koanf:"secret_file"` // this node's secret key, as pdnode keygen writes it; empty = the control sockets are plain
	PeersFile  string `koanf:"peers_file"`  // who may talk to this node: lines of a node's name and its public key; read again when it changes
}

// validate: both files or none, and no half of the fleet that cannot speak it.
func (c *Config) validateCurve() error {
	k := &c.Curve
	switch {
	case *k == CurveConfig{}:
		return nil
	case k.SecretFile == "":
		return badKey("curve.secret_file", "is not set, and curve.peers_file is")
	case k.PeersFile == "":
		return badKey("curve.peers_file", "is not set, and curve.secret_file is: without it nobody may talk to this node")
	case !c.Extension:
		return badKey("curve.secret_file", "is set, and extension is off: only pdlog peers speak CURVE")
	case c.Role == "prefill" && !c.RegisterOwn:
		return badKey("curve.secret_file", "is set, and register_own is off: the ranks of others speak no CURVE")
	case !zmq.HasCurve():
		return badKey("curve.secret_file", "is set, and this machine's libzmq was built without CURVE")
	}
	return nil
}

// curveDomain is the word that ZeroMQ gives the handler which decides who may
// connect.
const curveDomain = "pdlog"

// curveLook is how long a peers file is taken to be what it was.
const curveLook = time.Second

// curvePlaces bounds the addresses that are remembered: four times the peers
// that a node takes by default.
const curvePlaces = 1 << 16

// curve is a node's key and whom it knows.
type curve struct {
	public, secret string // Z85, as ZeroMQ's tools print keys
	path           string // of the peers file
	log            *slog.Logger

	mu     sync.Mutex
	looked time.Time
	seen   fileMark
	nodes  map[string]string   // public key -> node
	keys   map[string][]string // node -> its keys, in the order of the file
	at     map[string]string   // control address -> the key of who is there
	order  []string            // the addresses in at, a ring
	oldest int                 // in order
	tell   func(projector.Command)
	said   map[string]time.Time // what was logged, when last
}

type fileMark struct {
	mtime time.Time
	size  int64
}

// openCurve reads the files; nil without any.
func openCurve(cfg *CurveConfig, log *slog.Logger) (*curve, error) {
	if *cfg == (CurveConfig{}) {
		return nil, nil //nolint:nilnil // plain sockets are a setting
	}
	c := &curve{path: cfg.PeersFile, log: log, at: map[string]string{}, said: map[string]time.Time{}}
	var err error
	if c.secret, err = readSecret(cfg.SecretFile); err != nil {
		return nil, badKey("curve.secret_file", "%v", err)
	}
	if c.public, err = zmq.AuthCurvePublic(c.secret); err != nil {
		return nil, badKey("curve.secret_file", "%s holds no CURVE key: %v", cfg.SecretFile, err)
	}
	if err := c.read(); err != nil {
		return nil, badKey("curve.peers_file", "%v", err)
	}
	return c, nil
}

// NewCurveKey draws a key pair, in the form that ZeroMQ's tools print.
func NewCurveKey() (public, secret string, err error) {
	public, secret, err = zmq.NewCurveKeypair()
	return public, secret, errors.Wrap(err, "draw a CURVE key")
}

// CurvePublicKey is the public key of a secret file.
func CurvePublicKey(path string) (string, error) {
	secret, err := readSecret(path)
	if err != nil {
		return "", err
	}
	public, err := zmq.AuthCurvePublic(secret)
	return public, errors.Wrapf(err, "public key of %s", path)
}

const everybody = 0o007

// readSecret reads a secret file: one key, alone on its line.
func readSecret(path string) (string, error) {
	st, err := os.Stat(path)
	if err != nil {
		return "", err
	}
	if st.Mode().Perm()&everybody != 0 {
		return "", errors.Newf("%s is open to everybody (mode %04o): chmod 0600", path, st.Mode().Perm())
	}
	b, err := os.ReadFile(path)
	if err != nil {
		return "", err
	}
	lines := meaning(b)
	if len(lines) != 1 || !isKey(lines[0]) {
		return "", errors.Newf("%s: want one line with a secret key of 40 characters (pdnode keygen)", path)
	}
	return lines[0], nil
}

// meaning gives the lines that are neither empty nor a comment. A key may begin
// with #, so a comment has a blank behind it.
func meaning(b []byte) (out []string) {
	for s := bufio.NewScanner(bytes.NewReader(b)); s.Scan(); {
		l := strings.TrimSpace(s.Text())
		if l != "" && l != "#" && !strings.HasPrefix(l, "# ") {
			out = append(out, l)
		}
	}
	return out
}

const z85 = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ.-:+=^!/*?&<>()[]{}@%$#"

// isKey: 32 bytes in Z85.
func isKey(s string) bool {
	return len(s) == 40 && strings.Trim(s, z85) == ""
}

// read takes the peers file as it is now; the lock is held, or nobody knows c.
func (c *curve) read() error {
	st, err := os.Stat(c.path)
	if err != nil {
		return err
	}
	b, err := os.ReadFile(c.path)
	if err != nil {
		return err
	}
	nodes, keys := map[string]string{}, map[string][]string{}
	for _, l := range meaning(b) {
		f := strings.Fields(l)
		if len(f) != 2 || !validNode(f[0]) || !isKey(f[1]) {
			return errors.Newf("%s: want a node's name and a public key of 40 characters, have %q", c.path, l)
		}
		if other, twice := nodes[f[1]]; twice && other != f[0] {
			return errors.Newf("%s: %s and %s have one key", c.path, other, f[0])
		}
		nodes[f[1]] = f[0]
		keys[f[0]] = append(keys[f[0]], f[1])
	}
	c.nodes, c.keys = nodes, keys
	c.looked, c.seen = time.Now(), fileMark{st.ModTime(), st.Size()}
	return nil
}

// fresh reads the peers file again if it has changed; the lock is held. A file
// that cannot be used leaves what was known.
func (c *curve) fresh() {
	if time.Since(c.looked) < curveLook {
		return
	}
	c.looked = time.Now()
	st, err := os.Stat(c.path)
	if err == nil && (fileMark{st.ModTime(), st.Size()}) == c.seen {
		return
	}
	if err == nil {
		err = c.read()
	}
	if err != nil {
		c.warn("the CURVE peers file was not taken", "err", err.Error())
		return
	}
	c.log.Info("the CURVE peers file was read again", "file", c.path, "nodes", len(c.keys))
}

// node is whose public key it is; empty: nobody's that is known.
func (c *curve) node(key string) string {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.fresh()
	return c.nodes[key]
}

// learn notes who is at a control address.
func (c *curve) learn(address, key string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.place(address, key)
}

// place fills a bounded table: the address that was learnt first makes room;
// the lock is held.
func (c *curve) place(address, key string) {
	if _, old := c.at[address]; !old {
		if len(c.order) < curvePlaces {
			c.order = append(c.order, address)
		} else {
			delete(c.at, c.order[c.oldest])
			c.order[c.oldest] = address
			c.oldest = (c.oldest + 1) % curvePlaces
		}
	}
	c.at[address] = key
}

// expect notes that a node is at a control address, before it has said
// anything: with the first of its keys.
func (c *curve) expect(address, node string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if k := c.keys[node]; len(k) > 0 && c.at[address] == "" {
		c.place(address, k[0])
	}
}

// keyAt is the key of who has to be at a control address.
func (c *curve) keyAt(address string) string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.at[address]
}

// warn logs a line, at most once a second with the same attributes; the lock is
// held.
func (c *curve) warn(text string, attrs ...any) {
	key := text
	for _, a := range attrs {
		if s, ok := a.(string); ok {
			key += "|" + s
		}
	}
	now := time.Now()
	if now.Sub(c.said[key]) < time.Second {
		return
	}
	if len(c.said) > 1024 { // a stranger invents addresses
		clear(c.said)
	}
	c.said[key] = now
	c.log.Warn(text, attrs...)
}

// refused reports a connection or a message that was not taken.
func (c *curve) refused(from, why string) {
	c.mu.Lock()
	c.warn("control connection refused", "from", from, "why", why)
	tell := c.tell
	c.mu.Unlock()
	if tell != nil {
		tell(projector.Rejected{Kind: "curve", Reason: why, From: from})
	}
}

// report has refusals recorded from now on.
func (c *curve) report(tell func(projector.Command)) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.tell = tell
}

// misfit says why a message is not what its connection may say: its sender's
// key is not known any more, or it speaks for another node.
func (c *curve) misfit(m backends.Message, key string) string {
	node := c.node(key)
	if node == "" {
		return "the key " + key + " is not in curve.peers_file"
	}
	if x := extensionOf(m); x != nil && x.Node != node {
		return "a message of " + x.Node + " over a connection of " + node
	}
	return ""
}

// of says why a prefill node cannot be talked to, "" if it can: what it says of
// itself at its bootstrap server has to be what is known of it. c nil: this node
// has plain sockets.
func (c *curve) of(node, key string, isPDLog bool) string {
	switch {
	case c == nil && key != "":
		return "its control sockets take CURVE alone, and this node has none (curve.secret_file)"
	case c == nil:
		return ""
	case !isPDLog:
		return "it is not pdlog and cannot speak CURVE, which this node demands (curve.secret_file)"
	case key == "":
		return "its control sockets are plain, and this node demands CURVE (curve.secret_file)"
	case c.node(key) == node:
		return ""
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.keys[node]) == 0 {
		return "no CURVE key of " + node + " is in curve.peers_file"
	}
	return "its CURVE key " + key + " is not the one of " + node + " in curve.peers_file"
}

// extensionOf is a message's extension, nil without one.
func extensionOf(m backends.Message) *backends.Extension {
	switch m := m.(type) {
	case *backends.Registration:
		return m.Ext
	case *backends.Metadata:
		return m.Ext
	case *backends.Abort:
		return m.Ext
	case *backends.AbortAck:
		return m.Ext
	case *backends.Status:
		return m.Ext
	}
	return nil
}

// expectPeers has the peers of an earlier life known by name: what this life
// has to say to them does not wait until they have registered again.
func (n *Node) expectPeers(m *projector.Machine) {
	if n.curve == nil {
		return
	}
	for _, v := range m.PeerViews() {
		for _, r := range v.Ranks {
			n.curve.expect(r.Address, v.Node)
		}
	}
}
