package demo

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"time"

	"connectrpc.com/connect"
	"github.com/cockroachdb/errors"

	"github.com/pdlog/pdlog/node"
	"github.com/pdlog/pdlog/node/enginepb"
)

// Env is what a run has around it.
type Env struct {
	Self   string                                // the pdnode binary
	Note   func(format string, args ...any)      // a line for people
	Report func(EngineReport)                    // progress; may be nil
	Result func(context.Context, *Summary) error // called once, before --keep waits
}

// Run is `pdnode demo`. It has stopped every process when it returns, with
// Keep not before ctx ends. The summary is complete when err is nil.
func Run(ctx context.Context, o Options, env Env) (err error) {
	if err := o.Validate(); err != nil {
		return err
	}
	if err := nodeTakes(o); err != nil {
		return err
	}
	reqs, err := requests(o)
	if err != nil {
		return err
	}
	if len(reqs) < o.Requests {
		env.Note("the trace has %d requests, all are taken", len(reqs))
	}
	plan := MakePlan(o, reqs)
	dir, err := prepareDir(o.DataDir)
	if err != nil {
		return err
	}
	env.Note("data in %s", dir)
	for _, it := range plan.Items {
		if it.TooLarge {
			env.Note("request %d (%d tokens) needs %d pages of a pool of %d: it will fail", it.Index, it.Tokens, it.Pages, o.Pages)
		}
	}
	c := NewCluster(o, env.Self, dir, &plan)
	defer c.Stop()
	if err := c.Start(ctx); err != nil {
		return err
	}
	began := time.Now()
	if err := c.Begin(); err != nil {
		return err
	}
	report, err := c.Wait(ctx, env.Report)
	if err != nil {
		return err
	}
	took := time.Since(began)
	s, err := c.Conclude(ctx, report, took)
	if err != nil {
		return err
	}
	if err := env.Result(ctx, s); err != nil {
		return err
	}
	if o.Keep {
		env.Note("everything stays up until you interrupt")
		<-ctx.Done()
	}
	return nil
}

// Conclude waits for the mirror, compares both sides' view of the pages, stops
// the processes unless they are kept, and reads the logs.
func (c *Cluster) Conclude(ctx context.Context, report EngineReport, took time.Duration) (*Summary, error) {
	status, err := c.Settle(ctx, time.Now().Add(settle))
	if err != nil {
		return nil, err
	}
	report, lost, err := c.reconcile(ctx, report)
	if err != nil {
		return nil, err
	}
	if !c.opts.Keep {
		c.Stop()
	}
	t := newTally()
	roles := []struct{ node, role string }{{c.plan.PrefillNode, "prefill"}, {c.plan.DecodeNode, "decode"}}
	for _, n := range roles {
		if c.opts.Keep {
			err = t.readLive(ctx, c.Client(n.node))
		} else {
			err = t.readDir(c.LogDir(n.node))
		}
		if err != nil {
			return nil, err
		}
	}
	s := summarize(report, t, lost, took)
	for _, n := range roles {
		s.Nodes = append(s.Nodes, NodeSummary{
			Node: n.node, Role: n.role, Events: t.events[n.node], Log: c.LogDir(n.node), MirrorLag: status[n.node].GetMirrorLag(), MirrorError: status[n.node].GetMirrorError(),
		})
	}
	s.NATSURL, s.DataDir, s.keep = c.natsURL, c.dir, c.opts.Keep
	return s, nil
}

// agreeWait: a release that is told at this very moment reaches the stand-in
// within it.
const agreeWait = time.Second

// reconcile compares the pages that the stand-in has not got back with those
// that the node says are not free. Pages on which they do not agree are lost.
func (c *Cluster) reconcile(ctx context.Context, report EngineReport) (EngineReport, int, error) {
	for deadline := time.Now().Add(agreeWait); ; {
		res, err := c.Client(c.plan.DecodeNode).Pages(ctx, connect.NewRequest(&enginepb.PagesRequest{}))
		if err != nil {
			return report, 0, errors.Wrap(err, "ask the decode node for its pages")
		}
		lost := disagree(report.Taken, res.Msg, c.plan.Pages)
		if lost == 0 || time.Now().After(deadline) || !sleep(ctx, pollEvery) {
			return report, lost, ctx.Err()
		}
		if err := c.links["decode"].send(Message{Kind: msgAgain}); err != nil {
			return report, lost, errors.Wrap(err, "ask the decode stand-in")
		}
		if report, err = c.Wait(ctx, nil); err != nil {
			return report, lost, err
		}
	}
}

// disagree counts pages that one side has and the other does not know of, and
// those that are in none of the node's states.
func disagree(taken []uint32, node *enginepb.PagesResponse, pool int) int {
	lost := pool - int(node.GetFree()+node.GetOwned()+node.GetHeld()+node.GetQuarantined()) //nolint:gosec // page counts
	lost = max(lost, -lost)
	busy := map[uint32]bool{}
	for _, v := range node.GetPages() {
		if v.GetState() != "free" {
			busy[v.GetPage()] = true
		}
	}
	for _, g := range taken {
		if !busy[g] {
			lost++
		}
		delete(busy, g)
	}
	return lost + len(busy)
}

// nodeTakes asks the node's own rules about what is passed on to it, before
// anything starts.
func nodeTakes(o Options) error {
	c := node.DefaultConfig()
	c.Node, c.Role, c.Bootstrap, c.DataDir = "p0", "prefill", "127.0.0.1:0", "."
	c.RDMA.Provider = o.Provider
	// Other keys are the node's own business; it will say so when it starts.
	if err := c.Validate(); err != nil && strings.Contains(err.Error(), "rdma.provider") {
		return &OptionError{Flag: "provider", What: "not in this build: " + err.Error()}
	}
	return nil
}

func requests(o Options) ([]Request, error) {
	if o.Trace == "" {
		return Generate(o.Seed, o.Requests), nil
	}
	return ReadTrace(o.Trace, o.Requests)
}

// prepareDir makes the data directory. One that holds logs already is refused:
// a second run would go on in them.
func prepareDir(dir string) (string, error) {
	if dir == "" {
		d, err := os.MkdirTemp("", "pdlog-demo-")
		return d, errors.Wrap(err, "make data directory")
	}
	dir, err := filepath.Abs(dir)
	if err != nil {
		return "", errors.Wrap(err, "data directory")
	}
	if old, _ := filepath.Glob(filepath.Join(dir, "*", "log", "*.db")); len(old) > 0 {
		return "", &OptionError{Flag: "data-dir", What: dir + " holds logs of an earlier run already"}
	}
	return dir, errors.Wrap(os.MkdirAll(dir, 0o700), "make data directory")
}
