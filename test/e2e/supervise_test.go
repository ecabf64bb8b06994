package e2e

import (
	"errors"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

// A node under systemd's protocol (Type=notify, WatchdogSec, reload): it says
// when it is up, feeds the watchdog while its loop answers, says that it reads
// its configuration again, takes what can change, and says that it stops.
func TestNodeTellsItsSupervisor(t *testing.T) {
	t.Parallel()
	dir, err := os.MkdirTemp("", "pd") //nolint:usetesting // a socket's path has to be short
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	soc, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: filepath.Join(dir, "notify"), Net: "unixgram"})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = soc.Close() }()
	config := filepath.Join(dir, "pdnode.yaml")
	write := func(level, ack string) {
		text := "node: d0\nrole: decode\ndata_dir: " + filepath.Join(dir, "d0") + "\nack_timeout: " + ack + "\nlog: {level: " + level + "}\nnats: {embedded: false}\n"
		if err := os.WriteFile(config, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write("info", "5s")
	var said strings.Builder
	c := exec.Command(pdnode, "run", "--config", config)
	c.Env = append(os.Environ(), "NOTIFY_SOCKET="+filepath.Join(dir, "notify"), "WATCHDOG_USEC=900000", "WATCHDOG_PID=")
	c.Stderr = &said
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Process.Kill() })
	await := func(want string) {
		t.Helper()
		if err := soc.SetReadDeadline(time.Now().Add(time.Minute)); err != nil {
			t.Fatal(err)
		}
		b := make([]byte, 4096)
		for {
			n, err := soc.Read(b)
			if err != nil {
				t.Fatalf("waiting for %s: %v", want, err)
			}
			if strings.HasPrefix(string(b[:n]), want) {
				return
			}
			if !strings.HasPrefix(string(b[:n]), "WATCHDOG=1") {
				t.Fatalf("heard %q, want %s", b[:n], want)
			}
		}
	}
	await("READY=1")
	await("WATCHDOG=1")
	await("WATCHDOG=1")
	write("warn", "6s")
	if err := c.Process.Signal(syscall.SIGHUP); err != nil {
		t.Fatal(err)
	}
	await("RELOADING=1\nMONOTONIC_USEC=")
	await("READY=1")
	write("loud", "6s") // refused: the node goes on as it is
	if err := c.Process.Signal(syscall.SIGHUP); err != nil {
		t.Fatal(err)
	}
	await("RELOADING=1")
	await("READY=1")
	if err := c.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	await("STOPPING=1")
	var exit *exec.ExitError
	if err := c.Wait(); errors.As(err, &exit) {
		t.Fatalf("%v\n%s", err, said.String())
	}
	for _, want := range []string{"takes_a_restart=[ack_timeout]", "the configuration was not taken", "log.level: want one of"} {
		if !strings.Contains(said.String(), want) {
			t.Errorf("%q is not in what it said:\n%s", want, said.String())
		}
	}
	if strings.Contains(said.String(), "draining") {
		t.Error("log.level warn was not taken: a line of level info came after it")
	}
}
