package bootstrap

import (
	"bytes"
	"log/slog"
	"net/netip"
	"strings"
	"testing"
)

// goodNode is an answer to discovery to edit; that of wire.md 9.2.
const goodNode = `{"node":"p0","boot":"9f0c3a5577e1b2d4","incarnation":3,"version":"0.1.0",` +
	`"ranks":[{"dp":0,"tp":0,"cp":0,"pp":0,"ip":"10.0.0.2","port":41001}],` +
	`"log_since":117309741465600000,"log_id":"5f0e2c4b9a7d41e8b3c6d2a1f0e9c8b7","features":["pdx1"]}`

func TestDiscoveryTakesOnlyTheExactAnswer(t *testing.T) {
	change := func(old, replacement string) string {
		if !strings.Contains(goodNode, old) {
			t.Fatalf("no %s", old)
		}
		return strings.Replace(goodNode, old, replacement, 1)
	}
	good := map[string]string{
		"as documented":       goodNode,
		"unknown keys":        change(`{`, `{"x":1.5,"Node":7,`),
		"unknown key in rank": change(`"dp":0`, `"dp":0,"gpu":null`),
		"no dp":               change(`"dp":0,`, ``),
		"no log_id":           change(`"log_id":"5f0e2c4b9a7d41e8b3c6d2a1f0e9c8b7",`, ``),
		"no ranks":            change(`{"dp":0,"tp":0,"cp":0,"pp":0,"ip":"10.0.0.2","port":41001}`, ``),
		"unknown feature":     change(`"pdx1"`, `"pdx9","pdx1"`),
		"last duplicate":      change(`{`, `{"boot":null,`),
		"u64":                 change(`117309741465600000`, `18446744073709551615`),
		"empty version":       change(`"0.1.0"`, `""`),
	}
	for name, body := range good {
		if n, err := parseNode([]byte(body)); err != nil || n.Node != "p0" || n.Boot != 0x9f0c3a5577e1b2d4 || !n.Speaks(FeaturePDX1) {
			t.Errorf("%s: %+v %v", name, n, err)
		}
	}
	bad := map[string]string{
		"trailing":         goodNode + `{}`,
		"array":            `[` + goodNode + `]`,
		"null":             `null`,
		"html":             `<html>`,
		"node type":        change(`"p0"`, `0`),
		"node empty":       change(`"p0"`, `""`),
		"node slash":       change(`"p0"`, `"p/0"`),
		"node blank":       change(`"p0"`, `"p 0"`),
		"node long":        change(`"p0"`, `"`+strings.Repeat("p", 129)+`"`),
		"boot upper":       change(`9f0c`, `9F0C`),
		"boot short":       change(`9f0c`, `9f0`),
		"boot number":      change(`"9f0c3a5577e1b2d4"`, `11460`),
		"boot zero":        change(`9f0c3a5577e1b2d4`, `0000000000000000`),
		"incarnation 0":    change(`"incarnation":3`, `"incarnation":0`),
		"incarnation 3.0":  change(`"incarnation":3`, `"incarnation":3.0`),
		"incarnation 3e0":  change(`"incarnation":3`, `"incarnation":3e0`),
		"incarnation -1":   change(`"incarnation":3`, `"incarnation":-1`),
		"incarnation text": change(`"incarnation":3`, `"incarnation":"3"`),
		"log_since 2^64":   change(`117309741465600000`, `18446744073709551616`),
		"log_since null":   change(`117309741465600000`, `null`),
		"version number":   change(`"0.1.0"`, `1`),
		"ranks null":       change(`[{"dp":0,"tp":0,"cp":0,"pp":0,"ip":"10.0.0.2","port":41001}]`, `null`),
		"ranks object":     change(`[{"dp":0,"tp":0,"cp":0,"pp":0,"ip":"10.0.0.2","port":41001}]`, `{}`),
		"rank null":        change(`{"dp":0,"tp":0,"cp":0,"pp":0,"ip":"10.0.0.2","port":41001}`, `null`),
		"rank dp null":     change(`"dp":0`, `"dp":null`),
		"rank tp text":     change(`"tp":0`, `"tp":"0"`),
		"rank port 0":      change(`41001`, `0`),
		"rank port 65536":  change(`41001`, `65536`),
		"rank ip name":     change(`10.0.0.2`, `prefill-0`),
		"log_id short":     change(`5f0e2c4b`, `5f0e2c`),
		"log_id upper":     change(`5f0e2c4b`, `5F0E2C4B`),
		"log_id null":      change(`"5f0e2c4b9a7d41e8b3c6d2a1f0e9c8b7"`, `null`),
		"features null":    change(`["pdx1"]`, `null`),
		"features text":    change(`["pdx1"]`, `"pdx1"`),
		"feature number":   change(`"pdx1"`, `1`),
	}
	for _, key := range []string{"node", "boot", "incarnation", "version", "ranks", "log_since", "features", "tp", "cp", "pp", "ip", "port"} {
		bad["no "+key] = change(`"`+key+`":`, `"x_`+key+`":`)
	}
	for name, body := range bad {
		if n, err := parseNode([]byte(body)); err == nil || n.Node != "" {
			t.Errorf("%s: taken as %+v", name, n)
		}
	}
}

func TestDiscoveryOfOthersIsNoErrorAndOneDebugLine(t *testing.T) {
	cfg := testConfig()
	cfg.Extension = false
	off := serve(t, newTestServer(t, cfg))
	for name, addr := range map[string]string{
		"extension off": off, "nobody": deadAddr(t), "404": answerWith(t, 404, "404: Not Found"), "500": answerWith(t, 500, goodNode),
		"201": answerWith(t, 201, goodNode), "not JSON": answerWith(t, 200, "OK"),
	} {
		var log bytes.Buffer
		c := NewClient(ClientConfig{Log: slog.New(slog.NewTextHandler(&log, &slog.HandlerOptions{Level: slog.LevelDebug}))})
		info, ok, err := c.Discover(t.Context(), addr)
		if ok || err != nil || info.Node != "" {
			t.Errorf("%s: %+v %v %v", name, info, ok, err)
		}
		if lines := strings.Count(log.String(), "\n"); lines != 1 || !strings.Contains(log.String(), "level=DEBUG") {
			t.Errorf("%s: logged %q", name, log.String())
		}
		want := Other
		if name == "nobody" {
			want = Silent
		}
		if _, found, err := c.WhoIs(t.Context(), addr); found != want || err != nil {
			t.Errorf("%s: found %v, %v", name, found, err)
		}
		c.Close()
	}
	c := newTestClient(t)
	if info, ok, err := c.Discover(t.Context(), answerWith(t, 200, goodNode)); !ok || err != nil || info.Node != "p0" {
		t.Errorf("%+v %v %v", info, ok, err)
	}
}

func TestRanksAreComparedAsAddresses(t *testing.T) {
	n := NodeInfo{Ranks: []Rank{{IP: "2001:DB8:0::2", Port: 5}, {IP: "10.0.0.2", Port: 41001}, {IP: "bad", Port: 1}}}
	for text, want := range map[string]bool{
		"[2001:db8::2]:5": true, "10.0.0.2:41001": true, "[::ffff:10.0.0.2]:41001": true,
		"10.0.0.2:4100": false, "10.0.0.20:41001": false, "[2001:db8::2]:6": false,
	} {
		if got := n.Runs(netip.MustParseAddrPort(text)); got != want {
			t.Errorf("%s: %v", text, got)
		}
	}
}

func TestOutstandingTakesNoHalfAnswer(t *testing.T) {
	const good = `{"node":"p0","boot":"9f0c3a5577e1b2d4","incarnation":3,"known":false,"open":0}`
	if out, err := parseOutstanding([]byte(good)); err != nil || out != (Outstanding{"p0", 0x9f0c3a5577e1b2d4, 3, false, 0}) {
		t.Errorf("%+v %v", out, err)
	}
	for _, edit := range [][2]string{
		{`"open":0`, `"open":0.0`}, {`"open":0`, `"open":-1`}, {`"open":0`, `"open":null`}, {`"open":0`, `"Open":0`}, {`"open":0`, `"open":""`},
		{`false`, `0`}, {`false`, `null`}, {`"known"`, `"unknown"`}, {`"p0"`, `""`}, {`9f0c`, `9f`}, {`"incarnation":3`, `"incarnation":0`},
		{`}`, `}}`},
	} {
		if out, err := parseOutstanding([]byte(strings.Replace(good, edit[0], edit[1], 1))); err == nil || out != (Outstanding{}) {
			t.Errorf("%v: %+v", edit, out)
		}
	}
}
