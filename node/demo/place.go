package demo

import (
	"cmp"
	"context"
	"fmt"
	"os"
	"slices"
	"strings"
	"syscall"

	"github.com/cockroachdb/errors"

	"github.com/pdlog/pdlog/node/enginepb"
)

// Place is how one node runs, where that is not beside this process and with
// its own binary.
type Place struct {
	Binary string   // pdnode; empty = the cluster's
	Enter  []string // goes before the command: `nsenter --net=…`
	Host   string   // that it listens on; empty = 127.0.0.1
	Port   int      // of a prefill's bootstrap server; 0 = any, and another one after a restart
	More   []string // lines of its configuration, in place of those with the same key
}

// Signal sends a node's process a signal.
func (c *Cluster) Signal(node string, sig os.Signal) error {
	c.mu.Lock()
	p := c.nodes[node]
	c.mu.Unlock()
	return errors.Wrapf(p.cmd.Process.Signal(sig), "signal %s", node)
}

// StopNode ends a node in order (SIGTERM).
func (c *Cluster) StopNode(node string) {
	c.mu.Lock()
	p := c.nodes[node]
	c.mu.Unlock()
	p.stop(syscall.SIGTERM, stopWait)
}

// Place says how a node runs from its next start on. Its configuration is
// written once, by Start.
func (c *Cluster) Place(node string, p Place) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.places[node] = p
}

func (c *Cluster) place(node string) Place {
	c.mu.Lock()
	defer c.mu.Unlock()
	p := c.places[node]
	p.Binary, p.Host = cmp.Or(p.Binary, c.self), cmp.Or(p.Host, "127.0.0.1")
	return p
}

// Mirror names servers of others for the mirror; without it, there is one inside
// the prefill node.
func (c *Cluster) Mirror(url string, replicas int) { c.natsURL, c.replicas = url, replicas }

// Ready waits until a node that has been restarted takes rooms.
func (c *Cluster) Ready(ctx context.Context, node string) error {
	_, err := c.waitNode(ctx, node, (*enginepb.StatusResponse).GetReady)
	return err
}

// overridden are lines of configuration, with more in place of those that have
// the same key.
func overridden(lines, more []string) []string {
	keys := map[string]bool{}
	for _, l := range more {
		key, _, _ := strings.Cut(l, ":")
		keys[key] = true
	}
	lines = slices.DeleteFunc(lines, func(l string) bool {
		key, _, _ := strings.Cut(l, ":")
		return keys[key]
	})
	return append(lines, more...)
}

// mirror is where a node copies its log to.
func (c *Cluster) mirror() []string {
	return []string{"nats:", "  embedded: false", fmt.Sprintf("  url: %q", c.natsURL), fmt.Sprintf("  replicas: %d", max(c.replicas, 1))}
}
