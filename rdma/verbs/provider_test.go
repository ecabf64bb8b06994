//go:build verbs

package verbs_test

import (
	"testing"

	"github.com/pdlog/pdlog/rdma"
	"github.com/pdlog/pdlog/rdma/rdmatest"
	"github.com/pdlog/pdlog/rdma/verbs"
)

func TestConformance(t *testing.T) {
	device(t)
	rdmatest.Run(t, func(*testing.T) rdma.Provider { return verbs.Provider{} })
}
