// Package rdmatest is the suite that every rdma provider passes (rdma.md 7.8).
// A provider's test calls Run with a constructor:
//
//	func TestConformance(t *testing.T) {
//		rdmatest.Run(t, func(*testing.T) rdma.Provider { return tcp.Provider{} })
//	}
//
// Run starts the test binary again to have a peer that it can kill; that child
// takes part through the same call of Run.
package rdmatest
