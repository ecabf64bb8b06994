package fault_test

import (
	"testing"

	"go.uber.org/goleak"

	"github.com/pdlog/pdlog/rdma"
	"github.com/pdlog/pdlog/rdma/fault"
	"github.com/pdlog/pdlog/rdma/rdmatest"
	"github.com/pdlog/pdlog/rdma/tcp"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// A wrapper that breaks nothing is a provider like any other.
func TestConformanceWithoutFaults(t *testing.T) {
	rdmatest.Run(t, func(*testing.T) rdma.Provider { return fault.New(tcp.Provider{}, fault.Spec{}, 1) })
}
