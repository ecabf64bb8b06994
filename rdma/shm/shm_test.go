package shm_test

import (
	"testing"

	"go.uber.org/goleak"

	"github.com/pdlog/pdlog/rdma"
	"github.com/pdlog/pdlog/rdma/rdmatest"
	"github.com/pdlog/pdlog/rdma/shm"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestConformance(t *testing.T) {
	rdmatest.Run(t, func(*testing.T) rdma.Provider { return shm.Provider{} })
}
