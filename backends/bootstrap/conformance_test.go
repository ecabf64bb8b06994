package bootstrap

import (
	"bytes"
	"encoding/json"
	"io"
	"math/big"
	"net/http"
	"os"
	"strings"
	"testing"
)

// vectorFile holds the exchanges of the conformance contract (http.md 6).
const vectorFile = "../../test/conformance/http.jsonl"

type vector struct {
	ID     string
	Note   string
	Config struct {
		Node                   string
		Extension              *bool
		TopologyKeys           string `json:"topology_keys"`
		DecodeAllocationPolicy string `json:"decode_allocation_policy"`
		OwnRanks               []Rank `json:"own_ranks"`
	}
	Steps []struct {
		Method  string
		Path    string
		Body    json.RawMessage
		RawBody *string `json:"raw_body"`
		Expect  struct {
			Status      int
			JSON        json.RawMessage
			JSONHas     json.RawMessage `json:"json_has"`
			Text        *string
			ContentType string `json:"content_type"`
		}
	}
}

func TestConformanceVectors(t *testing.T) {
	file, err := os.ReadFile(vectorFile)
	if err != nil {
		t.Fatal(err)
	}
	vectors, steps := 0, 0
	for line := range bytes.Lines(file) {
		var v vector
		dec := json.NewDecoder(bytes.NewReader(line))
		dec.DisallowUnknownFields()
		if err := dec.Decode(&v); err != nil {
			t.Fatalf("line %d: %v", vectors+1, err)
		}
		vectors++
		steps += len(v.Steps)
		t.Run(v.ID, func(t *testing.T) { runVector(t, v) })
	}
	if vectors < 46 || steps < 150 {
		t.Errorf("%d vectors with %d steps: the file is cut", vectors, steps)
	}
}

func runVector(t *testing.T, v vector) {
	cfg := testConfig()
	if v.Config.Node != "" {
		cfg.Node = v.Config.Node
	}
	if v.Config.Extension != nil {
		cfg.Extension = *v.Config.Extension
	}
	cfg.TopologyKeys = TopologyKeys(v.Config.TopologyKeys)
	cfg.DecodeAllocationPolicy = AllocationPolicy(v.Config.DecodeAllocationPolicy)
	cfg.OwnRanks = func() []Rank { return v.Config.OwnRanks }
	addr := serve(t, newTestServer(t, cfg))
	client := &http.Client{Transport: &http.Transport{}}
	defer client.CloseIdleConnections()

	for i, step := range v.Steps {
		var body io.Reader
		switch {
		case step.RawBody != nil:
			body = strings.NewReader(*step.RawBody)
		case step.Body != nil:
			body = bytes.NewReader(step.Body)
		}
		req, err := http.NewRequest(step.Method, "http://"+addr+step.Path, body)
		if err != nil {
			t.Fatalf("step %d: %v", i, err)
		}
		if step.Body != nil {
			req.Header.Set("Content-Type", "application/json")
		}
		resp, err := client.Do(req)
		if err != nil {
			t.Fatalf("step %d: %v", i, err)
		}
		got, err := io.ReadAll(resp.Body)
		_ = resp.Body.Close()
		if err != nil {
			t.Fatalf("step %d: %v", i, err)
		}
		want := step.Expect
		if resp.StatusCode != want.Status {
			t.Errorf("step %d %s %s: status %d, want %d (%s)", i, step.Method, step.Path, resp.StatusCode, want.Status, got)
		}
		if want.Text != nil && string(got) != *want.Text {
			t.Errorf("step %d: text %q, want %q", i, got, *want.Text)
		}
		contentType, _, _ := strings.Cut(resp.Header.Get("Content-Type"), ";")
		if want.ContentType != "" && contentType != want.ContentType {
			t.Errorf("step %d: content type %q, want %q", i, contentType, want.ContentType)
		}
		if want.JSON != nil && !contains(value(t, got), value(t, want.JSON), true) {
			t.Errorf("step %d: json %s, want %s", i, got, want.JSON)
		}
		if want.JSONHas != nil && !contains(value(t, got), value(t, want.JSONHas), false) {
			t.Errorf("step %d: json %s does not have %s", i, got, want.JSONHas)
		}
	}
}

// value decodes JSON with exact numbers.
func value(t *testing.T, b []byte) any {
	t.Helper()
	dec := json.NewDecoder(bytes.NewReader(b))
	dec.UseNumber()
	var v any
	if err := dec.Decode(&v); err != nil {
		t.Errorf("%s: %v", b, err)
	}
	return v
}

// contains compares as the contract says: objects by their expected keys (all
// keys if exact), arrays place by place, an expected null as an absent key
// unless exact, numbers as integers.
func contains(got, want any, exact bool) bool {
	switch want := want.(type) {
	case map[string]any:
		g, ok := got.(map[string]any)
		if !ok || exact && len(g) != len(want) {
			return false
		}
		for key, w := range want {
			v, there := g[key]
			if exact && !there || !contains(v, w, exact) {
				return false
			}
		}
		return true
	case []any:
		g, ok := got.([]any)
		if !ok || len(g) != len(want) {
			return false
		}
		for i := range want {
			if !contains(g[i], want[i], exact) {
				return false
			}
		}
		return true
	case json.Number:
		g, ok := got.(json.Number)
		a, aOK := new(big.Int).SetString(string(want), 10)
		b, bOK := new(big.Int).SetString(string(g), 10)
		return ok && aOK && bOK && a.Cmp(b) == 0
	}
	return got == want
}

func TestVectorComparisonTellsDifferences(t *testing.T) {
	for _, c := range []struct {
		got, want  string
		equal, has bool
	}{
		{`{"a":1,"b":2}`, `{"b":2,"a":1}`, true, true},
		{`{"a":1,"b":2}`, `{"a":1}`, false, true},
		{`{"a":1}`, `{"a":1,"b":null}`, false, true},
		{`{"a":null}`, `{"a":null}`, true, true},
		{`{"a":1.0}`, `{"a":1}`, false, false},
		{`{"a":9007199254740993}`, `{"a":9007199254740992}`, false, false},
		{`{"a":[1,2]}`, `{"a":[1]}`, false, false},
		{`{"a":true}`, `{"a":1}`, false, false},
		{`[]`, `{}`, false, false},
	} {
		if e := contains(value(t, []byte(c.got)), value(t, []byte(c.want)), true); e != c.equal {
			t.Errorf("%s equals %s: %v", c.got, c.want, e)
		}
		if h := contains(value(t, []byte(c.got)), value(t, []byte(c.want)), false); h != c.has {
			t.Errorf("%s has %s: %v", c.got, c.want, h)
		}
	}
}
