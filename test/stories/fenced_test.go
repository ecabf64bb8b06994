package stories

import (
	"bytes"
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"connectrpc.com/connect"

	"github.com/pdlog/pdlog/node/engineclient"
	"github.com/pdlog/pdlog/node/enginepb"
	"github.com/pdlog/pdlog/rdma"
	"github.com/pdlog/pdlog/test/ladder"
)

const (
	fencedPages  = 64
	fencedChunks = 16
	fencedPage   = 256 << 10 // bytes
	stoppedFor   = 10 * time.Second
	nextOwner    = 0xa5
)

// fencedNode is a pdnode process and the memory of its engine.
type fencedNode struct {
	name, config string
	enter        []string // before its command
	cmd          *exec.Cmd
	client       *engineclient.Client
	mem          *rdma.Memfd
}

// fencedPair is a prefill node that writes to a decode node.
type fencedPair struct {
	*testing.T
	net  *network
	p, d *fencedNode
	late bool // half of the chunks leave 3 s after they were reported as failed
}

func newFencedPair(t *testing.T, provider string, partition, late bool) *fencedPair {
	t.Helper()
	dir, err := os.MkdirTemp("", "pd") //nolint:usetesting // a socket's path has to be short
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	x := &fencedPair{T: t, late: late}
	ph, dh, port := "127.0.0.1", "127.0.0.1", freePort(t)
	var pEnter, dEnter []string
	if partition {
		x.net = newNetwork(t)
		ph, dh, pEnter, dEnter = x.net.addr("p"), x.net.addr("d"), x.net.enter("p"), x.net.enter("d")
	}
	bootstrap := net.JoinHostPort(ph, strconv.Itoa(port))
	fault := ""
	if late {
		fault = `, fault: "late:3s:50%", fault_seed: 1`
	}
	x.p = x.start(dir, "p0", "prefill", pEnter, "listen: "+ph, fmt.Sprintf("bootstrap: %q", bootstrap), fmt.Sprintf("rdma: {provider: %s%s}", provider, fault))
	x.d = x.start(dir, "d0", "decode", dEnter, "listen: "+dh, fmt.Sprintf("peers: [%q]", bootstrap), fmt.Sprintf("pages: %d", fencedPages), fmt.Sprintf("rdma: {provider: %s}", provider))
	x.connected(0)
	return x
}

func (x *fencedPair) start(dir, name, role string, enter []string, more ...string) *fencedNode {
	x.Helper()
	n := &fencedNode{name: name, config: filepath.Join(dir, name+".yaml"), enter: enter}
	socket := filepath.Join(dir, name+".sock")
	lines := append([]string{
		"node: " + name, "role: " + role, "data_dir: " + filepath.Join(dir, name), "socket: " + socket, "heartbeat: 500ms",
		"ack_timeout: 500ms", "transfer_timeout: 60s", "waiting_timeout: 60s", "bootstrap_timeout: 60s", "log: {level: error, segment_bytes: 1048576}", "nats: {embedded: false}",
	}, more...)
	if err := os.WriteFile(n.config, []byte(strings.Join(lines, "\n")+"\n"), 0o600); err != nil {
		x.Fatal(err)
	}
	var err error
	if n.mem, err = rdma.AllocMemfd(name, fencedPages*(fencedPage+64)); err != nil {
		x.Fatal(err)
	}
	n.client = engineclient.Dial(socket)
	x.Cleanup(func() { n.client.CloseIdle(); _ = n.mem.Close() })
	x.run(n)
	x.Cleanup(func() {
		_ = n.cmd.Process.Kill() // may be dead already
		_ = n.cmd.Wait()
	})
	return n
}

// run starts a node's process, and registers its engine's memory.
func (x *fencedPair) run(n *fencedNode) {
	x.Helper()
	argv := append(slices.Clone(n.enter), pdnode, "run", "--config", n.config)
	n.cmd = exec.Command(argv[0], argv[1:]...) //nolint:gosec // this test's binary
	n.cmd.Stdout, n.cmd.Stderr = os.Stderr, os.Stderr
	if err := n.cmd.Start(); err != nil {
		x.Fatal(err)
	}
	x.until(n.name+" takes its memory", func(ctx context.Context) bool {
		_, err := n.client.Passing(n.mem.FD()).RegisterMemory(ctx, connect.NewRequest(&enginepb.RegisterMemoryRequest{
			PassedFd: true, PageBytes: fencedPage, Pages: fencedPages, AuxBytes: 64, AuxRows: fencedPages,
		}))
		return err == nil
	})
}

func (x *fencedPair) until(what string, ok func(context.Context) bool) {
	x.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for !ok(ctx) {
		select {
		case <-tick.C:
		case <-ctx.Done():
			x.Fatalf("not within %s: %s", patience, what)
		}
	}
}

// connected waits until decode knows prefill's life, one that is not was.
func (x *fencedPair) connected(was uint64) (boot uint64) {
	x.Helper()
	x.until("d0 knows p0", func(ctx context.Context) bool {
		r, err := x.d.client.Peers(ctx, connect.NewRequest(&enginepb.PeersRequest{}))
		if err != nil || len(r.Msg.GetPeers()) != 1 {
			return false
		}
		v := r.Msg.GetPeers()[0]
		boot = v.GetBoot()
		return boot != was && v.GetPdlog() && len(v.GetRanks()) == 1
	})
	return boot
}

func (x *fencedPair) poll(n *fencedNode, room uint64) *enginepb.RoomState {
	x.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	r, err := n.client.Poll(ctx, connect.NewRequest(&enginepb.PollRequest{Rooms: []uint64{room}}))
	if err != nil {
		x.Fatal(err)
	}
	return r.Msg.GetRooms()[0]
}

// pageByte is what a page's bytes are in a room.
func pageByte(room uint64, page int) byte { return byte(1 + room*100 + uint64(page)) } //nolint:gosec // small

// begin opens a room over every page on both sides, and hands its chunks over.
// The call gives what waits until that has ended.
func (x *fencedPair) begin(room uint64) (wait func()) {
	x.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	x.Cleanup(cancel)
	src, pages := x.p.mem.Bytes(), make([]uint32, fencedPages)
	for i := range pages {
		pages[i] = uint32(i) //nolint:gosec // small
		for j := range fencedPage {
			src[i*fencedPage+j] = pageByte(room, i)
		}
	}
	if _, err := x.p.client.OpenSend(ctx, connect.NewRequest(&enginepb.OpenSendRequest{Room: room, Ranks: []uint32{0}})); err != nil {
		x.Fatal(err)
	}
	x.until(fmt.Sprintf("room %d opens", room), func(ctx context.Context) bool {
		_, err := x.d.client.OpenReceive(ctx, connect.NewRequest(&enginepb.OpenReceiveRequest{Room: room, Pages: pages, Prefill: "p0"}))
		return err == nil
	})
	x.until(fmt.Sprintf("room %d waits for input", room), func(context.Context) bool {
		return x.poll(x.p, room).GetPoll() == enginepb.RoomState_POLL_WAITING_FOR_INPUT
	})
	var wg sync.WaitGroup
	wg.Go(func() {
		for k := range fencedChunks {
			const n = fencedPages / fencedChunks
			if _, err := x.p.client.SendChunk(ctx, connect.NewRequest(&enginepb.SendChunkRequest{
				Room: room, Chunk: uint32(k), First: uint32(k * n), Count: n, SourcePages: pages[k*n : (k+1)*n], Last: k == fencedChunks-1, //nolint:gosec // small
			})); err != nil {
				return // it is stopped or dead
			}
		}
	})
	return func() { cancel(); wg.Wait() }
}

// landed counts the pages that a room has written to.
func (x *fencedPair) landed(room uint64) (n int) {
	dst := x.d.mem.Bytes()
	for i := range fencedPages {
		if dst[i*fencedPage] == pageByte(room, i) {
			n++
		}
	}
	return n
}

// middle waits until the first of a room's pages are there, without a pause: the
// others are still to come. Of those that leave late, one is on its way.
func (x *fencedPair) middle(room uint64) {
	x.Helper()
	for end := time.Now().Add(patience); x.landed(room) == 0; {
		if time.Now().After(end) {
			x.Fatalf("nothing of room %d has landed within %s: %v", room, patience, x.poll(x.d, room))
		}
	}
	if x.late {
		x.event(x.p, "ChunkUncertain")
	}
}

// fenced lets decode's engine abort a room, whose peer does not answer, and waits
// until its pages are told to be free. Then somebody else has them.
func (x *fencedPair) fenced(room uint64) {
	x.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	_, _ = x.d.client.Abort(ctx, connect.NewRequest(&enginepb.AbortRequest{Room: room, Reason: "the story says so"})) // it may have failed by itself
	var s *enginepb.RoomState
	x.until(fmt.Sprintf("room %d is released", room), func(context.Context) bool {
		s = x.poll(x.d, room)
		return s.GetPagesFree()
	})
	n := x.landed(room)
	x.Logf("released with basis %s, cause %s: %d of %d pages had landed", s.GetBasis(), s.GetCause(), n, fencedPages)
	if s.GetUnsafe() || s.GetBasis() != "fence" && s.GetBasis() != "peer_restart" && s.GetBasis() != "mixed" {
		x.Errorf("released with basis %s", s.GetBasis())
	}
	if n == 0 || n == fencedPages {
		x.Errorf("%d of %d pages had landed at the fence: that is not in the middle of a write", n, fencedPages)
	}
	for i := range x.pages() {
		x.pages()[i] = nextOwner
	}
}

func (x *fencedPair) pages() []byte { return x.d.mem.Bytes()[:fencedPages*fencedPage] }

// untouched: every byte is the next owner's.
func (x *fencedPair) untouched() {
	x.Helper()
	if n := bytes.Count(x.pages(), []byte{nextOwner}); n != len(x.pages()) {
		x.Fatalf("%d of %d bytes were written after the fence", len(x.pages())-n, len(x.pages()))
	}
}

// event waits for an event in a node's log.
func (x *fencedPair) event(n *fencedNode, name string) {
	x.Helper()
	from := uint64(1)
	x.until(n.name+" records "+name, func(ctx context.Context) bool {
		r, err := n.client.Events(ctx, connect.NewRequest(&enginepb.EventsRequest{FromSeq: from}))
		if err != nil {
			return false
		}
		from = max(from, r.Msg.GetLastSeq()+1)
		return slices.ContainsFunc(r.Msg.GetJson(), func(s string) bool { return strings.Contains(s, strconv.Quote(name)) })
	})
}

// again runs a room over the same pages to its end: what it sent is there.
func (x *fencedPair) again(room uint64) {
	x.Helper()
	wait := x.begin(room)
	defer wait()
	x.until(fmt.Sprintf("room %d ends", room), func(context.Context) bool {
		s := x.poll(x.d, room).GetPoll()
		return s == enginepb.RoomState_POLL_SUCCESS || s == enginepb.RoomState_POLL_FAILED
	})
	if s := x.poll(x.d, room); s.GetPoll() != enginepb.RoomState_POLL_SUCCESS {
		x.Fatalf("the next room on the pages: %v", s)
	}
	for i := range fencedPages {
		p := x.pages()[i*fencedPage : (i+1)*fencedPage]
		if n := bytes.Count(p, []byte{pageByte(room, i)}); n != len(p) {
			x.Fatalf("page %d has %d wrong bytes", i, len(p)-n)
		}
	}
}

func (x *fencedPair) signal(n *fencedNode, s syscall.Signal) {
	x.Helper()
	if err := n.cmd.Process.Signal(s); err != nil {
		x.Fatal(err)
	}
}

// stop returns when a process stands still.
func (x *fencedPair) stop(n *fencedNode) {
	x.Helper()
	x.signal(n, syscall.SIGSTOP)
	var ws syscall.WaitStatus
	if _, err := syscall.Wait4(n.cmd.Process.Pid, &ws, syscall.WUNTRACED, nil); err != nil || !ws.Stopped() {
		x.Fatalf("%s did not stop: %v, status %#x", n.name, err, ws)
	}
}

func (x *fencedPair) kill(n *fencedNode) {
	x.Helper()
	x.signal(n, syscall.SIGKILL)
	_ = n.cmd.Wait() // killed: always an error
}

// Whatever becomes of a peer in the middle of a write, not one byte of it lands
// after the fence: two pdnode processes, decode's pages compared byte for byte,
// on every provider of this build.
func TestAPeerNeverWritesAfterItsFence(t *testing.T) {
	if testing.Short() {
		t.Skip("runs pairs of real processes, one of them stopped for 10 s")
	}
	for _, c := range []struct {
		name      string
		partition bool
		late      bool
		happens   func(*fencedPair)
	}{
		{"partitioned", true, true, func(x *fencedPair) {
			x.net.cut("p", "d")
			x.net.cut("d", "p")
			x.fenced(1)
			if x.net.mend() == 0 {
				x.Error("the cut met no packet")
			}
			x.event(x.d, "LateWriteRejected")
			x.untouched()
		}},
		{"killed", false, false, func(x *fencedPair) {
			x.kill(x.p)
			x.fenced(1)
			x.event(x.d, "PeerLost")
			x.untouched()
		}},
		{"stopped and continued after 10 s", false, true, func(x *fencedPair) {
			x.stop(x.p)
			x.fenced(1)
			<-time.After(stoppedFor) // the story itself
			x.untouched()
			x.signal(x.p, syscall.SIGCONT)
			x.event(x.d, "LateWriteRejected")
			x.untouched()
		}},
		{"replaced by a new process at the same port", false, false, func(x *fencedPair) {
			was := x.connected(0)
			x.kill(x.p)
			x.run(x.p)
			x.connected(was)
			x.fenced(1)
			x.untouched()
			x.again(2)
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			for _, provider := range []string{"tcp", "shm", "auto"} {
				t.Run(provider, func(t *testing.T) {
					if c.partition && provider != "tcp" {
						t.Skipf("%s: no network to partition inside one host", provider)
					}
					if provider != "tcp" && os.Getenv("PDLOG_NIGHT") == "" {
						t.Skip("a story of make stories and make night (PDLOG_NIGHT=1)")
					}
					t.Parallel() // much of it is waiting
					began := time.Now()
					x := newFencedPair(t, provider, c.partition, c.late)
					wait := x.begin(1)
					x.middle(1)
					c.happens(x)
					wait()
					found := uint64(0)
					if t.Failed() {
						found = 1
					}
					ladder.Report(t, ladder.Row{Rung: "stories of real processes", What: "a fenced peer: " + c.name + ", " + provider, Runs: 1, Faults: 1, Found: found, Took: time.Since(began)})
				})
			}
		})
	}
}
