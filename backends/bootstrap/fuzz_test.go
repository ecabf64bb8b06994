package bootstrap

import (
	"bytes"
	"encoding/json"
	"net/url"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// FuzzRegistrationBody: whatever is taken is in range, is what a plain reader
// of JSON sees under the very same keys, and survives being sent again.
func FuzzRegistrationBody(f *testing.F) {
	for _, seed := range []string{
		goodBody, `{}`, `null`, ``, goodBody + `{}`, "\ufeff" + goodBody, strings.Replace(goodBody, `64`, `64.0`, 1),
		strings.Replace(goodBody, `64`, `64e0`, 1), strings.Replace(goodBody, `:1,`, `:18446744073709551617,`, 1),
		strings.Replace(goodBody, `"page_size"`, `"Page_Size"`, 1), `{"page_size":"x",` + goodBody[1:],
		strings.Replace(goodBody, `10.0.0.2`, `2001:DB8::2`, 1), strings.Replace(goodBody, `30000`, `null`, 1),
		strings.Replace(goodBody, `auto`, `\ud800\u0000é`, 1),
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, body []byte) {
		r, err := parseRegistration(body)
		if err != nil {
			if strings.ContainsAny(err.Error(), "\r\n") || len(err.Error()) > 200 {
				t.Fatalf("complaint %q", err)
			}
			return
		}
		if err := r.Validate(); err != nil {
			t.Fatalf("taken: %v", err)
		}
		dec := json.NewDecoder(bytes.NewReader(body))
		dec.UseNumber()
		var plain map[string]any
		if err := dec.Decode(&plain); err != nil || dec.More() {
			t.Fatalf("taken, but no JSON object alone: %v", err)
		}
		for key, got := range map[string]int{
			"attn_tp_size": r.AttnTPSize, "attn_tp_rank": r.AttnTPRank, "attn_cp_size": r.AttnCPSize, "attn_cp_rank": r.AttnCPRank,
			"attn_dp_size": r.AttnDPSize, "attn_dp_rank": r.AttnDPRank, "pp_size": r.PPSize, "pp_rank": r.PPRank,
			"system_dp_size": r.SystemDPSize, "system_dp_rank": r.SystemDPRank, "rank_port": int(r.RankPort), "page_size": r.PageSize,
		} {
			n, _ := plain[key].(json.Number)
			if want, err := strconv.Atoi(n.String()); err != nil || want != got {
				t.Fatalf("%s: %d, the body says %v", key, got, plain[key])
			}
		}
		if plain["rank_ip"] != r.RankIP || plain["kv_cache_dtype"] != r.KVCacheDType {
			t.Fatalf("%+v of %v", r, plain)
		}
		sent, err := json.Marshal(r)
		if err != nil {
			t.Fatal(err)
		}
		again, err := parseRegistration(sent)
		if r.LoadBalanceMethod == "" { // cannot be sent: it means the default
			again.LoadBalanceMethod = ""
		}
		if diff := cmp.Diff(r, again); err != nil || diff != "" {
			t.Fatalf("%v %s", err, diff)
		}
	})
}

var strictDec = regexp.MustCompile(`^(0|-?[1-9][0-9]*)$`)

// FuzzRouteQuery: a query is taken exactly if the first value of each of the
// four parameters is a strict number in range.
func FuzzRouteQuery(f *testing.F) {
	for _, seed := range []string{
		"", allMinusOne[len("/route?"):], "prefill_dp_rank=0&prefill_cp_rank=0&target_tp_rank=+1&target_pp_rank=0",
		"prefill_dp_rank=00&prefill_cp_rank=%30&target_tp_rank=2147483648&target_pp_rank=-0", "a;b&%zz&target_tp_rank",
		"prefill_dp_rank=1&prefill_dp_rank=2&prefill_cp_rank=3&target_tp_rank=4&target_pp_rank=5&x=y",
	} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, raw string) {
		p, err := routeQuery(raw)
		values, parseErr := url.ParseQuery(raw)
		if parseErr != nil {
			return // net/url drops broken pairs, we do not: nothing to compare with
		}
		want, good := [4]int{}, true
		for i, name := range [...]string{"prefill_dp_rank", "prefill_cp_rank", "target_tp_rank", "target_pp_rank"} {
			v := values.Get(name)
			n, err := strconv.Atoi(v)
			good = good && strictDec.MatchString(v) && err == nil && n >= -1 && n <= 1<<31-1
			want[i] = n
		}
		if good != (err == nil) || good && p != (place{want[0], want[1], want[2], want[3]}) {
			t.Fatalf("%q: %+v %v", raw, p, err)
		}
	})
}

// FuzzRequest: any request is answered, and never with 500.
func FuzzRequest(f *testing.F) {
	for _, seed := range [][3]string{
		{"PUT", "/route", goodBody}, {"GET", allMinusOne, ""}, {"POST", "/register_dp_rank", `{"bootstrap_room":1,"dp_rank":1}`},
		{"POST", "/query_dp_ranks", `{"bootstrap_rooms":[1,9223372036854775807]}`}, {"POST", "/query_dp_ranks", `{"bootstrap_rooms":[[1,2]]}`},
		{"GET", "/pdlog/v1/node", ""}, {"GET", "/pdlog/v1/outstanding?node=d0&boot=00000000000000ff", ""}, {"GET", "/health", "x"},
	} {
		f.Add(seed[0], seed[1], []byte(seed[2]))
	}
	cfg := testConfig()
	cfg.Outstanding = func(Asker) (bool, uint64, error) { return false, 0, nil }
	s, err := New(cfg)
	if err != nil {
		f.Fatal(err)
	}
	statuses := map[int]bool{200: true, 400: true, 404: true, 405: true, 413: true, 503: true}
	f.Fuzz(func(t *testing.T, method, target string, body []byte) {
		u, err := url.ParseRequestURI(target)
		if err != nil {
			return // net/http answers that itself
		}
		w := callURL(s, method, u, body)
		if !statuses[w.Code] {
			t.Fatalf("%s %q %q: %d %q", method, target, body, w.Code, w.Body)
		}
		if w.Header().Get("Content-Type") == "application/json" && w.Code == 200 && !json.Valid(w.Body.Bytes()) {
			t.Fatalf("%s %q %q: %q", method, target, body, w.Body)
		}
	})
}

// FuzzNodeAnswer: whatever is taken as pdlog's can be told apart by its name
// and boot.
func FuzzNodeAnswer(f *testing.F) {
	f.Add([]byte(goodNode))
	f.Add([]byte(strings.Replace(goodNode, `"dp":0,`, ``, 1)))
	f.Add([]byte(`{"ranks":null}`))
	f.Fuzz(func(t *testing.T, body []byte) {
		n, err := parseNode(body)
		if err != nil {
			if n.Node != "" || n.Boot != 0 || n.Ranks != nil {
				t.Fatalf("half an answer: %+v", n)
			}
			return
		}
		if !validNode(n.Node) || n.Boot == 0 || n.Incarnation == 0 || len(n.LogID) != 0 && len(n.LogID) != 16 {
			t.Fatalf("%+v", n)
		}
		for _, r := range n.Ranks {
			if !r.AddrPort().IsValid() || r.Port == 0 {
				t.Fatalf("%+v", r)
			}
		}
	})
}

// FuzzAnswers: the answers of other people's bootstrap servers hold what this
// package says they hold, or are refused whole.
func FuzzAnswers(f *testing.F) {
	f.Add([]byte(`{"rank_ip":"10.0.0.1","rank_port":17}`))
	f.Add([]byte(`{"attn_tp_size":2,"attn_cp_size":1,"dp_size":1,"pp_size":1,"page_size":64,"kv_cache_dtype":"auto","follow_bootstrap_room":true,"enable_dsa_cache_layer_split":false,"prefill_http_port":30000}`))
	f.Add([]byte(`{"node":"p0","boot":"0000000000000007","incarnation":1,"known":true,"open":0}`))
	f.Add([]byte(`{"1":0,"18446744073709551615":3}`))
	f.Fuzz(func(t *testing.T, body []byte) {
		if r, err := parseRankAnswer(body); err == nil && (r.Port == 0 || r.IP == "") {
			t.Fatalf("%+v", r)
		}
		if p, err := parseTopology(body); err == nil && (min(p.AttnTPSize, p.AttnCPSize, p.DPSize, p.PPSize, p.PageSize) < 1 ||
			p.DecodeAllocationPolicy != AllocateEarly && p.DecodeAllocationPolicy != AllocatePrefillComplete) {
			t.Fatalf("%+v", p)
		}
		o, err := parseOutstanding(body)
		if err != nil && o != (Outstanding{}) || err == nil && (!validNode(o.Node) || o.Boot == 0 || o.Incarnation == 0) {
			t.Fatalf("%+v, %v", o, err)
		}
		ranks := map[uint64]int{}
		if err := parseDPRanks(body, ranks); err == nil {
			for room, rank := range ranks {
				if rank < 0 || rank > maxI31 {
					t.Fatalf("room %d: rank %d", room, rank)
				}
			}
		}
	})
}
