package demo

import (
	"context"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"connectrpc.com/connect"
	"github.com/cockroachdb/errors"

	"github.com/pdlog/pdlog/node/engineclient"
	"github.com/pdlog/pdlog/node/enginepb"
	"github.com/pdlog/pdlog/rdma/fault"
)

// Cluster is the demo's set of processes: nodes p0 (prefill, with the embedded
// JetStream) and d0 (decode), and a stand-in for the engine of each. Methods
// are for one goroutine, but what ends, signals, places and restarts a node may be
// called while Wait runs.
type Cluster struct {
	opts Options
	self string
	dir  string
	// sockDir holds the sockets when dir's path is too long for one.
	sockDir string
	plan    *Plan
	sp      *spawner

	// Set by Place and Mirror, before Start.
	places   map[string]Place
	natsURL  string
	replicas int

	mu      sync.Mutex
	nodes   map[string]*process
	engines map[string]*process
	links   map[string]*pipeLink

	messages chan fromEngine
	failed   chan error
	readers  sync.WaitGroup
}

type fromEngine struct {
	role string
	m    Message
}

const (
	readyWait = 2 * time.Minute       // for a node or stand-in to come up; the machine may be emulated
	pollEvery = 20 * time.Millisecond // of Status while waiting
	stopWait  = 15 * time.Second      // for a node to drain and close its log
	endWait   = 5 * time.Second       // for a stand-in to end
	// maxSocketPath of a unix socket on Linux, with its final zero byte: 108.
	maxSocketPath = 107
	stopGrace     = 500 * time.Millisecond // nothing is open any more at the end
)

// NewCluster prepares dir and the plan; nothing runs yet. self is the pdnode
// binary.
func NewCluster(o Options, self, dir string, plan *Plan) *Cluster {
	return &Cluster{
		opts: o, self: self, dir: dir, plan: plan, sp: newSpawner(),
		nodes: map[string]*process{}, engines: map[string]*process{}, links: map[string]*pipeLink{},
		places:   map[string]Place{},
		messages: make(chan fromEngine, 64), failed: make(chan error, 8),
	}
}

// Start brings everything up: the prefill node, the decode node, the stand-ins,
// and waits until both nodes are ready for rooms.
func (c *Cluster) Start(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, readyWait)
	defer cancel()
	if len(c.Socket(c.plan.PrefillNode)) > maxSocketPath {
		d, err := os.MkdirTemp("", "pdlog-")
		if err != nil {
			return errors.Wrap(err, "make directory for sockets")
		}
		c.sockDir = d
	}
	if err := c.plan.Save(filepath.Join(c.dir, "plan.json")); err != nil {
		return err
	}
	p0, d0 := c.plan.PrefillNode, c.plan.DecodeNode
	if err := c.writeConfig(p0, c.prefillConfig()); err != nil {
		return err
	}
	if err := c.startNode(p0); err != nil {
		return err
	}
	st, err := c.waitNode(ctx, p0, func(s *enginepb.StatusResponse) bool {
		return s.GetNatsUrl() != "" && s.GetBootstrap() != ""
	})
	if err != nil {
		return err
	}
	if c.natsURL == "" {
		c.natsURL = st.GetNatsUrl()
	}
	if err := c.writeConfig(d0, c.decodeConfig(st.GetBootstrap())); err != nil {
		return err
	}
	if err := c.startNode(d0); err != nil {
		return err
	}
	for role, node := range map[string]string{"prefill": p0, "decode": d0} {
		if err := c.startEngine(role, node); err != nil {
			return err
		}
	}
	for up := 0; up < 2; {
		select {
		case f := <-c.messages:
			switch f.m.Kind {
			case msgReady:
				up++
			case msgFatal:
				return errors.Newf("%s stand-in: %s", f.role, f.m.Text)
			}
		case err := <-c.failed:
			return err
		case <-ctx.Done():
			return errors.Wrap(ctx.Err(), "wait for the stand-ins")
		}
	}
	for _, node := range []string{p0, d0} {
		if _, err := c.waitNode(ctx, node, (*enginepb.StatusResponse).GetReady); err != nil {
			return err
		}
	}
	return c.waitPeer(ctx)
}

// waitPeer waits until the decode node knows the prefill node.
func (c *Cluster) waitPeer(ctx context.Context) error {
	cl := engineclient.Dial(c.Socket(c.plan.DecodeNode))
	defer cl.CloseIdle()
	for {
		res, err := cl.Peers(ctx, connect.NewRequest(&enginepb.PeersRequest{}))
		if err != nil {
			return errors.Wrap(err, "ask the decode node for its peers")
		}
		for _, p := range res.Msg.GetPeers() {
			if p.GetNode() == c.plan.PrefillNode && len(p.GetRanks()) == c.plan.PrefillRanks {
				return nil
			}
		}
		if !sleep(ctx, pollEvery) {
			return errors.Wrapf(ctx.Err(), "wait for %s to find %s", c.plan.DecodeNode, c.plan.PrefillNode)
		}
	}
}

// Begin lets the requests come.
func (c *Cluster) Begin() error {
	for _, role := range []string{"prefill", "decode"} {
		if err := c.links[role].send(Message{Kind: msgStart}); err != nil {
			return errors.Wrapf(err, "start %s stand-in", role)
		}
	}
	return nil
}

// Wait passes messages between the stand-ins until the decode one is done.
func (c *Cluster) Wait(ctx context.Context, progress func(EngineReport)) (EngineReport, error) {
	for {
		select {
		case f := <-c.messages:
			switch {
			case passedOn(f.m.Kind):
				if err := c.links[other(f.role)].send(f.m); err != nil {
					return EngineReport{}, errors.Wrapf(err, "pass %s on to the %s stand-in", f.m.Kind, other(f.role))
				}
			case f.m.Kind == msgProgress && f.m.Report != nil && progress != nil:
				progress(*f.m.Report)
			case f.m.Kind == msgDone && f.m.Report != nil:
				return *f.m.Report, nil
			case f.m.Kind == msgFatal:
				return EngineReport{}, errors.Newf("%s stand-in: %s", f.role, f.m.Text)
			}
		case err := <-c.failed:
			return EngineReport{}, err
		case <-ctx.Done():
			return EngineReport{}, ctx.Err()
		}
	}
}

func other(role string) string {
	if role == "decode" {
		return "prefill"
	}
	return "decode"
}

// Settle waits, until the deadline at most, for both nodes to have mirrored
// their logs, and returns their status.
func (c *Cluster) Settle(ctx context.Context, deadline time.Time) (map[string]*enginepb.StatusResponse, error) {
	out := map[string]*enginepb.StatusResponse{}
	for {
		lag := uint64(0)
		for _, node := range []string{c.plan.PrefillNode, c.plan.DecodeNode} {
			res, err := c.Client(node).Status(ctx, connect.NewRequest(&enginepb.StatusRequest{}))
			if err != nil {
				return nil, errors.Wrapf(err, "ask %s for its status", node)
			}
			out[node] = res.Msg
			lag += res.Msg.GetMirrorLag()
		}
		if lag == 0 || time.Now().After(deadline) || !sleep(ctx, pollEvery) {
			return out, ctx.Err()
		}
	}
}

// Client is a new client of a node.
func (c *Cluster) Client(node string) enginepb.EngineClient { return engineclient.Dial(c.Socket(node)) }

// Socket is the path of a node's engine API.
func (c *Cluster) Socket(node string) string {
	if c.sockDir != "" {
		return filepath.Join(c.sockDir, node+".sock")
	}
	return filepath.Join(c.dir, node, "pdnode.sock")
}

// LogDir is a node's log folder.
func (c *Cluster) LogDir(node string) string { return filepath.Join(c.dir, node, "log") }

// NATSURL is where the mirror can be read, while the prefill node runs.
func (c *Cluster) NATSURL() string { return c.natsURL }

// KillNode ends a node's process as a crash would (SIGKILL).
func (c *Cluster) KillNode(node string) {
	c.mu.Lock()
	p := c.nodes[node]
	c.mu.Unlock()
	p.kill()
}

// RestartNode starts a node again on its data directory.
func (c *Cluster) RestartNode(node string) error { return c.startNode(node) }

// Stop ends the stand-ins, then the nodes: decode first, since its mirror is
// in the prefill node's JetStream. It may be called more than once.
func (c *Cluster) Stop() {
	c.mu.Lock()
	engines, links, nodes := c.engines, c.links, c.nodes
	c.engines, c.links, c.nodes = map[string]*process{}, map[string]*pipeLink{}, map[string]*process{}
	sp := c.sp
	c.sp = nil
	c.mu.Unlock()
	if sp == nil {
		return
	}
	for _, p := range engines {
		p.wanted.Store(true)
	}
	for _, l := range links {
		l.close() // the word to end
	}
	drained := make(chan struct{})
	go func() { // nobody may block on a full channel while we stop
		defer close(drained)
		c.readers.Wait()
		close(c.messages)
	}()
	go func() {
		for range c.messages { //nolint:revive // thrown away
		}
	}()
	for _, p := range engines {
		select {
		case <-p.done:
		case <-time.After(endWait):
			p.kill()
		}
	}
	for _, node := range []string{c.plan.DecodeNode, c.plan.PrefillNode} {
		if p := nodes[node]; p != nil {
			p.stop(syscall.SIGTERM, stopWait)
		}
	}
	<-drained
	sp.close()
	if c.sockDir != "" {
		_ = os.RemoveAll(c.sockDir)
	}
}

func (c *Cluster) startNode(node string) error {
	dir, p := filepath.Join(c.dir, node), c.place(node)
	argv := append(slices.Clone(p.Enter), p.Binary, "run", "--config", filepath.Join(dir, "pdnode.yaml"))
	return c.spawn(node, c.nodes, argv, filepath.Join(dir, "pdnode.log"), nil, nil)
}

func (c *Cluster) startEngine(role, node string) error {
	dir := filepath.Join(c.dir, node)
	// os.Pipe, not StdoutPipe: Wait would close that one under the reader.
	inR, inW, err := os.Pipe()
	if err != nil {
		return errors.Wrap(err, "pipe")
	}
	outR, outW, err := os.Pipe()
	if err != nil {
		return errors.Wrap(err, "pipe")
	}
	err = c.spawn(role, c.engines, []string{
		c.self, "demo-engine", "--role", role,
		"--socket", c.Socket(node), "--plan", filepath.Join(c.dir, "plan.json"),
	}, filepath.Join(dir, "engine.log"), inR, outW)
	_, _ = inR.Close(), outW.Close() // the child's ends
	if err != nil {
		_, _ = inW.Close(), outR.Close()
		return err
	}
	l := &pipeLink{link: newLink(outR, inW), w: inW}
	c.links[role] = l
	c.readers.Go(func() {
		defer func() { _ = outR.Close() }()
		for {
			m, err := l.receive()
			if err != nil {
				return
			}
			c.messages <- fromEngine{role, m}
		}
	})
	return nil
}

func (c *Cluster) spawn(name string, into map[string]*process, argv []string, log string, in io.Reader, out io.Writer) error {
	p, err := c.sp.start(name, argv, log, in, out)
	if err != nil {
		return err
	}
	c.mu.Lock()
	into[name] = p
	c.mu.Unlock()
	go func() {
		<-p.done
		if !p.wanted.Load() {
			select {
			case c.failed <- errors.Newf("%s ended by itself (%v): %s (more in %s)", name, p.cmd.ProcessState, p.lastWords(), p.log):
			default:
			}
		}
	}()
	return nil
}

// waitNode asks a node for its status until ok says so.
func (c *Cluster) waitNode(ctx context.Context, node string, ok func(*enginepb.StatusResponse) bool) (*enginepb.StatusResponse, error) {
	cl := engineclient.Dial(c.Socket(node))
	defer cl.CloseIdle()
	why := "no answer yet"
	for {
		res, err := cl.Status(ctx, connect.NewRequest(&enginepb.StatusRequest{}))
		switch {
		case err == nil && ok(res.Msg):
			return res.Msg, nil
		case err == nil:
			why = res.Msg.GetNotReady()
		case ctx.Err() == nil:
			why = err.Error()
		}
		t := time.NewTimer(pollEvery)
		select {
		case <-t.C:
		case err := <-c.failed:
			t.Stop()
			return nil, err
		case <-ctx.Done():
			t.Stop()
			return nil, errors.Wrapf(ctx.Err(), "wait for node %s (%s)", node, why)
		}
	}
}

func (c *Cluster) writeConfig(node string, lines []string) error {
	dir := filepath.Join(c.dir, node)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return errors.Wrap(err, "make node directory")
	}
	return errors.Wrap(os.WriteFile(filepath.Join(dir, "pdnode.yaml"), []byte(strings.Join(lines, "\n")+"\n"), 0o600), "write configuration")
}

// common is what both nodes are told. %q is a valid YAML string.
func (c *Cluster) common(node, role string, ranks int) []string {
	p := c.place(node)
	return overridden([]string{
		fmt.Sprintf("node: %q", node),
		fmt.Sprintf("listen: %q", p.Host),
		fmt.Sprintf("role: %q", role),
		fmt.Sprintf("ranks: %d", ranks),
		fmt.Sprintf("dialect: %q", c.opts.Backend),
		fmt.Sprintf("data_dir: %q", filepath.Join(c.dir, node)),
		fmt.Sprintf("socket: %q", c.Socket(node)),
		fmt.Sprintf("page_size: %d", c.opts.PageTokens),
		fmt.Sprintf("release_policy: %q", c.opts.ReleasePolicy),
		fmt.Sprintf("ack_timeout: %q", c.opts.AckTimeout),
		fmt.Sprintf("transfer_timeout: %q", c.opts.TransferTimeout),
		// A request waits for source pages at most this long on a demo's scale.
		`waiting_timeout: "60s"`,
		`bootstrap_timeout: "60s"`,
		fmt.Sprintf("stop_grace: %q", stopGrace),
		"log: {segment_bytes: 8388608}", // a demo's log is short
	}, p.More)
}

// faults are the lines about one side's part of the spec, which was validated.
func (c *Cluster) faults(part func(fault.Spec) fault.Spec) []string {
	spec, err := fault.ParseSpec(c.opts.Fault)
	if err != nil || len(part(spec).Rules) == 0 {
		return nil
	}
	return []string{fmt.Sprintf("  fault: %q", part(spec)), fmt.Sprintf("  fault_seed: %d", c.opts.Seed&(1<<62-1))}
}

func (c *Cluster) prefillConfig() []string {
	p := c.place(c.plan.PrefillNode)
	lines := append(c.common(c.plan.PrefillNode, "prefill", c.plan.PrefillRanks),
		fmt.Sprintf("bootstrap: %q", net.JoinHostPort(p.Host, strconv.Itoa(p.Port))),
		"rdma:", fmt.Sprintf("  provider: %q", c.opts.Provider), fmt.Sprintf("  checksums: %t", c.opts.Checksums))
	lines = append(lines, c.faults(fault.Spec.Writer)...)
	if c.natsURL != "" {
		return append(lines, c.mirror()...)
	}
	return append(lines, "nats:", "  embedded: true", "  port: -1")
}

func (c *Cluster) decodeConfig(bootstrap string) []string {
	lines := append(c.common(c.plan.DecodeNode, "decode", c.plan.DecodeRanks),
		fmt.Sprintf("pages: %d", c.plan.Pages),
		fmt.Sprintf("aux_rows: %d", c.plan.AuxRows),
		fmt.Sprintf("peers: [%q]", bootstrap),
		"rdma:", fmt.Sprintf("  provider: %q", c.opts.Provider), fmt.Sprintf("  checksums: %t", c.opts.Checksums))
	lines = append(lines, c.faults(fault.Spec.Target)...)
	return append(lines, c.mirror()...)
}
