package bootstrap

import (
	"encoding/json"
	"errors"
	"math"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

var sizeKeys = []string{"attn_tp_size", "attn_cp_size", "attn_dp_size", "pp_size", "system_dp_size"}
var rankKeys = []string{"attn_tp_rank", "attn_cp_rank", "attn_dp_rank", "pp_rank", "system_dp_rank"}
var otherKeys = []string{"rank_ip", "rank_port", "page_size", "kv_cache_dtype"}

func requiredKeys() []string {
	return append(append(append([]string{}, sizeKeys...), rankKeys...), otherKeys...)
}

func TestGoodBodyIsRead(t *testing.T) {
	got, err := parseRegistration([]byte(goodBody))
	want := aRank(0, 1)
	want.LoadBalanceMethod = FollowBootstrapRoom
	if diff := cmp.Diff(want, got); err != nil || diff != "" {
		t.Errorf("%v %s", err, diff)
	}
}

// bad is refused, is counted, and changes nothing.
func bad(t *testing.T, s *Server, body string) {
	t.Helper()
	before := s.Stats()
	expect(t, s, "PUT", "/route", body, 400, "Bad request: …")
	after := s.Stats()
	before.BadRegistrations++
	if diff := cmp.Diff(before, after); diff != "" {
		t.Errorf("%.200s changed the server: %s", body, diff)
	}
}

func TestBadRegistrationsChangeNothing(t *testing.T) {
	s := newTestServer(t, testConfig())
	expect(t, s, "PUT", "/route", goodBody, 200, "OK")

	for _, key := range requiredKeys() {
		bad(t, s, without(t, key))
		for _, value := range []string{`null`, `true`, `[1]`, `{}`, `""`, `1.5`} {
			bad(t, s, with(t, key, value))
		}
		bad(t, s, strings.Replace(goodBody, key, strings.ToUpper(key), 1))
	}
	for _, key := range append(append([]string{}, sizeKeys...), "rank_port", "page_size") {
		for _, value := range []string{
			`1.0`, `1e0`, `1E0`, `1e+0`, `"1"`, `-1`, `0`, `2147483648`, `-9223372036854775808`,
			`9223372036854775808`, `18446744073709551617`, `1` + strings.Repeat("0", 400), `-0`,
		} {
			bad(t, s, with(t, key, value))
		}
	}
	for _, key := range rankKeys {
		for _, value := range []string{`0.0`, `0e0`, `"0"`, `-1`, `1`, `65536`, `18446744073709551616`, `false`} {
			bad(t, s, with(t, key, value))
		}
	}
	for _, size := range sizeKeys {
		bad(t, s, with(t, size, `65537`))
	}
	bad(t, s, with(t, "rank_port", `65536`))
	for _, value := range []string{
		`"10.0.0.02"`, `"10.0.0"`, `"10.0.0.2.1"`, `" 10.0.0.2"`, `"10.0.0.2\n"`, `"10.0.0.2/32"`, `"[::1]"`,
		`"fe80::1%eth0"`, `"::1%"`, `"2001:db8::/64"`, `"localhost"`, `"10.0.0.2\u0000"`, `12`, `"0x0a.0.0.2"`,
	} {
		bad(t, s, with(t, "rank_ip", value))
	}
	for _, value := range []string{`1`, `true`, `["follow_bootstrap_room"]`, `{}`} {
		bad(t, s, with(t, "load_balance_method", value))
	}
	for _, value := range []string{`0`, `1`, `"true"`, `[]`, `"x"`} {
		bad(t, s, with(t, "enable_dsa_cache_layer_split", value))
	}
	for _, value := range []string{`0`, `65536`, `-1`, `"30000"`, `30000.0`, `3e4`, `true`, `[]`} {
		bad(t, s, with(t, "prefill_http_port", value))
	}
	for _, body := range []string{
		``, ` `, `null`, `true`, `1`, `"x"`, `[]`, `[` + goodBody + `]`, `{}`, goodBody[:len(goodBody)-1], goodBody + `x`,
		goodBody + `,`, goodBody + `{}`, goodBody + "\x00", "\ufeff" + goodBody, goodBody[:len(goodBody)-1] + ",}",
		strings.ReplaceAll(goodBody, `"`, `'`), with(t, "page_size", `064`), with(t, "page_size", `+64`),
		with(t, "page_size", `NaN`), with(t, "page_size", `Infinity`), with(t, "page_size", `0x40`),
		with(t, "kv_cache_dtype", "\"\xff\""), "{\"\xff\":1," + goodBody[1:], with(t, "kv_cache_dtype", "\"a\nb\""),
		`{"deep":` + strings.Repeat("[", 400000), `/**/` + goodBody,
	} {
		bad(t, s, body)
	}
	expect(t, s, "GET", "/route?prefill_dp_rank=0&prefill_cp_rank=0&target_tp_rank=0&target_pp_rank=0", "", 200,
		`{"rank_ip":"10.0.0.2","rank_port":41000}`)
}

func TestGoodRegistrationsOfOddSpelling(t *testing.T) {
	for name, body := range map[string]string{
		"blanks around":        " \t\r\n" + goodBody + "\n",
		"last duplicate":       `{"rank_port":"x","page_size":null,` + goodBody[1:],
		"escaped key":          strings.Replace(goodBody, `"rank_port"`, `"rank\u005fport"`, 1),
		"other case beside it": goodBody[:len(goodBody)-1] + `,"Rank_Port":"x","PAGE_SIZE":7}`,
		"unknown keys":         `{"x":[{"y":null}],"":1e99,` + goodBody[1:],
		"blanks inside":        strings.NewReplacer(":", " :\n", ",", "\t, ").Replace(goodBody),
		"deep unknown":         `{"x":` + strings.Repeat("[", 5000) + strings.Repeat("]", 5000) + `,` + goodBody[1:],
		"-0 is an integer":     with(t, "pp_rank", `-0`),
		"IPv6":                 with(t, "rank_ip", `"::ffff:10.0.0.2"`),
		"null optional":        with(t, "prefill_http_port", `null`),
	} {
		s := newTestServer(t, testConfig())
		if w := call(s, "PUT", "/route", body); w.Code != 200 || !s.Ready() {
			t.Errorf("%s: %d %s", name, w.Code, w.Body)
		}
	}
}

func TestLastDuplicateCountsAlsoIfItIsBad(t *testing.T) {
	s := newTestServer(t, testConfig())
	bad(t, s, goodBody[:len(goodBody)-1]+`,"page_size":"64"}`)
	bad(t, s, goodBody[:len(goodBody)-1]+`,"page_size":null}`)
}

func TestEmptyBalancingMethodIsNotTheDefault(t *testing.T) {
	s := newTestServer(t, testConfig())
	expect(t, s, "PUT", "/route", with(t, "load_balance_method", `""`), 200, "OK")
	if body := call(s, "GET", allMinusOne, "").Body.String(); !strings.Contains(body, `"follow_bootstrap_room":false`) {
		t.Error(body)
	}
	// In process the zero value means the default.
	s = newTestServer(t, testConfig())
	if err := s.Register(aRank(0, 1)); err != nil {
		t.Fatal(err)
	}
	if body := call(s, "GET", allMinusOne, "").Body.String(); !strings.Contains(body, `"follow_bootstrap_room":true`) {
		t.Error(body)
	}
}

func TestRegistrationInProcess(t *testing.T) {
	s := newTestServer(t, testConfig())
	r := aRank(0, 1)
	r.RankIP = "prefill-0"
	if err := s.Register(r); err == nil || !strings.Contains(err.Error(), "rank_ip is not an IP address") {
		t.Errorf("host name: %v", err)
	}
	if st := s.Stats(); st.BadRegistrations != 1 || st.Ranks != 0 || st.Ready || st.Expected != 0 {
		t.Errorf("%+v", st)
	}
	if err := s.Register(aRank(0, 1)); err != nil || !s.Ready() {
		t.Errorf("%v, ready %v", err, s.Ready())
	}
}

func TestHugeTopologyIsNeverReady(t *testing.T) {
	s := newTestServer(t, testConfig())
	r := aRank(0, 1)
	r.AttnTPSize, r.AttnCPSize, r.AttnDPSize, r.PPSize = maxSize, maxSize, maxSize, maxSize // 2^64 ranks
	if err := s.Register(r); err != nil {
		t.Fatal(err)
	}
	if st := s.Stats(); st.Ready || st.Expected != math.MaxUint64 {
		t.Errorf("%+v", st)
	}
	expect(t, s, "GET", allMinusOne, "", 503, "Prefill server not fully registered yet (1 workers registered).")
}

func TestRanksAreBounded(t *testing.T) {
	tab := table{limit: 3}
	for _, rank := range []int{0, 1, 2, 1} { // 1 again needs no room
		if _, err := tab.put(aRank(rank, 9)); err != nil {
			t.Fatalf("rank %d: %v", rank, err)
		}
	}
	if _, err := tab.put(aRank(3, 9)); !errors.Is(err, errTooManyRanks) || len(tab.ranks) != 3 {
		t.Errorf("one rank more: %v, %d ranks", err, len(tab.ranks))
	}
	if changed, err := tab.put(aRank(0, 8)); err != nil || !changed || len(tab.ranks) != 1 {
		t.Errorf("another topology: %v %v", changed, err)
	}
	if _, err := tab.put(aRank(1, 8)); err != nil {
		t.Errorf("the limit went with the topology: %v", err)
	}

	s := newTestServer(t, testConfig())
	if s.table.limit != maxRanks {
		t.Errorf("limit %d", s.table.limit)
	}
	s.table.limit = 1
	for rank, status := range []int{200, 400} {
		expect(t, s, "PUT", "/route", strings.NewReplacer(`"attn_tp_size":1`, `"attn_tp_size":2`,
			`"attn_tp_rank":0`, `"attn_tp_rank":`+strconv.Itoa(rank)).Replace(goodBody), status, "")
	}
	if st := s.Stats(); st.Ranks != 1 || st.Registrations != 1 || st.BadRegistrations != 1 {
		t.Errorf("%+v", st)
	}
}

func TestEachTopologyValueStartsANewOne(t *testing.T) {
	base := aRank(0, 2)
	for name, change := range map[string]func(*Registration){
		"attn_tp_size":   func(r *Registration) { r.AttnTPSize = 3 },
		"attn_cp_size":   func(r *Registration) { r.AttnCPSize = 2 },
		"attn_dp_size":   func(r *Registration) { r.AttnDPSize = 2 },
		"system_dp_size": func(r *Registration) { r.SystemDPSize = 2 },
		"pp_size":        func(r *Registration) { r.PPSize = 2 },
		"page_size":      func(r *Registration) { r.PageSize = 32 },
		"kv_cache_dtype": func(r *Registration) { r.KVCacheDType = "fp8_e4m3" },
	} {
		s := newTestServer(t, testConfig())
		other := aRank(1, 2)
		change(&other)
		for i, r := range []Registration{base, other, base} {
			if err := s.Register(r); err != nil {
				t.Fatal(name, err)
			}
			if st := s.Stats(); st.TopologyChanges != uint64(i) || st.Ranks != 1 || st.Registrations != uint64(i+1) {
				t.Errorf("%s: %+v", name, st)
			}
		}
	}
	// What is not topology does not.
	s := newTestServer(t, testConfig())
	other := aRank(1, 2)
	other.LoadBalanceMethod, other.EnableDSACacheLayerSplit, other.PrefillHTTPPort = "round_robin", true, 1
	for _, r := range []Registration{base, other} {
		if err := s.Register(r); err != nil {
			t.Fatal(err)
		}
	}
	if st := s.Stats(); st.TopologyChanges != 0 || !st.Ready {
		t.Errorf("%+v", st)
	}
	// Another attention dp size is none either where the system's counts.
	s = newTestServer(t, testConfig())
	a, b := aRank(0, 1), aRank(0, 1)
	a.SystemDPSize, b.SystemDPSize, b.SystemDPRank, b.AttnDPSize = 2, 2, 1, 4
	for _, r := range []Registration{a, b} {
		if err := s.Register(r); err != nil {
			t.Fatal(err)
		}
	}
	if st := s.Stats(); st.TopologyChanges != 0 || !st.Ready {
		t.Errorf("%+v", st)
	}
}

func TestNewTopologyTakesItsOwnFirstRegistration(t *testing.T) {
	s := newTestServer(t, testConfig())
	second := aRank(0, 1)
	second.PageSize, second.LoadBalanceMethod, second.PrefillHTTPPort = 32, "round_robin", 0
	for _, r := range []Registration{aRank(0, 1), second} {
		if err := s.Register(r); err != nil {
			t.Fatal(err)
		}
	}
	var got map[string]any
	if err := json.Unmarshal(call(s, "GET", allMinusOne, "").Body.Bytes(), &got); err != nil {
		t.Fatal(err)
	}
	if got["follow_bootstrap_room"] != false || got["prefill_http_port"] != nil || len(got) != 15 {
		t.Errorf("%v", got)
	}
}
