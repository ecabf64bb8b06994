package node

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/cockroachdb/errors"

	"github.com/pdlog/pdlog/backends/bootstrap"
)

// ownRegistrations is what this prefill's ranks say of themselves at a
// bootstrap server, its own or another's.
func (n *Node) ownRegistrations() ([]bootstrap.Registration, error) {
	t := n.cfg.topology()
	out := make([]bootstrap.Registration, len(n.addresses))
	for i, at := range n.addresses {
		host, port, err := splitAddress(at)
		if err != nil {
			return nil, err
		}
		p := t.place(i)
		out[i] = bootstrap.Registration{
			AttnTPSize: t.TPSize, AttnTPRank: p.tp, AttnCPSize: t.CPSize, AttnCPRank: p.cp,
			AttnDPSize: t.DPSize, AttnDPRank: p.dp, PPSize: t.PPSize, PPRank: p.pp, SystemDPSize: 1,
			RankIP: host, RankPort: port, PageSize: n.cfg.PageSize, KVCacheDType: n.cfg.DType,
			LoadBalanceMethod: n.cfg.LoadBalanceMethod,
		}
	}
	return out, nil
}

// registrar keeps this node's ranks registered at the bootstrap servers of
// others: it tries until it succeeds, looks again at every heartbeat, and
// registers anew at a server that has forgotten them (F34).
type registrar struct {
	ask   *bootstrap.Client
	every time.Duration
	at    []string
	ranks []bootstrap.Registration

	mu    sync.Mutex
	state map[string]string // "rank at server" -> why it is not there
	wg    sync.WaitGroup
}

// newRegistrar prepares the registrations at register_at.
func (n *Node) newRegistrar() error {
	regs, err := n.ownRegistrations()
	if err != nil {
		return err
	}
	r := &registrar{ask: n.client, every: n.cfg.Heartbeat, at: n.cfg.RegisterAt, ranks: regs, state: map[string]string{}}
	for _, at := range r.at {
		for i := range regs {
			r.state[registrationName(i, at)] = "not tried yet"
		}
	}
	n.registrar = r
	return nil
}

// start begins to register, until ctx ends.
func (r *registrar) start(ctx context.Context) {
	for _, at := range r.at {
		for i, reg := range r.ranks {
			r.wg.Go(func() { r.keep(ctx, at, i, reg) })
		}
	}
}

func (r *registrar) wait() { r.wg.Wait() }

func registrationName(rank int, at string) string { return fmt.Sprintf("rank %d at %s", rank, at) }

// keep registers one rank at one server and keeps it there.
func (r *registrar) keep(ctx context.Context, at string, rank int, reg bootstrap.Registration) {
	name := registrationName(rank, at)
	told := func(s bootstrap.RegisterState) {
		switch {
		case s.Ready:
			r.set(name, "")
		case s.Err != nil:
			r.set(name, fmt.Sprintf("%d attempts, the last: %v", s.Attempts, s.Err))
		}
	}
	for ctx.Err() == nil {
		if err := r.ask.Register(ctx, at, reg, told); err != nil {
			if ctx.Err() == nil { // it can never be good
				r.set(name, err.Error())
			}
			return
		}
		if why := r.watch(ctx, at, reg, func(why string) { r.set(name, why) }); why != "" {
			r.set(name, why)
		}
	}
}

// watch returns why the server does not have the rank any more. It may have
// forgotten it when it was not there for a while, when it was ready and is not
// now, and when it says so. A rank is never registered twice without need: an
// SGLang server counts registrations (F32).
func (r *registrar) watch(ctx context.Context, at string, reg bootstrap.Registration, say func(why string)) string {
	t := time.NewTicker(r.every)
	defer t.Stop()
	complete, gone := false, ""
	for {
		select {
		case <-ctx.Done():
			return ""
		case <-t.C:
		}
		have, err := r.ask.Rank(ctx, at, reg.AttnDPRank, reg.AttnCPRank, reg.AttnTPRank, reg.PPRank)
		switch {
		case err == nil && have.IP == reg.RankIP && have.Port == reg.RankPort:
			complete, gone = true, ""
			say("")
		case err == nil:
			return fmt.Sprintf("%s:%d has its place", have.IP, have.Port)
		case errors.Is(err, bootstrap.ErrNoRank):
			return "the server has no such rank"
		case errors.Is(err, bootstrap.ErrNotReady) && (complete || gone != ""):
			return "the server has begun anew"
		case errors.Is(err, bootstrap.ErrNotReady):
		case ctx.Err() == nil:
			gone = err.Error()
			say(gone)
		}
	}
}

func (r *registrar) set(name, why string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if why == "" {
		delete(r.state, name)
		return
	}
	r.state[name] = why
}

// missing says which ranks are not registered where, "" if all are.
func (r *registrar) missing() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	var out []string
	for name, why := range r.state {
		out = append(out, name+": "+why)
	}
	slices.Sort(out)
	return strings.Join(out, "; ")
}

// unregistered says why decode cannot find this prefill yet, "" if it can.
func (n *Node) unregistered() string {
	if n.registrar == nil {
		return ""
	}
	if why := n.registrar.missing(); why != "" {
		return "not registered: " + why
	}
	if s := n.routes.Stats(); n.cfg.RegisterOwn && !s.Ready {
		return fmt.Sprintf("%d of %d ranks of the instance are registered at this node's bootstrap server", s.Ranks, s.Expected)
	}
	return ""
}

const (
	groupPause = 50 * time.Millisecond // between two questions for a room's DP group
	groupWait  = 5 * time.Second       // the engine asks again after that
	groupTell  = 30 * time.Second      // how long a prefill tries to say a room's DP group
)

// groupOf finds the DP group that serves a room: its number says so, or the
// prefill has said it at its bootstrap server.
func (n *Node) groupOf(ctx context.Context, p *prefill, room uint64) (int, error) {
	if dp, ok := p.topology.group(room); ok {
		return dp, nil
	}
	ctx, cancel := context.WithTimeout(ctx, groupWait)
	defer cancel()
	for {
		ranks, err := n.client.QueryDPRanks(ctx, p.bootstrap, []uint64{room})
		if dp, ok := ranks[room]; ok && dp < p.topology.dp {
			return dp, nil
		}
		t := time.NewTimer(groupPause)
		select {
		case <-ctx.Done():
			t.Stop()
			if err == nil {
				err = errors.New("no answer names it")
			}
			return 0, errors.Wrapf(err, "which DP rank of %s serves room %d is not known", p.bootstrap, room)
		case <-t.C:
		}
	}
}

// sayGroup tells every bootstrap server of the instance that this node's DP
// group serves a room, unless the room's number says it. The error is that of a
// room whose number says another group.
func (n *Node) sayGroup(room uint64) error {
	t := n.cfg.topology()
	switch {
	case t.DPSize == 1:
		return nil
	case n.cfg.LoadBalanceMethod == bootstrap.FollowBootstrapRoom:
		if want := room % uint64(t.DPSize); want != uint64(t.DPRank) { //nolint:gosec // positive
			return errors.Newf("room %d belongs to DP rank %d, this is %d", room, want, t.DPRank)
		}
		return nil
	}
	for _, at := range append([]string{n.bootAddr}, n.cfg.RegisterAt...) {
		n.background.Go(func() {
			ctx, cancel := context.WithTimeout(n.life, groupTell)
			defer cancel()
			for {
				err := n.client.RegisterDPRank(ctx, at, room, t.DPRank)
				if err == nil {
					return
				}
				if ctx.Err() != nil || !n.pause(groupPause) {
					n.log.Warn("DP rank of a room not told", "room", room, "at", at, "err", err)
					return
				}
			}
		})
	}
	return nil
}
