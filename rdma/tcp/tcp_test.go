package tcp_test

import (
	"testing"

	"go.uber.org/goleak"

	"github.com/pdlog/pdlog/rdma"
	"github.com/pdlog/pdlog/rdma/rdmatest"
	"github.com/pdlog/pdlog/rdma/tcp"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestConformance(t *testing.T) {
	rdmatest.Run(t, func(*testing.T) rdma.Provider { return tcp.Provider{} })
}

// sameHost is what rdmatest asks: there is no network to partition.
type sameHost struct{ tcp.Provider }

func (sameHost) SameHost() bool { return true }

func TestConformanceOnOneHost(t *testing.T) {
	rdmatest.Run(t, func(*testing.T) rdma.Provider { return sameHost{tcp.Provider{Near: true}} })
}
