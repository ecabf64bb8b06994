package demo

import (
	"bufio"
	"io"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/cockroachdb/errors"
)

// spawner starts child processes that the kernel kills when this process dies.
// Pdeathsig goes by the thread that forked, so one goroutine keeps one thread
// for as long as there may be children.
type spawner struct {
	reqs chan func()
	done chan struct{}
}

func newSpawner() *spawner {
	s := &spawner{reqs: make(chan func()), done: make(chan struct{})}
	go func() {
		runtime.LockOSThread() // never unlocked: the thread ends with the goroutine
		defer close(s.done)
		for fn := range s.reqs {
			fn()
		}
	}()
	return s
}

func (s *spawner) close() {
	close(s.reqs)
	<-s.done
}

// process is one child.
type process struct {
	name string
	cmd  *exec.Cmd
	log  string // where its stderr goes
	// wanted: it was told to end; an exit without it is a failure of the demo.
	wanted atomic.Bool
	done   chan struct{} // closed after exit
	err    error         // of Wait, valid after done
}

// start runs argv with stderr appended to logPath. in and out may be nil.
func (s *spawner) start(name string, argv []string, logPath string, in io.Reader, out io.Writer) (*process, error) {
	logFile, err := os.OpenFile(logPath, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, errors.Wrapf(err, "open log of %s", name)
	}
	defer func() { _ = logFile.Close() }()    // the child has its own descriptor
	cmd := exec.Command(argv[0], argv[1:]...) //nolint:gosec // our own binary
	cmd.Env = childEnv(os.Environ())
	cmd.Stdin, cmd.Stderr = in, logFile
	cmd.Stdout = out
	if out == nil {
		cmd.Stdout = logFile
	}
	// A group of its own: an interrupt at the terminal is ours to pass on, in order.
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL, Setpgid: true}
	p := &process{name: name, cmd: cmd, log: logPath, done: make(chan struct{})}
	started := make(chan error, 1)
	s.reqs <- func() { started <- cmd.Start() }
	if err := <-started; err != nil {
		return nil, errors.Wrapf(err, "start %s", name)
	}
	go func() {
		p.err = cmd.Wait()
		close(p.done)
	}()
	return p, nil
}

// childEnv leaves out what would change a child's configuration: the demo's
// nodes are configured by their files alone.
func childEnv(environ []string) []string {
	var out []string
	for _, kv := range environ {
		if !strings.HasPrefix(kv, "PDNODE_") {
			out = append(out, kv)
		}
	}
	return out
}

// stop sends sig, waits that long, then kills.
func (p *process) stop(sig os.Signal, wait time.Duration) {
	p.wanted.Store(true)
	_ = p.cmd.Process.Signal(sig)
	t := time.NewTimer(wait)
	defer t.Stop()
	select {
	case <-p.done:
	case <-t.C:
		_ = p.cmd.Process.Kill()
		<-p.done
	}
}

// kill ends the process as a crash would.
func (p *process) kill() {
	p.wanted.Store(true)
	_ = p.cmd.Process.Kill()
	<-p.done
}

// lastWords is the end of the process's log, for an error message.
func (p *process) lastWords() string {
	f, err := os.Open(p.log)
	if err != nil {
		return ""
	}
	defer func() { _ = f.Close() }()
	const window = 4096
	if st, err := f.Stat(); err == nil && st.Size() > window {
		_, _ = f.Seek(-window, io.SeekEnd)
	}
	last := ""
	sc := bufio.NewScanner(f)
	for sc.Scan() {
		if line := strings.TrimSpace(sc.Text()); line != "" {
			last = line
		}
	}
	return last
}

// pipeLink is a link over a child's stdin and stdout.
type pipeLink struct {
	*link
	closeOnce sync.Once
	w         io.Closer
}

func (p *pipeLink) close() { p.closeOnce.Do(func() { _ = p.w.Close() }) }
