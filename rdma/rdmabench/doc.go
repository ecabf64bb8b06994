// Package rdmabench measures providers beside the limits of the machine they
// run on, in one process: page writes that are acknowledged one by one, the
// latency of one write, a revocation while writes stream in; against them a TCP
// copy without frames, and memcpy. `pdnode bench rdma` and the Go benchmarks of
// the providers use it (rdma.md 4 and 9.4).
package rdmabench
