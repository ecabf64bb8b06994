package deploy

import (
	"context"
	"encoding/json"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"
	"go.yaml.in/yaml/v3"

	"github.com/pdlog/pdlog/node"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const patience = 60 * time.Second // a deadline, never a delay

func read(t *testing.T, path string) []byte {
	t.Helper()
	b, err := os.ReadFile(filepath.FromSlash(path))
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// docs gives the documents of a YAML stream.
func docs(t *testing.T, path string) []map[string]any {
	t.Helper()
	return docsOf(t, path, string(read(t, path)))
}

func docsOf(t *testing.T, name, text string) []map[string]any {
	t.Helper()
	var out []map[string]any
	for d := yaml.NewDecoder(strings.NewReader(text)); ; {
		var doc map[string]any
		err := d.Decode(&doc)
		if err == io.EOF {
			return out
		}
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		out = append(out, doc)
	}
}

// at walks maps and lists.
func at(t *testing.T, v any, path ...any) any {
	t.Helper()
	for _, p := range path {
		switch p := p.(type) {
		case string:
			m, ok := v.(map[string]any)
			if !ok || m[p] == nil {
				t.Fatalf("no %q of %v in %v", p, path, v)
			}
			v = m[p]
		case int:
			l, ok := v.([]any)
			if !ok || p >= len(l) {
				t.Fatalf("no item %d of %v in %v", p, path, v)
			}
			v = l[p]
		}
	}
	return v
}

// served is every metric name that a decode node with a mirror serves.
func served(t *testing.T) map[string]bool {
	t.Helper()
	c := node.DefaultConfig()
	c.Node, c.Role, c.DataDir = "d0", "decode", t.TempDir()
	c.Socket = filepath.Join(shortDir(t), "s")
	c.Pages = 16
	c.NATS.Port = -1
	c.Metrics.Listen = "127.0.0.1:0"
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	n, err := node.Start(ctx, c, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := n.Close(); err != nil {
			t.Error(err)
		}
	}()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+n.Metrics()+"/metrics", nil)
	if err != nil {
		t.Fatal(err)
	}
	client := http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	res, err := client.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = res.Body.Close() }()
	b, err := io.ReadAll(res.Body)
	if err != nil {
		t.Fatal(err)
	}
	out := map[string]bool{}
	for _, m := range regexp.MustCompile(`(?m)^# TYPE (pdnode_\w+) (\w+)$`).FindAllSubmatch(b, -1) {
		name := string(m[1])
		out[name] = true
		if string(m[2]) == "histogram" {
			out[name+"_bucket"], out[name+"_sum"], out[name+"_count"] = true, true, true
		}
	}
	// Counters with an open label are there from their first value on.
	for _, later := range []string{"pdnode_chunk_bytes_total", "pdnode_messages_rejected_total"} {
		if out[later] {
			t.Errorf("%s is served from the beginning: take it off this list", later)
		}
		out[later] = true
	}
	// So are the histograms by basis and by peer.
	for _, later := range []string{"pdnode_abort_release_seconds", "pdnode_chunk_seconds"} {
		for _, s := range []string{"", "_bucket", "_sum", "_count"} {
			out[later+s] = true
		}
	}
	return out
}

func shortDir(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "pd") //nolint:usetesting // a socket's path has to be short
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	return dir
}

var metricName = regexp.MustCompile(`\bpdnode_[a-z0-9_]+\b`)

func TestEveryMetricThatIsNamedExists(t *testing.T) {
	have := served(t)
	if len(have) < 25 {
		t.Fatalf("only %d metrics are served", len(have))
	}
	named := map[string]int{}
	for _, path := range []string{"grafana/pdnode.json", "prometheus/alerts.yaml", "../docs/operate.md"} {
		for _, name := range metricName.FindAllString(string(read(t, path)), -1) {
			named[name]++
			if !have[name] {
				t.Errorf("%s names %s, which no node serves", path, name)
			}
		}
	}
	shown := string(read(t, "grafana/pdnode.json"))
	for name := range have {
		base := strings.TrimSuffix(strings.TrimSuffix(strings.TrimSuffix(name, "_bucket"), "_sum"), "_count")
		if !strings.Contains(shown, base) {
			t.Errorf("no panel shows %s", base)
		}
	}
}

func TestDashboardImports(t *testing.T) {
	var d struct {
		UID, Title string
		Templating struct{ List []struct{ Name string } }
		Panels     []struct {
			ID      int
			Type    string
			Title   string
			GridPos struct{ X, Y, W, H int }
			Targets []struct{ Expr, RefID string }
		}
	}
	if err := json.Unmarshal(read(t, "grafana/pdnode.json"), &d); err != nil {
		t.Fatal(err)
	}
	if d.UID == "" || d.Title == "" || len(d.Templating.List) != 3 {
		t.Errorf("dashboard %q %q with %d variables", d.UID, d.Title, len(d.Templating.List))
	}
	ids := map[int]bool{}
	for _, p := range d.Panels {
		if ids[p.ID] {
			t.Errorf("panel id %d is there twice", p.ID)
		}
		ids[p.ID] = true
		if p.GridPos.X+p.GridPos.W > 24 || p.GridPos.W == 0 {
			t.Errorf("panel %q does not fit: %+v", p.Title, p.GridPos)
		}
		if p.Type != "row" && len(p.Targets) == 0 {
			t.Errorf("panel %q shows nothing", p.Title)
		}
		for _, target := range p.Targets {
			if strings.Count(target.Expr, "(") != strings.Count(target.Expr, ")") || !strings.Contains(target.Expr, `job=~"$job"`) {
				t.Errorf("panel %q asks %q", p.Title, target.Expr)
			}
		}
	}
}

// anchor is what GitHub makes of a heading.
func anchor(heading string) string {
	s := strings.ToLower(strings.TrimSpace(heading))
	return strings.ReplaceAll(regexp.MustCompile(`[^a-z0-9 -]`).ReplaceAllString(s, ""), " ", "-")
}

func TestEveryAlertHasARunbook(t *testing.T) {
	headings := map[string]bool{}
	for _, m := range regexp.MustCompile(`(?m)^#+ (.*)$`).FindAllStringSubmatch(string(read(t, "../docs/operate.md")), -1) {
		headings[anchor(m[1])] = true
	}
	alerts := docs(t, "prometheus/alerts.yaml")
	rules, _ := at(t, alerts[0], "groups", 0, "rules").([]any)
	if len(rules) != 9 {
		t.Errorf("%d rules, want 9", len(rules))
	}
	for _, r := range rules {
		name := at(t, r, "alert")
		url, _ := at(t, r, "annotations", "runbook_url").(string)
		page, frag, _ := strings.Cut(url, "#")
		if !strings.HasSuffix(page, "/docs/operate.md") || !headings[frag] {
			t.Errorf("%v: no heading of docs/operate.md is %q", name, frag)
		}
		at(t, r, "annotations", "summary")
		if s := at(t, r, "labels", "severity"); s != "critical" && s != "warning" {
			t.Errorf("%v: severity %v", name, s)
		}
		if metricName.FindString(at(t, r, "expr").(string)) == "" {
			t.Errorf("%v asks nothing of a node", name)
		}
	}
}

func TestExampleConfigurationsAreTaken(t *testing.T) {
	files, err := filepath.Glob("examples/*.yaml")
	if err != nil || len(files) != 4 {
		t.Fatalf("%v %v", files, err)
	}
	for _, f := range files {
		l, err := node.Load(f, nil, nil)
		if err != nil {
			t.Errorf("%s: %v", f, err)
			continue
		}
		if l.Metrics.Listen == "" {
			t.Errorf("%s serves no metrics", f)
		}
	}
}

func TestManifestsRunAConfigurationThatIsTaken(t *testing.T) {
	var config string
	var spec any
	var kinds []string
	for _, d := range docs(t, "kubernetes/pdnode.yaml") {
		kind, _ := at(t, d, "kind").(string)
		kinds = append(kinds, kind)
		switch kind {
		case "ConfigMap":
			config, _ = at(t, d, "data", "pdnode.yaml").(string)
		case "DaemonSet":
			spec = at(t, d, "spec", "template", "spec")
			for key, v := range at(t, d, "spec", "selector", "matchLabels").(map[string]any) {
				if at(t, d, "spec", "template", "metadata", "labels", key) != v {
					t.Errorf("the selector's %s does not choose the pods", key)
				}
			}
		}
	}
	if !slices.Equal(kinds, []string{"Namespace", "ConfigMap", "DaemonSet"}) {
		t.Fatalf("kinds %v", kinds)
	}
	path := filepath.Join(t.TempDir(), "pdnode.yaml")
	if err := os.WriteFile(path, []byte(config), 0o600); err != nil {
		t.Fatal(err)
	}
	container := at(t, spec, "containers", 0)
	var environ []string
	values := map[string]string{"spec.nodeName": "host-1", "status.hostIP": "192.0.2.1"}
	for _, e := range at(t, container, "env").([]any) {
		field, _ := at(t, e, "valueFrom", "fieldRef", "fieldPath").(string)
		environ = append(environ, at(t, e, "name").(string)+"="+values[field])
	}
	l, err := node.Load(path, environ, nil)
	if err != nil {
		t.Fatal(err)
	}
	if l.Node != "host-1" || !strings.HasSuffix(l.Metrics.Listen, ":9464") || at(t, container, "ports", 0, "containerPort") != 9464 {
		t.Errorf("node %q, metrics %q", l.Node, l.Metrics.Listen)
	}
	mounts := map[any]bool{}
	for _, m := range at(t, container, "volumeMounts").([]any) {
		mounts[at(t, m, "mountPath")] = true
	}
	if !mounts[l.DataDir] || !mounts[filepath.Dir(l.SocketPath())] {
		t.Errorf("the log's or the socket's folder is not mounted: %v", mounts)
	}
	if grace, _ := at(t, spec, "terminationGracePeriodSeconds").(int); time.Duration(grace)*time.Second < l.StopGrace+10*time.Second {
		t.Errorf("killed %d s after SIGTERM, the grace alone is %s", grace, l.StopGrace)
	}
}

func TestUnitAndPackageAgree(t *testing.T) {
	unit := string(read(t, "systemd/pdnode.service"))
	pkg := docsOf(t, "nfpm.yaml", string(read(t, "packages/nfpm.yaml")))[0]
	dst := map[string]bool{}
	for _, c := range at(t, pkg, "contents").([]any) {
		src, _ := at(t, c, "src").(string)
		dst[at(t, c, "dst").(string)] = true
		if strings.HasPrefix(src, "bin/") {
			continue // built
		}
		if m, err := filepath.Glob(filepath.Join("..", filepath.FromSlash(src))); err != nil || len(m) == 0 {
			t.Errorf("the package takes %s, which is not there", src)
		}
	}
	for _, key := range []string{"postinstall", "preremove"} {
		script := at(t, pkg, "scripts", key).(string)
		if !strings.HasPrefix(string(read(t, "../"+script)), "#!/bin/sh\nset -e\n") {
			t.Errorf("%s does not stop at an error", script)
		}
	}
	run := regexp.MustCompile(`(?m)^ExecStart=(\S+) run --config (\S+)$`).FindStringSubmatch(unit)
	if run == nil || !dst[run[1]] || !dst[run[2]] {
		t.Errorf("the unit starts %v, the package has %v", run, dst)
	}
	for _, want := range []string{
		"Type=notify", "WatchdogSec=30s", "NoNewPrivileges=yes", "ProtectSystem=strict", "StateDirectory=pdnode", "RuntimeDirectory=pdnode",
		"CapabilityBoundingSet=\n", "Restart=on-failure",
	} {
		if !strings.Contains(unit, want) {
			t.Errorf("the unit lacks %q", want)
		}
	}
}
