package backends_test

import (
	"encoding/hex"
	"slices"
	"strings"
	"testing"

	"github.com/pdlog/pdlog/backends"
	_ "github.com/pdlog/pdlog/backends/all"
	"github.com/pdlog/pdlog/backends/backendtest"
)

// frames splits a message written as text: `|` between frames, `0x…` is raw.
func frames(t *testing.T, text string) backends.Frames {
	t.Helper()
	if text == "(none)" {
		return nil
	}
	var f backends.Frames
	for _, part := range strings.Split(text, "|") {
		raw, isHex := strings.CutPrefix(part, "0x")
		if !isHex {
			f = append(f, []byte(part))
			continue
		}
		b, err := hex.DecodeString(raw)
		if err != nil {
			t.Fatal(err)
		}
		f = append(f, b)
	}
	return f
}

// ext is a good extension frame of node "d0", boot 1, incarnation 1.
const ext = "0x504458310a0264301101000000000000001801"

const extJSON = `{"node":"d0","boot":"0000000000000001","incarnation":1,"hlc":null,"proof":null,"drained":null,"write_keys":null}`

type edge struct {
	dialects string // comma-joined
	at       backends.Side
	frames   string
	kind     string
	fields   string
}

const (
	all = "mooncake,nixl,mori"
	p   = backends.AtPrefill
	d   = backends.AtDecode
)

func run(t *testing.T, edges []edge) {
	for _, e := range edges {
		for _, name := range strings.Split(e.dialects, ",") {
			t.Run(name+" "+e.frames, func(t *testing.T) {
				dialect, err := backends.Lookup(name)
				if err != nil {
					t.Fatal(err)
				}
				if e.fields == "" {
					e.fields = "{}"
				}
				backendtest.CheckMessage(t, dialect.Decode(e.at, frames(t, e.frames)), e.kind, []byte(e.fields))
			})
		}
	}
}

func TestAbortEdges(t *testing.T) {
	run(t, []edge{
		{all, p, "ABORT|0", "abort", `{"room":0,"ip":null,"dropped":null}`},
		{all, p, "ABORT|9223372036854775807|::|1|9223372036854775807", "abort",
			`{"room":9223372036854775807,"ip":"::","port":1,"generation":9223372036854775807,"dropped":null}`},
		{all, p, "ABORT|18446744073709551615|10.0.0.1|5000", "malformed", ""},
		{all, p, "ABORT|18446744073709555858|10.0.0.1|5000", "malformed", ""}, // 2^64 + 4242
		{all, p, "ABORT|-0|10.0.0.1|5000", "malformed", ""},
		{all, p, "ABORT|", "malformed", ""},
		{all, p, "ABORT|||5000", "malformed", ""},
		{all, p, "ABORT|1|10.0.0.1", "abort", `{"ip":null,"port":null,"dropped":["address"]}`},
		{all, p, "ABORT|1|10.0.0.1|", "abort", `{"ip":null,"dropped":["address"]}`},
		{all, p, "ABORT|1|", "abort", `{"ip":null,"dropped":null}`},
		{all, p, "ABORT|1||", "abort", `{"ip":null,"dropped":null}`},
		{all, p, "ABORT|1|||7", "abort", `{"ip":null,"generation":null,"dropped":null}`},
		{all, p, "ABORT|1|||x", "abort", `{"generation":null,"dropped":["generation"]}`},
		{all, p, "ABORT|1|x|y|z", "abort", `{"generation":null,"dropped":["address","generation"]}`},
		{all, p, "ABORT|1|10.0.0.1|5000|-0", "abort", `{"ip":"10.0.0.1","generation":null,"dropped":["generation"]}`},
		{all, p, "ABORT|1|10.0.0.1|5000|", "abort", `{"ip":"10.0.0.1","generation":null,"dropped":null}`},
		{all, p, "ABORT|1|10.0.0.1|5000|0", "abort", `{"generation":0,"dropped":null}`},
		{all, p, "ABORT|1|1:2:3:4:5:6:7:8|65535", "abort", `{"ip":"1:2:3:4:5:6:7:8","port":65535}`},
		{all, p, "ABORT|1|" + strings.Repeat("1", 5000) + "|1", "abort", `{"ip":null,"dropped":["address"]}`},
		// The extension: at its place, later, earlier, not last, beside bad frames.
		{all, p, "ABORT|1|10.0.0.1|5000||" + ext, "abort", `{"generation":null,"dropped":null,"ext":` + extJSON + `}`},
		{all, p, "ABORT|1||||" + ext, "abort", `{"ip":null,"dropped":null,"ext":` + extJSON + `}`},
		{all, p, "ABORT|1|x|||" + ext, "abort", `{"dropped":["address"],"ext":` + extJSON + `}`},
		{all, p, "ABORT|1|10.0.0.1|5000|7|x|y||" + ext, "abort", `{"generation":7,"ext":` + extJSON + `}`},
		{all, p, "ABORT|1|10.0.0.1|5000|7|" + ext + "|", "abort", `{"generation":7,"ext":null,"ext_ignored":null}`},
		{all, p, "ABORT|1|10.0.0.1|5000|7|" + ext + "|" + ext, "abort", `{"ext":` + extJSON + `}`},
		{all, p, "ABORT|1|10.0.0.1|5000|" + ext, "abort", `{"generation":null,"dropped":["generation"],"ext":null}`},
		{all, p, "ABORT|1|10.0.0.1|" + ext, "abort", `{"ip":null,"dropped":["address"],"ext":null}`},
		{all, p, "ABORT|1|" + ext, "abort", `{"ip":null,"dropped":["address"],"ext":null}`},
		{all, p, "ABORT|" + ext, "malformed", ""},
		{all, p, "ABORT|x|10.0.0.1|5000|7|" + ext, "malformed", ""},
		{all, p, "ABORT|1|10.0.0.1|5000|7|PDX2", "abort", `{"generation":7,"ext":null,"ext_ignored":"version"}`},
		{all, p, "ABORT|1|10.0.0.1|5000|7|PDX1", "abort", `{"generation":7,"ext":null,"ext_ignored":"malformed"}`},
		{all, p, "ABORT|1|10.0.0.1|5000|7|PDX", "abort", `{"generation":7,"ext":null,"ext_ignored":null}`},
		{all, p, "ABORT|1|10.0.0.1|5000|7|pdx1", "abort", `{"ext":null,"ext_ignored":null}`},
		{all, d, "ABORT|1|10.0.0.1|5000|7", "foreign", ""},
		{all, p, "ABORT\x00|1|10.0.0.1|5000|7", "foreign", ""},
		{all, p, "ABORT_ACK|1|3|7", "foreign", ""},
	})
}

func TestAbortAckEdges(t *testing.T) {
	run(t, []edge{
		{all, d, "ABORT_ACK|1|2147483647|9223372036854775807", "abort_ack",
			`{"prefill_rank":2147483647,"generation":9223372036854775807,"form":"v3"}`},
		{all, d, "ABORT_ACK|1|2147483648|1", "malformed", ""},
		{all, d, "ABORT_ACK|1|3|9223372036854775808", "malformed", ""},
		{all, d, "ABORT_ACK|1|-0", "malformed", ""},
		{all, d, "ABORT_ACK|1|-1", "malformed", ""},
		{all, d, "ABORT_ACK|1|03", "malformed", ""},
		{all, d, "ABORT_ACK|1|x|7", "malformed", ""},
		{all, d, "ABORT_ACK|1||x", "malformed", ""},
		{all, d, "ABORT_ACK|1|", "abort_ack", `{"prefill_rank":null,"generation":null,"form":"v1"}`},
		{all, d, "ABORT_ACK|1||", "abort_ack", `{"form":"v1"}`},
		{all, d, "ABORT_ACK|1||7", "abort_ack", `{"prefill_rank":null,"generation":7,"form":"v1"}`},
		{all, d, "ABORT_ACK|1|0|", "abort_ack", `{"prefill_rank":0,"generation":null,"form":"v2"}`},
		{all, d, "ABORT_ACK|1|0|0|x|y", "abort_ack", `{"prefill_rank":0,"generation":0,"form":"v3","ext":null}`},
		{all, d, "ABORT_ACK|1|3||" + ext, "abort_ack", `{"form":"v2","ext":` + extJSON + `}`},
		{all, d, "ABORT_ACK|1|3|7||" + ext, "abort_ack", `{"form":"v3","ext":` + extJSON + `}`},
		{all, d, "ABORT_ACK|1|3|" + ext, "malformed", ""},
		{all, d, "ABORT_ACK|1|" + ext, "malformed", ""},
		{all, d, "ABORT_ACK|1|x|7|" + ext, "malformed", ""},
		{all, d, "ABORT_ACK|1|3|7|PDXA", "abort_ack", `{"form":"v3","ext_ignored":"version"}`},
		{all, d, "ABORT_ACK", "malformed", ""},
		{all, d, "ABORT_ACK|", "malformed", ""},
		{all, d, "abort_ack|1|3|7", "foreign", ""},
		// Present zeros and false are said; proof 0 and unknown proofs are not.
		{all, d, "ABORT_ACK|1|3|7|" + ext + "38005800", "abort_ack", `{"ext":{"proof":null,"prefill_rank":0}}`},
		{all, d, "ABORT_ACK|1|3|7|" + ext + "38014000", "abort_ack", `{"ext":{"proof":"drained","drained":false}}`},
		{all, d, "ABORT_ACK|1|3|7|" + ext + "3804", "abort_ack", `{"ext":{"proof":null}}`},
		{all, d, "ABORT_ACK|1|3|7|" + ext + "4a00", "abort_ack",
			`{"ext":{"write_keys":[{"kind":"unspecified","index":0,"component":0,"provider":"","endpoint":"","key":""}]}}`},
		{all, d, "ABORT_ACK|1|3|7|" + ext + "4a020805", "abort_ack", `{"ext":{"write_keys":[{"kind":"unspecified"}]}}`},
		{all, d, "ABORT_ACK|1|3|7|" + ext + "4a020804", "abort_ack", `{"ext":{"write_keys":[{"kind":"staging"}]}}`},
	})
}

func TestStatusEdges(t *testing.T) {
	heads := map[string]string{"mooncake": "", "nixl": "KV_STATUS|", "mori": "MoriMsgGuard|"}
	for name, head := range heads {
		run(t, []edge{
			{name, d, head + "1|0|0", "status", `{"room":1,"status":0,"prefill_rank":0,"reason":null,"reason_hex":null}`},
			{name, d, head + "1|4|2147483647|", "status", `{"status":4,"prefill_rank":2147483647,"reason":null}`},
			{name, d, head + "1|5|0", "malformed", ""},
			{name, d, head + "1|-0|0", "malformed", ""},
			{name, d, head + "1|04|0", "malformed", ""},
			{name, d, head + "1||0", "malformed", ""},
			{name, d, head + "1|4|", "malformed", ""},
			{name, d, head + "1|4|2147483648", "malformed", ""},
			{name, d, head + "1|4", "malformed", ""},
			{name, d, head + "1|256|0", "malformed", ""},
			{name, d, head + "9223372036854775808|4|0", "malformed", ""},
			{name, d, head + "1|0|0|a\x00\n\"\\\u2028", "status", `{"reason":"a\u0000\n\"\\\u2028"}`},
			{name, d, head + "1|0|0|0xeda080", "status", `{"reason":null,"reason_hex":"eda080"}`},
			{name, d, head + "1|0|0|0xc080", "status", `{"reason":null,"reason_hex":"c080"}`},
			{name, d, head + "1|0|0|" + ext, "status", `{"ext":null,"ext_ignored":null}`},
			{name, d, head + "1|0|0|PDX2", "status", `{"reason":"PDX2","ext_ignored":null}`},
			{name, d, head + "1|0|0||" + ext, "status", `{"reason":null,"ext":` + extJSON + `}`},
			{name, d, head + "1|0|0|why|x|" + ext, "status", `{"reason":"why","ext":` + extJSON + `}`},
			{name, d, head + "1|0|0|0xff|" + ext, "status", `{"reason_hex":"ff","ext":` + extJSON + `}`},
			{name, d, head + "1|0|0|why|PDX0", "status", `{"reason":"why","ext_ignored":"version"}`},
		})
	}
	run(t, []edge{
		{"mooncake", d, "4242|4", "malformed", ""},
		{"mooncake", d, " |4|3", "foreign", ""},
		{"mooncake", d, "4-2|4|3", "malformed", ""},
		{"nixl", d, "KV_STATUS", "malformed", ""},
		{"mori", d, "MoriMsgGuard", "malformed", ""},
		{"mooncake,nixl", d, "MoriMsgGuard|1|4|3|", "foreign", ""},
		{"mooncake,mori", d, "KV_STATUS|1|4|3|", "foreign", ""},
	})
}

func TestStagingAndAuxEdges(t *testing.T) {
	const staging = "mooncake,nixl"
	run(t, []edge{
		{staging, p, "STAGING_RSP|1|0|0|0|0|s", "staging_rsp", `{"offset":0,"round":0,"end":0}`},
		{staging, p, "STAGING_RSP|1|0|9223372036854775807|9223372036854775807|9223372036854775807|s", "staging_rsp",
			`{"offset":9223372036854775807,"round":9223372036854775807,"end":9223372036854775807}`},
		{staging, p, "STAGING_RSP|1|0|0|0|9223372036854775808|s", "malformed", ""},
		{staging, p, "STAGING_RSP|1|0|-2|0|-1|s", "staging_rsp", `{"offset":-2,"round":0,"end":-1}`},
		{staging, p, "STAGING_RSP|1|0|-2|1|-1|s", "malformed", ""},
		{staging, p, "STAGING_RSP|1|0|-2|0|-2|s", "malformed", ""},
		{staging, p, "STAGING_RSP|1|0|-1|0|-1|s", "malformed", ""},
		{staging, p, "STAGING_RSP|1|0|-2|-0|-1|s", "malformed", ""},
		{staging, p, "STAGING_RSP|1|0|0|-1|5|s", "malformed", ""},
		{staging, p, "STAGING_RSP|1|0|6|0|5|s", "malformed", ""},
		{staging, p, "STAGING_RSP|1|0||0|5|s", "malformed", ""},
		{staging, p, "STAGING_RSP|1|0|0|0|5|", "malformed", ""},
		{staging, p, "STAGING_RSP|1|0|0|0|5|s|" + ext, "staging_rsp", `{"ext":null,"ext_ignored":null}`},
		{staging, d, "STAGING_REQ|1|0|0|s", "staging_req", `{"chunk_pages":0,"pp_rank":null}`},
		{staging, d, "STAGING_REQ|1|0|0|s|0", "staging_req", `{"pp_rank":0}`},
		{staging, d, "STAGING_REQ|1|0|0|s|-1", "malformed", ""},
		{staging, d, "STAGING_REQ|1|0|2147483648|s", "malformed", ""},
		{staging, d, "STAGING_REQ|1|0|0|a b", "malformed", ""},
		{staging, p, "WATERMARK|9223372036854775807|0|s|surplus", "watermark", `{"round":9223372036854775807,"tail":0,"room":null}`},
		{staging, p, "WATERMARK|-1|0|s", "malformed", ""},
		{staging, p, "WATERMARK|0||s", "malformed", ""},
		{staging, d, "CHUNK_READY|1|0|0|0|w|0", "chunk_ready", `{"writer_id":"w","prefill_rank":0}`},
		{staging, d, "CHUNK_READY|1|0|0|0||0", "malformed", ""},
		{staging, d, "CHUNK_READY|1|0|0|0|w|2147483648", "malformed", ""},
		{"mori", p, "WATERMARK|0|0|s", "foreign", ""},
		{"mooncake,mori", d, "AUX_DATA|1|0|0|0x00000000|", "aux_data", `{"length":0,"data":""}`},
		{"mooncake,mori", d, "AUX_DATA|1|0|0|0x00000001|0xff", "aux_data", `{"length":1,"data":"ff"}`},
		{"mooncake,mori", d, "AUX_DATA|1|0|0|0x00000001|", "malformed", ""},
		{"mooncake,mori", d, "AUX_DATA|1|0|0|0xffffffff|x", "malformed", ""},
		{"mooncake,mori", d, "AUX_DATA|1|0|0|0x0000000001|x", "malformed", ""},
		{"mooncake,mori", d, "AUX_DATA|1|0|0||", "malformed", ""},
		{"mooncake,mori", d, "AUX_DATA|1|0|0|0x00000000", "malformed", ""},
		{"nixl", d, "AUX_DATA|1|0|0|0x00000000|", "foreign", ""},
		{"mooncake", p, "BOOTSTRAP|1|::1|1", "bootstrap", `{"room":1,"ip":"::1","port":1}`},
		{"mooncake", p, "BOOTSTRAP|1||1", "malformed", ""},
		{"mooncake", p, "BOOTSTRAP|1|10.0.0.1|0", "malformed", ""},
		{"nixl,mori", p, "BOOTSTRAP|1|::1|1", "foreign", ""},
		{all, p, "(none)", "foreign", ""},
		{all, d, "", "foreign", ""},
		{all, p, "|ABORT|1", "foreign", ""},
	})
}

func TestNamesOfTheRegistry(t *testing.T) {
	if got := backends.Names(); !slices.Equal(got, []string{"mooncake", "mori", "nixl"}) {
		t.Errorf("registered are %q", got)
	}
}
