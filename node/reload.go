package node

import (
	"maps"
	"slices"
	"strings"
	"time"
)

// liveConfig is what may change while a node runs (SIGHUP). What decides about pages
// is not among it: its values are in NodeStarted, by which a log is replayed,
// and hold for a life.
type liveConfig struct {
	peers         []string // bootstrap addresses that are followed; it only grows
	heartbeat     time.Duration
	engineTimeout time.Duration
	stopGrace     time.Duration
	maxBytes      int64
	maxAge        time.Duration
}

func liveOf(c *Config) *liveConfig {
	return &liveConfig{
		peers: slices.Clone(c.Peers), heartbeat: c.Heartbeat, engineTimeout: c.EngineTimeout, stopGrace: c.StopGrace,
		maxBytes: c.Log.MaxBytes, maxAge: c.Log.MaxAge,
	}
}

// liveKeys are the keys that Reload takes, and since when a value counts.
// log.level belongs to the process (cmd/pdnode), not to the node.
var liveKeys = map[string]string{
	"peers":          "a new address is followed at once; one that is gone from the list takes a restart, for its rooms need its heartbeat",
	"heartbeat":      "from each peer's next probe on",
	"engine_timeout": "from the next time that an engine goes away",
	"stop_grace":     "at the next stop",
	"log.level":      "at once",
	"log.max_bytes":  "at the next look at the segments, within a minute",
	"log.max_age":    "at the next look at the segments, within a minute",
}

// LiveKeys lists the keys that can change while a node runs, sorted, each with
// since when the new value counts.
func LiveKeys() (keys []string, since map[string]string) {
	return slices.Sorted(maps.Keys(liveKeys)), maps.Clone(liveKeys)
}

// Reload takes what can change live from a configuration that was loaded
// again. taken are the keys whose new values count from now on, later those
// that differ and take a restart; both are sorted. It may be called from
// anywhere, one call at a time.
func (n *Node) Reload(old, fresh *Loaded) (taken, later []string) {
	was := map[string]string{}
	for _, s := range old.Effective() {
		was[s.Key] = s.Value
	}
	next := *n.live.Load()
	for _, s := range fresh.Effective() {
		if was[s.Key] == s.Value {
			continue
		}
		if _, ok := liveKeys[s.Key]; !ok {
			later = append(later, s.Key)
			continue
		}
		if s.Key == "peers" {
			for _, p := range fresh.Peers {
				if !slices.Contains(next.peers, p) {
					next.peers = append(slices.Clone(next.peers), p)
				}
			}
			if gone := missing(old.Peers, fresh.Peers); len(gone) > 0 {
				later = append(later, "peers (without "+strings.Join(gone, ", ")+")")
			}
			if len(missing(fresh.Peers, old.Peers)) == 0 {
				continue
			}
		}
		taken = append(taken, s.Key)
	}
	next.heartbeat, next.engineTimeout, next.stopGrace = fresh.Heartbeat, fresh.EngineTimeout, fresh.StopGrace
	next.maxBytes, next.maxAge = fresh.Log.MaxBytes, fresh.Log.MaxAge
	n.live.Store(&next)
	if n.peers != nil {
		n.peers.start(n.life)
	}
	slices.Sort(taken)
	slices.Sort(later)
	return taken, later
}

// missing is what list has and other has not.
func missing(list, other []string) (out []string) {
	for _, x := range list {
		if !slices.Contains(other, x) {
			out = append(out, x)
		}
	}
	return out
}
