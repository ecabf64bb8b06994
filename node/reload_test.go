package node

import (
	"slices"
	"testing"
	"time"

	"github.com/pdlog/pdlog/projector"
)

// loaded is a configuration as Load would have read it.
func loaded(t *testing.T, c Config, change map[string]string) *Loaded {
	t.Helper()
	l := &Loaded{Config: c}
	for _, key := range Keys() {
		l.settings = append(l.settings, Setting{Key: key, Value: change[key]})
	}
	return l
}

func TestReloadTakesWhatCanChangeLiveAndNamesTheRest(t *testing.T) {
	first := startSide(t, testConfig(t, "prefill", "p0"), 64)
	second := startSide(t, testConfig(t, "prefill", "p1"), 64)
	cfg := testConfig(t, "decode", "d0")
	cfg.Peers = []string{first.node.Bootstrap()}
	d := startSide(t, cfg, 64)
	d.awaitEvent("PeerRegistered", 0, 0)
	known := d.node.store.Durable()

	changed := cfg
	changed.Peers = []string{second.node.Bootstrap()} // one comes, one goes
	changed.Heartbeat, changed.EngineTimeout, changed.StopGrace = 7*time.Second, 8*time.Second, 9*time.Second
	changed.Log.MaxBytes, changed.Log.MaxAge = 1<<40, 10*time.Hour
	changed.AckTimeout = 11 * time.Second
	taken, later := d.node.Reload(loaded(t, cfg, nil), loaded(t, changed, map[string]string{
		"peers": "x", "heartbeat": "7s", "engine_timeout": "8s", "stop_grace": "9s", "log.max_bytes": "x", "log.max_age": "x", "ack_timeout": "11s",
	}))
	if want := []string{"engine_timeout", "heartbeat", "log.max_age", "log.max_bytes", "peers", "stop_grace"}; !slices.Equal(taken, want) {
		t.Errorf("taken %v, want %v", taken, want)
	}
	if want := []string{"ack_timeout", "peers (without " + first.node.Bootstrap() + ")"}; !slices.Equal(later, want) {
		t.Errorf("takes a restart %v, want %v", later, want)
	}
	l := d.node.live.Load()
	if l.heartbeat != 7*time.Second || l.engineTimeout != 8*time.Second || l.stopGrace != 9*time.Second || l.maxBytes != 1<<40 || l.maxAge != 10*time.Hour {
		t.Errorf("live is %+v", l)
	}
	// The new one is found and registered with; the old one is still followed.
	d.awaitEvent("PeerRegistered", 0, known)
	if err := d.node.loop.see(func(m *projector.Machine, _ uint64) {
		if got := m.State().Peers; got["p0"] == nil || got["p1"] == nil {
			t.Errorf("peers are %v", got)
		}
	}); err != nil {
		t.Fatal(err)
	}
}

func TestEveryLiveKeyIsAKey(t *testing.T) {
	keys, since := LiveKeys()
	for _, k := range keys {
		if !slices.Contains(Keys(), k) || since[k] == "" {
			t.Errorf("%q is no key, or does not say since when it counts", k)
		}
	}
}
