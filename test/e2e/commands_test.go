package e2e

import (
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"connectrpc.com/connect"

	"github.com/pdlog/pdlog/node/enginepb"
)

// command runs pdnode against a node and returns what it printed and its exit
// status.
func (d *daemon) command(args ...string) (stdout, stderr string, status int) {
	d.t.Helper()
	c := exec.Command(pdnode, append(args, "--socket", d.socket)...)
	var out, bad strings.Builder
	c.Stdout, c.Stderr = &out, &bad
	err := c.Run()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		d.t.Fatal(err)
	}
	return out.String(), bad.String(), c.ProcessState.ExitCode()
}

// says runs a command that must succeed and print every one of words.
func (d *daemon) says(words []string, args ...string) string {
	d.t.Helper()
	out, bad, status := d.command(args...)
	if status != 0 || bad != "" {
		d.t.Fatalf("%v: status %d, %s", args, status, bad)
	}
	for _, w := range words {
		if !strings.Contains(out, w) {
			d.t.Fatalf("%v: no %q in\n%s", args, w, out)
		}
	}
	return out
}

// document is the one JSON document that a command prints.
func (d *daemon) document(args ...string) map[string]any {
	d.t.Helper()
	var v map[string]any
	if err := json.Unmarshal([]byte(d.says(nil, append(args, "-o", "json")...)), &v); err != nil {
		d.t.Fatalf("%v: %v", args, err)
	}
	return v
}

// shared is memory in /dev/shm that a node has registered: 16 pages, 64 rows.
func (d *daemon) shared() {
	d.t.Helper()
	m, err := os.CreateTemp("/dev/shm", "pdlog-e2e-")
	if err != nil {
		d.t.Fatal(err)
	}
	d.t.Cleanup(func() { _ = m.Close(); _ = os.Remove(m.Name()) })
	if err := m.Truncate(16*4096 + 64*64); err != nil {
		d.t.Fatal(err)
	}
	if _, err := d.client.RegisterMemory(d.t.Context(), connect.NewRequest(&enginepb.RegisterMemoryRequest{
		Path: m.Name(), PageBytes: 4096, Pages: 16, AuxBytes: 64, AuxRows: 64,
	})); err != nil {
		d.t.Fatal(err)
	}
}

// An operator at a live pair whose prefill node has stopped to answer: every
// command does to the node what it says, and says what it did.
func TestCommandsOnALiveNode(t *testing.T) {
	t.Parallel()
	p, d := daemons(t, "--ack-timeout", "10m", "--heartbeat", "10m", "--engine-timeout", "0")
	p.shared()
	d.shared()
	d.until("they know each other", func() bool {
		out, _, _ := d.command("peers")
		return strings.Contains(out, "p0") && strings.Contains(out, "reader_stopped")
	})
	d.says([]string{"d0 (decode)", "ready", "yes", "16: 16 free"}, "status")
	p.says([]string{"p0 (prefill)", "bootstrap"}, "status")

	open := func(room uint64) {
		t.Helper()
		if _, err := d.client.OpenReceive(t.Context(), connect.NewRequest(&enginepb.OpenReceiveRequest{
			Room: room, Count: 4, Prefill: "p0", RequestId: "req-" + string(rune('0'+room%10)),
		})); err != nil {
			t.Fatal(err)
		}
		if _, err := p.client.OpenSend(t.Context(), connect.NewRequest(&enginepb.OpenSendRequest{Room: room})); err != nil {
			t.Fatal(err)
		}
		p.until("its metadata is there", func() bool {
			r, err := p.client.Poll(t.Context(), connect.NewRequest(&enginepb.PollRequest{Rooms: []uint64{room}}))
			return err == nil && r.Msg.Rooms[0].Poll == enginepb.RoomState_POLL_WAITING_FOR_INPUT
		})
	}
	for _, room := range []uint64{501, 502, 503} {
		open(room)
	}
	d.says([]string{"501", "502", "503"}, "rooms")
	p.says([]string{"501", "502", "503"}, "rooms")
	d.says([]string{"4 free, 12 owned"}, "pages")

	if err := p.cmd.Process.Signal(syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	if v := d.document("abort", "501", "--reason", "by hand"); v["room"] != float64(501) || v["room_seq"] == float64(0) {
		t.Errorf("abort: %v", v)
	}
	d.says([]string{"room 502/", "is aborted"}, "abort", "502")
	d.says([]string{"501", "held", "failed", "p0/0"}, "room", "501")
	d.says([]string{"4 owned, 8 held"}, "pages")
	d.says([]string{"held", "p0/0", "rooms: 3"}, "top", "--once")

	if out, bad, status := d.command("release", "501"); status != 2 || out != "" || !strings.Contains(bad, "--force") {
		t.Errorf("a release that is not forced: %d, %q, %q", status, out, bad)
	}
	for _, c := range [][]string{{"abort", "599"}, {"release", "599", "--force"}, {"room", "599"}, {"fence", "p9"}, {"fence", "p0/7"}} {
		want := 1
		if c[0] == "fence" { // the name is bad input
			want = 2
		}
		if out, bad, status := d.command(c...); status != want || out != "" || strings.Count(bad, "\n") != 1 {
			t.Errorf("%v: status %d, %q, %q: want %d and one line", c, status, out, bad, want)
		}
	}
	if v := d.document("release", "501", "--force"); v["unsafe"] != true {
		t.Errorf("release: %v", v)
	}
	d.says([]string{"4 owned, 4 held"}, "pages")
	if v := d.document("fence", "p0/0"); v["rooms"] != float64(1) { // 503 is not aborted
		t.Errorf("fence: %v", v)
	}
	d.until("the fenced room is released", func() bool {
		out, _, _ := d.command("pages")
		return strings.Contains(out, "12 free, 4 owned, 0 held")
	})
	if types := strings.Join(d.events(501), " "); !strings.Contains(types, "Released") || strings.Contains(types, "Fenced") {
		t.Errorf("room 501: %s", types)
	}
	if types := strings.Join(d.events(502), " "); !strings.Contains(types, "Fenced") || !strings.Contains(types, "Released") {
		t.Errorf("room 502: %s", types)
	}
	for room, want := range map[uint64]string{503: "room_live", 599: "unknown_room"} {
		_, err := d.client.Fence(t.Context(), connect.NewRequest(&enginepb.FenceRequest{Room: room}))
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("a fence of room %d gives %v, want %s", room, err, want)
		}
	}

	file := filepath.Join(t.TempDir(), "copy.db")
	v := d.document("backup", file)
	if st, err := os.Stat(file); err != nil || v["file"] != file || v["bytes"] != float64(st.Size()) || v["events"] == float64(0) {
		t.Errorf("backup: %v, %v", v, err)
	}
	if v := d.document("drain", "--grace", "10s"); v["draining"] != true || v["grace_ms"] != float64(10000) {
		t.Errorf("drain: %v", v)
	}
	if _, bad, status := d.command("abort", "503"); status != 0 { // and with it the node has nothing to wait for but p0's ACK
		t.Errorf("abort while draining: %d, %s", status, bad)
	}
	if err := p.cmd.Process.Signal(syscall.SIGCONT); err != nil {
		t.Fatal(err)
	}
	if err := d.cmd.Wait(); err != nil {
		t.Errorf("the node ended with %v", err)
	}
	if _, bad, status := d.command("status"); status != 3 || !strings.Contains(bad, "no node answers") {
		t.Errorf("a node that has ended: %d, %s", status, bad)
	}
}
