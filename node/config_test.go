package node

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/spf13/pflag"
)

const goodFile = `
node: d0
role: decode
data_dir: /var/lib/pdnode
peers: ["10.0.0.1:8998", "10.0.0.2:8998"]
ack_timeout: 2s
nats:
  embedded: false
rdma:
  provider: tcp
`

func writeFile(t *testing.T, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "pdnode.yaml")
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func TestEachLayerBeatsTheOneBefore(t *testing.T) {
	fs := pflag.NewFlagSet("pdnode", pflag.ContinueOnError)
	BindFlags(fs)
	if err := fs.Parse([]string{"--pages=77", "--nats.cluster", "blue"}); err != nil {
		t.Fatal(err)
	}
	env := []string{"HOME=/home/x", "PDNODE_PAGES=33", "PDNODE_ACK_TIMEOUT=3s", "PDNODE_NATS_URL=nats://10.0.0.9:4222", "PDNODE_CONFIG=x"}
	l, err := Load(writeFile(t, goodFile), env, fs)
	if err != nil {
		t.Fatal(err)
	}
	if l.Pages != 77 || l.AckTimeout != 3*time.Second || l.NATS.Cluster != "blue" || l.NATS.Embedded || l.NATS.URL == "" || len(l.Peers) != 2 {
		t.Fatalf("have %+v", l.Config)
	}
	if l.Dialect != "mooncake" || l.TransferTimeout != 30*time.Second || l.RDMA.FaultSeed != 1 {
		t.Fatalf("defaults are gone: %+v", l.Config)
	}
	want := map[string]string{
		"pages": "flag", "nats.cluster": "flag", "ack_timeout": "env", "nats.url": "env",
		"node": "file", "nats.embedded": "file", "dialect": "default",
	}
	seen := map[string]Setting{}
	for _, s := range l.Effective() {
		seen[s.Key] = s
	}
	for key, origin := range want {
		if seen[key].Origin != origin {
			t.Errorf("%s comes from %q, want %q", key, seen[key].Origin, origin)
		}
	}
	if seen["peers"].Value != "10.0.0.1:8998,10.0.0.2:8998" || seen["ack_timeout"].Value != "3s" {
		t.Errorf("values %v, %v", seen["peers"], seen["ack_timeout"])
	}
	if len(seen) != len(Keys()) {
		t.Errorf("%d keys are shown, there are %d", len(seen), len(Keys()))
	}
}

func TestBadConfigurationNamesTheKeyInOneLine(t *testing.T) {
	for _, c := range []struct{ name, file, env, names string }{
		{"unknown key", goodFile + "pagez: 3\n", "", "pagez"},
		{"unknown nested key", goodFile + "log:\n  sync: 3\n", "", "log.sync"},
		{"not yaml", "node: [", "", "YAML"},
		{"bad duration", goodFile + "heartbeat: soon\n", "", "heartbeat"},
		{"bad number", goodFile + "pages: many\n", "", "pages"},
		{"bad word", goodFile + "release_policy: hope\n", "", "release_policy"},
		{"unknown variable", goodFile, "PDNODE_PAGEZ=3", "PDNODE_PAGEZ"},
		{"bad variable", goodFile, "PDNODE_PAGES=lots", "PDNODE_PAGES=lots: pages: bad value \"lots\" (from env): want a whole number"},
		{"a variable out of bounds", goodFile + "limits: {rooms: 5}\n", "PDNODE_LIMITS_ROOMS=0", "PDNODE_LIMITS_ROOMS=0: limits.rooms: want 1 to 16777216, have 0"},
		{"a variable of two lines", goodFile, "PDNODE_RELEASE_POLICY=hope\nso", "PDNODE_RELEASE_POLICY=hope so: release_policy: "},
		{"wrong side", goodFile + "bootstrap: 1.2.3.4:1\n", "", "bootstrap"},
		{"scalar for a map", goodFile + "log: loud\n", "", "log"},
		{"no node", "role: decode\ndata_dir: /x\n", "", "node"},
		{"bad node", "node: a/b\nrole: decode\ndata_dir: /x\n", "", "node"},
		{"a time without its unit", goodFile + "stop_grace: 30\n", "", "stop_grace: bad value \"30\" (from file): want a time with its unit"},
		{"a part of a page", strings.Replace(goodFile, "role:", "page_size: 10.5\nrole:", 1), "", "page_size: bad value \"10.5\" (from file): want a whole number"},
		{"an empty number", goodFile, "PDNODE_PAGES=", "PDNODE_PAGES=: pages: bad value \"\""},
		{"no mode", goodFile + "socket_mode: 0999\n", "", "socket_mode: want a mode in octal such as 0660, have \"0999\""},
		{"wildcard", goodFile + "listen: 0.0.0.0\n", "", "advertise"},
	} {
		t.Run(c.name, func(t *testing.T) {
			_, err := Load(writeFile(t, c.file), []string{c.env}, nil)
			if !errors.Is(err, ErrConfig) {
				t.Fatalf("have %v, want ErrConfig", err)
			}
			if text := err.Error(); !strings.Contains(text, c.names) || strings.Contains(text, "\n") {
				t.Fatalf("have %q, want one line naming %q", text, c.names)
			}
		})
	}
	path := writeFile(t, goodFile+"limits:\n  rooms: 0\n")
	if _, err := Load(path, nil, nil); err == nil || err.Error() != path+":12: limits.rooms: want 1 to 16777216, have 0" {
		t.Fatalf("file and line are not named: %v", err)
	}
	if _, err := Load(writeFile(t, goodFile+"pagez: 3\n"), nil, nil); err == nil || !strings.Contains(err.Error(), ".yaml:11: pagez: unknown key") {
		t.Fatalf("the line of an unknown key is not named: %v", err)
	}
	if _, err := Load(filepath.Join(t.TempDir(), "none.yaml"), nil, nil); !errors.Is(err, ErrConfig) {
		t.Fatalf("a missing file gives %v", err)
	}
}

// What YAML makes of a number is not what stands in the file: 0660 is a mode.
func TestValuesAreReadAsTheyAreWritten(t *testing.T) {
	l, err := Load(writeFile(t, goodFile+"socket_mode: 0660\nkv_cache_dtype: 0x10\nengine_timeout: 0\nextension: true\nlog: {max_bytes: 1_073_741_824}\n"), nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	if l.SocketMode != "0660" || l.DType != "0x10" || l.EngineTimeout != 0 || !l.Extension || l.Log.MaxBytes != 1<<30 {
		t.Errorf("have %q, %q, %s, %v, %d", l.SocketMode, l.DType, l.EngineTimeout, l.Extension, l.Log.MaxBytes)
	}
	bad, err := Load(writeFile(t, goodFile+"socket_group: no-such-group\n"), nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	if err := bad.CheckFiles(); err == nil || !strings.Contains(err.Error(), ".yaml:11: socket_group: ") {
		t.Errorf("a group that is not there gives %v", err)
	}
}
