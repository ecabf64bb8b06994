package backends_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/pdlog/pdlog/backends"
	"github.com/pdlog/pdlog/backends/backendtest"
)

const extIn = `"ext":{"node":"d0","boot":"0000000000000001","incarnation":1`

// mcMeta, nxReg… are the fields of a good message, to be damaged by one more
// member: of two equal keys the last one counts.
const (
	mcMeta  = `{"room":1,"ip":"10.0.0.1","port":5000,"session_id":"h:1","dst_page_indices":[1],"aux_index":0,"required_dst_info_num":1`
	moMeta  = `{"room":1,"ip":"10.0.0.1","port":5000,"engine_key":"k","dst_page_indices":[1],"required_dst_info_num":1`
	mcRegIn = `{"ip":"10.0.0.1","port":5000,"session_id":"h:1","kv_data_ptrs":[1],"dst_tp_rank":0,"attn_tp_size":1,"kv_item_len":0`
	nxRegIn = `{"ip":"10.0.0.1","port":5000,"agent_name":"a","agent_metadata":"00","kv_data_ptrs":[1],"gpu_id":0,"attn_tp_size":1,"engine_rank":0,"kv_item_len":0`
	moRegIn = `{"ip":"10.0.0.1","port":5000,"engine":{"key":"k","port":0,"pid":0},"gpu_id":0,"attn_tp_size":1,"engine_rank":0,"kv_item_len":0`
	abortIn = `{"room":1,"ip":"10.0.0.1","port":5000`
)

func TestEncodeEdges(t *testing.T) {
	for _, c := range []struct {
		dialects, kind, fields string
		want                   string // frames as text, "refused", or "sent" for any
	}{
		{all, "abort", abortIn + `}`, "ABORT|1|10.0.0.1|5000"},
		{all, "abort", abortIn + `,"generation":null}`, "ABORT|1|10.0.0.1|5000"},
		{all, "abort", abortIn + `,"dropped":["address"],"unknown":1}`, "ABORT|1|10.0.0.1|5000"},
		{all, "abort", abortIn + `,"room":0,"generation":9223372036854775807}`, "ABORT|0|10.0.0.1|5000|9223372036854775807"},
		{all, "abort", abortIn + `,"ip":"::FFFF:1.2.3.4"}`, "ABORT|1|::FFFF:1.2.3.4|5000"},
		{all, "abort", abortIn + `,"ip":"host"}`, "refused"},
		{all, "abort", abortIn + `,"ip":"fe80::1%eth0"}`, "refused"},
		{all, "abort", abortIn + `,"ip":""}`, "refused"},
		{all, "abort", abortIn + `,"port":0}`, "refused"},
		{all, "abort", abortIn + `,"port":65536}`, "refused"},
		{all, "abort", abortIn + `,"port":-1}`, "refused"},
		{all, "abort", abortIn + `,"port":"5000"}`, "refused"},
		{all, "abort", abortIn + `,"room":1.0}`, "refused"},
		{all, "abort", abortIn + `,"room":1e3}`, "refused"},
		{all, "abort", abortIn + `,"room":-1}`, "refused"},
		{all, "abort", abortIn + `,"room":18446744073709551617}`, "refused"},
		{all, "abort", abortIn + `,"generation":9223372036854775808}`, "refused"},
		{all, "abort", `{"ip":"10.0.0.1","port":5000}`, "refused"},
		{all, "abort", abortIn + `,` + extIn + `}}`, "ABORT|1|10.0.0.1|5000||" + ext},
		{all, "abort", abortIn + `,"generation":0,` + extIn + `}}`, "ABORT|1|10.0.0.1|5000|0|" + ext},
		{all, "abort", abortIn + `,` + extIn + `,"boot":"0"}}`, "refused"},
		{all, "abort", abortIn + `,` + extIn + `,"boot":"0000000000000000"}}`, "refused"},
		{all, "abort", abortIn + `,` + extIn + `,"incarnation":0}}`, "refused"},
		{all, "abort", abortIn + `,` + extIn + `,"node":""}}`, "refused"},
		{all, "abort", abortIn + `,` + extIn + `,"proof":"maybe"}}`, "refused"},
		{all, "abort", abortIn + `,` + extIn + `,"prefill_rank":4294967296}}`, "refused"},
		{all, "abort", abortIn + `,` + extIn + `,"write_keys":[{"kind":"disk"}]}}`, "refused"},
		{all, "abort", abortIn + `,"ext":7}`, "refused"},

		{all, "abort_ack", `{"room":1}`, "ABORT_ACK|1"},
		{all, "abort_ack", `{"room":1,"generation":7}`, "ABORT_ACK|1"},
		{all, "abort_ack", `{"room":1,"prefill_rank":2147483647}`, "ABORT_ACK|1|2147483647"},
		{all, "abort_ack", `{"room":1,"prefill_rank":2147483648}`, "refused"},
		{all, "abort_ack", `{"room":1,"prefill_rank":3,` + extIn + `}}`, "ABORT_ACK|1|3||" + ext},
		{all, "abort_ack", `{"room":1,` + extIn + `}}`, "ABORT_ACK|1|||" + ext},
		{all, "abort_ack", `{"room":1,"prefill_rank":3,` + extIn + `,"proof":"cannot_tell"}}`, "ABORT_ACK|1|||" + ext + "38035803"},
		{all, "abort_ack", `{"room":1,"prefill_rank":-1,` + extIn + `,"proof":"cannot_tell"}}`, "refused"},

		{"mooncake", "status", `{"room":1,"status":0,"prefill_rank":0,"reason":"x"}`, "1|0|0"},
		{"mooncake", "status", `{"room":1,"status":0,"prefill_rank":0,"reason":"x",` + extIn + `}}`, "1|0|0|x|" + ext},
		{"nixl", "status", `{"room":1,"status":4,"prefill_rank":0,` + extIn + `}}`, "KV_STATUS|1|4|0||" + ext},
		{"mori", "status", `{"room":1,"status":4,"prefill_rank":0}`, "MoriMsgGuard|1|4|0|"},
		{all, "status", `{"room":1,"status":5,"prefill_rank":0}`, "refused"},
		{all, "status", `{"room":1,"status":256,"prefill_rank":0}`, "refused"},
		{all, "status", `{"room":1,"status":-1,"prefill_rank":0}`, "refused"},
		{all, "status", `{"room":1,"status":4}`, "refused"},
		{all, "status", `{"room":1,"prefill_rank":0}`, "refused"},

		{"mooncake", "metadata", mcMeta + `}`, "1|10.0.0.1|5000|h:1|0x01000000|0||1|0|"},
		{"mooncake", "metadata", mcMeta + `,"is_dummy":true,"device_page_indices":[2]}`, "1|10.0.0.1|5000|h:1||||1|0|0x02000000"},
		{"mooncake", "metadata", mcMeta + `,"is_dummy":true,"aux_index":null}`, "1|10.0.0.1|5000|h:1||||1|0|"},
		{"mooncake", "metadata", mcMeta + `,"dst_page_indices":[],"aux_index":null}`, "refused"},
		{"mooncake", "metadata", mcMeta + `,"aux_index":-1}`, "refused"},
		{"mooncake", "metadata", mcMeta + `,"dst_page_indices":[2147483648]}`, "refused"},
		{"mooncake", "metadata", mcMeta + `,"state_indices":[[-1]]}`, "refused"},
		{"mooncake", "metadata", mcMeta + `,"state_indices":[1]}`, "refused"},
		{"mooncake", "metadata", mcMeta + `,"required_dst_info_num":0}`, "refused"},
		{"mooncake", "metadata", mcMeta + `,"decode_prefix_len":-1}`, "refused"},
		{"mooncake", "metadata", mcMeta + `,"device_page_indices":[-1]}`, "refused"},
		{"mooncake", "metadata", mcMeta + `,"session_id":"h:0"}`, "refused"},
		{"mooncake", "metadata", mcMeta + `,"state_indices":[[]]}`, "1|10.0.0.1|5000|h:1|0x01000000|0|0x0100000000000000|1|0|"},
		{"nixl", "metadata", mcMeta + `,"agent_name":"a"}`, "NixlMsgGuard|1|10.0.0.1|5000|a|0x01000000|0|1||0|0"},
		{"nixl", "metadata", mcMeta + `}`, "refused"}, // a session id is no agent name
		{"nixl", "metadata", mcMeta + `,"agent_name":"a b"}`, "refused"},
		{"mori", "metadata", moMeta + `}`, "MoriMsgGuard|1|10.0.0.1|5000|k|0x01000000|||1|"},
		{"mori", "metadata", moMeta + `,"aux_index":-1}`, "refused"},
		{"mori", "metadata", moMeta + `,"decode_prefix_len":-1}`, "refused"},
		{"mori", "metadata", moMeta + `,"is_dummy":true,"aux_index":5,"state_indices":[[1]]}`, "MoriMsgGuard|1|10.0.0.1|5000|k||||1|"},

		{"mooncake", "register", mcRegIn + `}`, "None|10.0.0.1|5000|h:1|0x0100000000000000|||0|1|0|||||||1|0||"},
		{"mooncake", "register", mcRegIn + `,"staging_base":0,"staging_size":0}`, "None|10.0.0.1|5000|h:1|0x0100000000000000|||0|1|0|||||0x0000000000000000|0|1|0||"},
		{"mooncake", "register", mcRegIn + `,"kv_item_lens":[18446744073709551615]}`, "None|10.0.0.1|5000|h:1|0x0100000000000000|||0|1|0|||||||1|0||0xffffffffffffffff"},
		{"mooncake", "register", mcRegIn + `,` + extIn + `}}`, "None|10.0.0.1|5000|h:1|0x0100000000000000|||0|1|0|||||||1|0|||" + ext},
		{"mooncake", "register", mcRegIn + `,"kv_item_lens":[1,2]}`, "refused"},
		{"mooncake", "register", mcRegIn + `,"dst_tp_rank":null}`, "refused"},
		{"mooncake", "register", mcRegIn + `,"attn_tp_size":0}`, "refused"},
		{"mooncake", "register", mcRegIn + `,"kv_item_len":null}`, "refused"},
		{"mooncake", "register", mcRegIn + `,"kv_item_len":9223372036854775808}`, "refused"},
		{"mooncake", "register", mcRegIn + `,"dcp_size":0}`, "refused"},
		{"mooncake", "register", mcRegIn + `,"dcp_rank":-1}`, "refused"},
		{"mooncake", "register", mcRegIn + `,"kv_layer_ids":[4294967296]}`, "refused"},
		{"mooncake", "register", mcRegIn + `,"kv_layer_ids":[-1]}`, "refused"},
		{"mooncake", "register", mcRegIn + `,"kv_data_ptrs":[18446744073709551616]}`, "refused"},
		{"mooncake", "register", mcRegIn + `,"state_dim_per_tensor":[[4294967296]]}`, "refused"},
		{"mooncake", "register", mcRegIn + `,"staging_size":9223372036854775808}`, "refused"},
		{"nixl", "register", nxRegIn + `}`, "NixlMsgGuard|None|10.0.0.1|5000|a|0x00|0x0100000000000000|||0|1|0|0||||||||||1|0"},
		{"nixl", "register", nxRegIn + `,"gpu_id":-1,"kv_memory_kinds":["DRAM"]}`, "NixlMsgGuard|None|10.0.0.1|5000|a|0x00|0x0100000000000000|||-1|1|0|0||||||DRAM||||1|0"},
		{"nixl", "register", nxRegIn + `,"kv_memory_kinds":["vram"]}`, "refused"},
		{"nixl", "register", nxRegIn + `,"kv_memory_kinds":["VRAM","VRAM"]}`, "refused"},
		{"nixl", "register", nxRegIn + `,"agent_metadata":""}`, "refused"},
		{"nixl", "register", nxRegIn + `,"agent_metadata":"0"}`, "refused"},
		{"nixl", "register", nxRegIn + `,"gpu_id":-2}`, "refused"},
		{"nixl", "register", nxRegIn + `,"engine_rank":null}`, "refused"},
		{"nixl", "register", nxRegIn + `,"num_kv_slots":9223372036854775808}`, "refused"},
		{"mori", "register", moRegIn + `}`, "MoriMsgGuard|None|10.0.0.1|5000|0x96a16ba0a0a00000||||0|1|0|0||"},
		{"mori", "register", moRegIn + `,"state_mem_descs":[[]]}`, "MoriMsgGuard|None|10.0.0.1|5000|0x96a16ba0a0a00000|||0x9190|0|1|0|0||"},
		{"mori", "register", moRegIn + `,"engine":{"key":"k","port":65535,"pid":9223372036854775807}}`,
			"MoriMsgGuard|None|10.0.0.1|5000|0x96a16ba0a0a0cdffffcf7fffffffffffffff||||0|1|0|0||"},
		{"mori", "register", moRegIn + `,"engine":{"key":"k k","port":0,"pid":0}}`, "refused"},
		{"mori", "register", moRegIn + `,"engine":{"key":"k","port":65536,"pid":0}}`, "refused"},
		{"mori", "register", moRegIn + `,"engine":{"key":"k","port":0,"pid":9223372036854775808}}`, "refused"},
		{"mori", "register", moRegIn + `,"engine":null}`, "refused"},
		{"mori", "register", moRegIn + `,"kv_mem_descs":[{"id":0,"device_id":-2,"data":0,"size":0,"loc":0}]}`, "refused"},
		{"mori", "register", moRegIn + `,"kv_mem_descs":[{"id":9223372036854775808,"device_id":0,"data":0,"size":0,"loc":0}]}`, "refused"},
		{"mori", "register", moRegIn + `,"kv_mem_descs":[{"id":0,"device_id":0,"data":0,"size":0,"loc":256}]}`, "refused"},
		{"mori", "register", moRegIn + `,"kv_mem_descs":[{"id":0,"device_id":0,"data":18446744073709551615,"size":0,"loc":255}]}`, "sent"},

		{"mooncake,nixl", "staging_rsp", `{"room":1,"chunk_idx":0,"offset":5,"round":0,"end":4,"session_id":"s"}`, "refused"},
		{"mooncake,nixl", "staging_rsp", `{"room":1,"chunk_idx":0,"offset":-2,"round":0,"end":-1,"session_id":"s"}`, "STAGING_RSP|1|0|-2|0|-1|s"},
		{"mooncake,nixl", "staging_rsp", `{"room":1,"chunk_idx":0,"offset":-1,"round":0,"end":-1,"session_id":"s"}`, "refused"},
		{"mooncake,nixl", "staging_req", `{"room":1,"chunk_idx":0,"chunk_pages":-1,"session_id":"s"}`, "refused"},
		{"mooncake,nixl", "staging_req", `{"room":1,"chunk_idx":0,"chunk_pages":1,"session_id":""}`, "refused"},
		{"mooncake,nixl", "watermark", `{"round":9223372036854775808,"tail":0,"session_id":"s"}`, "refused"},
		{"mooncake,nixl", "chunk_ready", `{"room":1,"chunk_idx":0,"page_start":0,"num_pages":0,"writer_id":"w w","prefill_rank":0}`, "refused"},
		{"mori", "chunk_ready", `{"room":1,"chunk_idx":0,"page_start":0,"num_pages":0,"writer_id":"w","prefill_rank":0}`, "refused"},
		{"mooncake,mori", "aux_data", `{"room":1,"buffer_index":0,"aux_index":0,"data":"","length":0}`, "AUX_DATA|1|0|0|0x00000000|"},
		{"mooncake,mori", "aux_data", `{"room":1,"buffer_index":0,"aux_index":-1,"data":""}`, "refused"},
		{"nixl,mori", "bootstrap", `{"room":1,"ip":"::1","port":1}`, "refused"},
		{all, "foreign", `{}`, "refused"},
		{all, "malformed", `{}`, "refused"},
		{all, "nonsense", `{}`, "refused"},
		{all, "abort", `null`, "refused"},
		{all, "abort", `[]`, "refused"},
	} {
		for _, name := range strings.Split(c.dialects, ",") {
			t.Run(name+" "+c.kind+" "+c.fields, func(t *testing.T) {
				dialect, err := backends.Lookup(name)
				if err != nil {
					t.Fatal(err)
				}
				got, err := backendtest.EncodeFields(dialect, c.kind, []byte(c.fields))
				switch {
				case c.want == "refused":
					if err == nil || got != nil {
						t.Errorf("sent %q", got)
					}
				case err != nil:
					t.Error(err)
				case c.want != "sent":
					backendtest.CheckFrames(t, dialect, c.kind, got, frames(t, c.want), []byte(c.fields))
				}
			})
		}
	}
}

func TestEncodeNothing(t *testing.T) {
	for _, name := range backends.Names() {
		dialect, err := backends.Lookup(name)
		if err != nil {
			t.Fatal(err)
		}
		if f, err := dialect.Encode(nil); err == nil || f != nil {
			t.Errorf("%s sent %q for no message", name, f)
		}
		if _, err := dialect.Encode(&backends.Malformed{}); !errors.Is(err, backends.ErrKind) {
			t.Errorf("%s: error %v, want ErrKind", name, err)
		}
	}
}
