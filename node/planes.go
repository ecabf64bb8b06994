package node

import (
	"context"
	"net"
	"strconv"

	"github.com/cockroachdb/errors"

	"github.com/pdlog/pdlog/backends/bootstrap"
	"github.com/pdlog/pdlog/projector"
	"github.com/pdlog/pdlog/rdma"
	"github.com/pdlog/pdlog/rdma/fault"
	"github.com/pdlog/pdlog/rdma/shm"
	"github.com/pdlog/pdlog/rdma/tcp"
)

// providers are the data planes of this build, by the name that configuration
// and write keys give them.
var providers = map[string]rdma.Provider{
	autoProvider: tcp.Provider{Near: true}, // tcp, and what shm does where both nodes are on one host
	tcp.Name:     tcp.Provider{},
	shm.Name:     shm.Provider{}, // both nodes on one host
}

const autoProvider = "auto"

// openPlanes opens the data plane: decode listens and grants, prefill posts.
func (n *Node) openPlanes(ctx context.Context) error {
	provider := providers[n.cfg.RDMA.Provider]
	secure, err := n.cfg.RDMA.TLS.peer("rdma.tls", n.log)
	if err != nil {
		return err
	}
	cfg := rdma.Config{
		Self: peerName(n.cfg.Node, n.boot), Conns: n.cfg.RDMA.Conns, Device: n.cfg.RDMA.Device,
		Checksums: n.cfg.RDMA.Checksums, TLS: secure,
	}
	spec, err := fault.ParseSpec(n.cfg.RDMA.Fault)
	if err != nil {
		return badKey("rdma.fault", "%v", err)
	}
	if len(spec.Rules) > 0 {
		provider = fault.New(provider, spec, uint64(n.cfg.RDMA.FaultSeed)) //nolint:gosec // any number
	}
	if n.cfg.Role == "decode" {
		n.receive = newReceivePlane(n.memory, func(c projector.Command) { n.loop.tell(c) })
		n.receive.host = n.cfg.advertised()
		cfg.Listen = net.JoinHostPort(n.cfg.Listen, "0")
		if provider.Name() == shm.Name {
			cfg.Listen = shm.ListenAny
		}
		cfg.OnNotif = n.receive.hear
	} else {
		n.post = newPostPlane(n.memory, n.shapes, func(c projector.Command) { n.loop.tell(c) }, n.log)
		n.post.took = n.metrics.chunkTook
		cfg.OnCompletion = n.post.complete
		if n.cfg.RDMA.EngineWrites {
			n.engineWrites = newEngineWrites()
			n.post.byEngine = func(a *projector.PostWrite, seq uint64) error {
				told, err := n.notifications(a)
				if err != nil {
					return err
				}
				return n.engineWrites.hand(n.hub, a, seq, told)
			}
		}
	}
	d, err := provider.Open(ctx, cfg)
	if err != nil {
		return errors.Wrapf(err, "open rdma provider %s", provider.Name())
	}
	n.domain = d
	n.client = bootstrap.NewClient(bootstrap.ClientConfig{Log: n.log})
	if n.receive != nil {
		n.receive.domain = d
		n.peers = newPeerTable(&n.cfg, &n.live, n.client, func(c projector.Command) { n.loop.tell(c) })
		n.peers.fence = fenceKind(d.Caps().Fence)
		n.peers.memory = n.memory.ready
		n.peers.greet, n.peers.curve = n.greet, n.curve
	} else {
		n.post.domain = d
	}
	return nil
}

// openBootstrap makes the prefill's bootstrap server, which knows its own ranks
// from the beginning unless others alone are served by it (register_own).
func (n *Node) openBootstrap() (*bootstrap.Server, error) {
	id := n.store.LogID()
	ranks := make([]bootstrap.Rank, len(n.addresses))
	regs, err := n.ownRegistrations()
	if err != nil {
		return nil, err
	}
	for i, r := range regs {
		ranks[i] = bootstrap.Rank{DP: r.AttnDPRank, CP: r.AttnCPRank, TP: r.AttnTPRank, PP: r.PPRank, IP: r.RankIP, Port: r.RankPort}
	}
	public := ""
	if n.curve != nil {
		public = n.curve.public
	}
	s, err := bootstrap.New(bootstrap.Config{
		Node: n.cfg.Node, Boot: n.boot, Incarnation: n.store.Incarnation(), Version: Version,
		LogSince: func() uint64 { return n.logSince }, LogID: id[:], Extension: n.cfg.Extension, Curve: public,
		TopologyKeys: bootstrap.TopologyKeys(n.cfg.TopologyKeys), DecodeAllocationPolicy: bootstrap.AllocationPolicy(n.cfg.DecodeAllocationPolicy),
		OwnRanks: func() []bootstrap.Rank { return ranks }, Outstanding: n.outstanding, Log: n.log,
	})
	if err != nil || !n.cfg.RegisterOwn {
		return s, err
	}
	for _, r := range regs {
		if err := s.Register(r); err != nil {
			return nil, err
		}
	}
	return s, nil
}

func splitAddress(at string) (host string, port uint16, err error) {
	h, p, err := net.SplitHostPort(at)
	if err != nil {
		return "", 0, errors.Wrapf(err, "address %q", at)
	}
	v, err := strconv.ParseUint(p, 10, 16)
	return h, uint16(v), errors.Wrapf(err, "address %q", at)
}
