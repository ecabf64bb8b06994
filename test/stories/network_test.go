package stories

import (
	"fmt"
	"net"
	"os"
	"os/exec"
	"regexp"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
)

// network is four network namespaces: hosts p, d and n (NATS), each with one link
// to the router r, which forwards, drops and redirects as nft says. The test
// itself has a link to the router too.
//
//	p ──┐
//	d ──┤ r ── this process
//	n ──┘
type network struct {
	t     *testing.T
	name  string // begins every namespace's name
	block int    // 10.213.8*block.0/21
}

// hosts have the index of their subnet; x is this process.
var hosts = map[string]int{"p": 1, "d": 2, "n": 3, "x": 4}

var networks atomic.Int64

// newNetwork needs root, ip, nft and nsenter, and skips by name without them.
func newNetwork(t *testing.T) *network {
	t.Helper()
	if os.Getuid() != 0 {
		t.Skip("needs root: it makes network namespaces")
	}
	for _, tool := range []string{"ip", "nft", "nsenter"} {
		if _, err := exec.LookPath(tool); err != nil {
			t.Skipf("needs %s", tool)
		}
	}
	i := networks.Add(1)
	w := &network{t: t, name: fmt.Sprintf("pdlog%d-%d", os.Getpid(), i), block: int(i-1) % 32}
	if out, err := exec.Command("ip", "netns", "add", w.name+"r").CombinedOutput(); err != nil {
		t.Skipf("network namespaces are not allowed here: %s", out)
	}
	t.Cleanup(func() { w.try("ip", "netns", "del", w.name+"r") }) // its links go with it
	w.in("r", "sysctl", "-qw", "net.ipv4.ip_forward=1")
	w.run("ip", "-n", w.name+"r", "link", "set", "lo", "up")
	for h, k := range hosts {
		link, ns := fmt.Sprintf("pdl%d-%d%s", os.Getpid()%10000, i, h), []string{}
		if h != "x" {
			w.run("ip", "netns", "add", w.name+h)
			t.Cleanup(func() { w.try("ip", "netns", "del", w.name+h) })
			ns = []string{"-n", w.name + h}
			w.run("ip", "link", "add", link, "netns", w.name+h, "type", "veth", "peer", "name", "v"+h, "netns", w.name+"r")
			w.run("ip", "-n", w.name+h, "link", "set", "lo", "up")
		} else {
			w.run("ip", "link", "add", link, "type", "veth", "peer", "name", "v"+h, "netns", w.name+"r")
		}
		ip := func(args ...string) { w.run("ip", append(append([]string{}, ns...), args...)...) }
		ip("addr", "add", w.addr(h)+"/24", "dev", link)
		ip("link", "set", link, "up")
		w.run("ip", "-n", w.name+"r", "addr", "add", w.subnet(k)+".1/24", "dev", "v"+h)
		w.run("ip", "-n", w.name+"r", "link", "set", "v"+h, "up")
		if h == "x" {
			for other, o := range hosts {
				if other != "x" {
					w.run("ip", "route", "add", w.subnet(o)+".0/24", "via", w.subnet(k)+".1")
				}
			}
		} else {
			ip("route", "add", "default", "via", w.subnet(k)+".1")
		}
	}
	w.in("r", "nft", "add table inet story; add chain inet story forward { type filter hook forward priority 0 ; }")
	return w
}

func (w *network) subnet(k int) string { return fmt.Sprintf("10.213.%d", 8*w.block+k) }

// addr is a host's address.
func (w *network) addr(host string) string { return w.subnet(hosts[host]) + ".2" }

// enter goes before a command that is to run on a host.
func (w *network) enter(host string) []string {
	return []string{"nsenter", "--net=/run/netns/" + w.name + host}
}

func (w *network) in(host string, args ...string) string {
	w.t.Helper()
	return w.run("nsenter", append(w.enter(host)[1:], args...)...)
}

func (w *network) run(name string, args ...string) string {
	w.t.Helper()
	out, err := exec.Command(name, args...).CombinedOutput() //nolint:gosec // this file's words
	if err != nil {
		w.t.Errorf("%s %s: %v: %s", name, strings.Join(args, " "), err, out)
	}
	return string(out)
}

func (w *network) try(name string, args ...string) {
	_ = exec.Command(name, args...).Run() //nolint:gosec // this file's words
}

// rule adds a rule for what goes from one host to another, as long as mend has
// not been called.
func (w *network) rule(from, to, rule string) {
	w.t.Helper()
	w.in("r", "nft", fmt.Sprintf("add rule inet story forward iifname v%s oifname v%s %s", from, to, rule))
}

// cut drops everything one way.
func (w *network) cut(from, to string) { w.rule(from, to, "counter drop") }

// lose drops that share of the packets one way.
func (w *network) lose(from, to string, percent int) {
	w.rule(from, to, fmt.Sprintf("numgen random mod 100 < %d counter drop", percent))
}

// reset answers every packet one way with a reset.
func (w *network) reset(from, to string) {
	w.rule(from, to, "meta l4proto tcp counter reject with tcp reset")
}

var packets = regexp.MustCompile(`counter packets (\d+)`)

// met is how many packets the rules have met so far.
func (w *network) met() (met uint64) {
	w.t.Helper()
	return w.count("inet story forward")
}

func (w *network) count(chain string) (met uint64) {
	w.t.Helper()
	for _, m := range packets.FindAllStringSubmatch(w.in("r", "nft", "list chain "+chain), -1) {
		n, err := strconv.ParseUint(m[1], 10, 64)
		if err != nil {
			w.t.Error(err)
		}
		met += n
	}
	return met
}

// mend takes all rules away and says how many packets they met.
func (w *network) mend() uint64 {
	w.t.Helper()
	met := w.met()
	w.in("r", "nft", "flush chain inet story forward")
	return met
}

// redirect sends new connections between two hosts, both ways, through a proxy
// on the router.
func (w *network) redirect(a, b string, port int) {
	w.t.Helper()
	w.in("r", "nft", "add table ip storynat; add chain ip storynat pre { type nat hook prerouting priority dstnat ; }")
	for _, p := range [][2]string{{a, b}, {b, a}} {
		w.in("r", "nft", fmt.Sprintf("add rule ip storynat pre iifname v%s ip daddr %s meta l4proto tcp counter redirect to :%d", p[0], w.addr(p[1]), port))
	}
}

// router is the router's address on a host's link.
func (w *network) router(host string, port int) string {
	return net.JoinHostPort(w.subnet(hosts[host])+".1", strconv.Itoa(port))
}

// redirected is how many connections went through the proxy.
func (w *network) redirected() uint64 { return w.count("ip storynat pre") }
