package backends_test

import "testing"

// A registration of each dialect, up to and behind the frames under test.
const (
	mcReg = "None|10.0.0.1|5000|h:1||||"           // 7 of 10 required
	nxReg = "NixlMsgGuard|None|10.0.0.1|5000|a|m|" // 6 and the empty kv_data_ptrs
	moReg = "MoriMsgGuard|None|10.0.0.1|5000|"
	// EngineDesc k, "", "", "", port 0, pid 0.
	moEngine = "0x96a16ba0a0a00000"
)

func TestRegistrationEdges(t *testing.T) {
	run(t, []edge{
		{"mooncake", p, mcReg + "0|1|0", "register", `{"kv_data_ptrs":[],"state_data_ptrs":[],"dst_tp_rank":0,"attn_tp_size":1,
			"kv_item_len":0,"state_item_lens":[],"state_dim_per_tensor":[],"kv_layer_ids":[],"state_layer_ids":[],"staging_base":null,
			"staging_size":null,"dcp_size":1,"dcp_rank":0,"staging_slot_layer_ids":[],"kv_item_lens":[],"gpu_id":null,
			"engine_rank":null,"kv_mem_descs":null,"agent_name":null,"engine":null,"ext":null}`},
		{"mooncake", p, mcReg + "2147483647|2147483647|9223372036854775807", "register", `{"kv_item_len":9223372036854775807}`},
		{"mooncake", p, mcReg + "0|1|9223372036854775808", "malformed", ""},
		{"mooncake", p, mcReg + "0|0|0", "malformed", ""},
		{"mooncake", p, mcReg + "|1|0", "malformed", ""},
		{"mooncake", p, mcReg + "-1|1|0", "malformed", ""},
		{"mooncake", p, mcReg + "0|1|0|||||||0|0", "malformed", ""}, // dcp_size 0
		{"mooncake", p, mcReg + "0|1|0||||||0|2147483648", "malformed", ""},
		{"mooncake", p, mcReg + "0|1|0||||||0|1|0", "register", `{"staging_size":0,"dcp_size":1,"dcp_rank":0}`},
		{"mooncake", p, mcReg + "0|1|0|||||0xffffffffffffffff", "register", `{"staging_base":18446744073709551615}`},
		{"mooncake", p, mcReg + "0|1|0|||||0xffffffffffffff", "malformed", ""},
		{"mooncake", p, mcReg + "0|1|0||||||||||0x0000000000000000", "malformed", ""}, // a length without pointers
		{"mooncake", p, mcReg + "0|1|0|||||||||||" + ext, "register", `{"ext":` + extJSON + `}`},
		{"mooncake", p, mcReg + "0|1|0||||||||||" + ext, "malformed", ""}, // at place 19 it is a bad list
		{"mooncake", p, mcReg + "0|1|0|||||||||||||" + ext, "register", `{"ext":` + extJSON + `}`},
		{"mooncake", p, mcReg + "0|1|0|" + ext, "malformed", ""},

		{"nixl", p, nxReg + "|||-1|1|0|0", "register", `{"agent_metadata":"6d","gpu_id":-1,"kv_memory_kinds":[],"num_kv_slots":null,
			"dcp_size":1,"dcp_rank":0,"session_id":null,"dst_tp_rank":null,"staging_slot_layer_ids":null,"kv_mem_descs":null}`},
		{"nixl", p, nxReg + "|||-2|1|0|0", "malformed", ""},
		{"nixl", p, nxReg + "|||-0|1|0|0", "malformed", ""},
		{"nixl", p, nxReg + "|||2147483648|1|0|0", "malformed", ""},
		{"nixl", p, nxReg + "|||0|1|0|0||||||VRAM", "malformed", ""},
		{"nixl", p, nxReg + "0x0000000000000000|||0|1|0|0||||||VRAM", "register", `{"kv_memory_kinds":["VRAM"]}`},
		{"nixl", p, nxReg + "0x0000000000000000|||0|1|0|0||||||VRAM,", "malformed", ""},
		{"nixl", p, nxReg + "0x0000000000000000|||0|1|0|0||||||,", "malformed", ""},
		{"nixl", p, nxReg + "0x0000000000000000|||0|1|0|0||||||VRAM\x00", "malformed", ""},
		{"nixl", p, nxReg + "|||0|1|0|0||||||||||||" + ext, "register", `{"ext":` + extJSON + `}`},
		{"nixl", p, nxReg + "|||0|1|0|0|||||||||||" + ext, "malformed", ""},
		{"nixl", p, "NixlMsgGuard|None\x00|10.0.0.1|5000|a||1|1|1", "malformed", ""},
		{"nixl", p, "NixlMsgGuard", "malformed", ""},
		{"nixl", p, "NixlMsgGuard|ABORT|10.0.0.1|5000", "malformed", ""},

		{"mori", p, moReg + moEngine + "||||0|1|0|0", "register", `{"engine_key":"k","engine":{"key":"k","node_id":"","port":0,"pid":0},
			"kv_mem_descs":[],"aux_mem_descs":[],"state_mem_descs":[],"state_item_lens":[],"kv_data_ptrs":null,"dcp_size":null,
			"kv_layer_ids":null,"kv_item_lens":null,"staging_base":null}`},
		{"mori", p, moReg + moEngine + "|0x90|0x90|0x90|-1|1|0|0", "register", `{"kv_mem_descs":[],"state_mem_descs":[]}`},
		{"mori", p, moReg + moEngine + "|0xdc0000|0xdd00000000|0x9190|0|1|0|0", "register", `{"aux_mem_descs":[],"state_mem_descs":[[]]}`},
		{"mori", p, moReg + moEngine + "|0x9000|||0|1|0|0", "malformed", ""},
		{"mori", p, moReg + moEngine + "|0xdc00|||0|1|0|0", "malformed", ""},
		{"mori", p, moReg + moEngine + "|0x80|||0|1|0|0", "malformed", ""},
		{"mori", p, moReg + "0xddffffffffa16ba0a0a00000||||0|1|0|0", "register", `{"engine_key":"k"}`}, // the rest is not looked at
		{"mori", p, moReg + "0xdc0006d9016bda0000db00000000a0cd0000cf0000000000000000||||0|1|0|0", "register", `{"engine_key":"k"}`},
		{"mori", p, moReg + "0x96a16ba0a0a0d300000000000001ffd27fffffff||||0|1|0|0", "register", `{"engine":{"port":511,"pid":2147483647}}`},
		{"mori", p, moReg + "0x96a16ba0a0a0cdffffcf7fffffffffffffff||||0|1|0|0", "register", `{"engine":{"port":65535,"pid":9223372036854775807}}`},
		{"mori", p, moReg + "0x96a16ba0a0a000cf8000000000000000||||0|1|0|0", "malformed", ""}, // pid 2^63
		{"mori", p, moReg + "0x96a16ba0a0a0ce0001000000||||0|1|0|0", "malformed", ""},         // port 65536
		{"mori", p, moReg + "0x96a16ba0a0a0ff00||||0|1|0|0", "malformed", ""},                 // port -1
		{"mori", p, moReg + "0x96a16ba0a0a000d0ff||||0|1|0|0", "malformed", ""},               // pid -1
		{"mori", p, moReg + "0x96a16ba0a0a000c0||||0|1|0|0", "malformed", ""},                 // pid nil
		{"mori", p, moReg + "0x96a16ba0a0a000c3||||0|1|0|0", "malformed", ""},                 // pid true
		{"mori", p, moReg + "0x96a16bc400a0a00000||||0|1|0|0", "malformed", ""},               // node_id as bin
		{"mori", p, moReg + "0x96a16bc0a0a00000||||0|1|0|0", "malformed", ""},                 // node_id nil
		{"mori", p, moReg + "0x96a16ba0a0a000||||0|1|0|0", "malformed", ""},                   // pid missing
		{"mori", p, moReg + "0x95a16ba0a0a000||||0|1|0|0", "malformed", ""},
		// One descriptor: array of 7, key "", id 0, device -1 or other, bus "", data, size, loc.
		{"mori", p, moReg + moEngine + "|0x91c40897a000ffa0000000||||0|1|0|0", "malformed", ""}, // one frame too many, empty gpu_id
		{"mori", p, moReg + moEngine + "|0x91c40897a000ffa0000000|||0|1|0|0", "register", `{"kv_mem_descs":[{"engine_key":"","id":0,
			"device_id":-1,"device_bus_id":"","data":0,"size":0,"loc":0}]}`},
		{"mori", p, moReg + moEngine + "|0x91c5000897a000ffa0000000|||0|1|0|0", "register", `{"kv_mem_descs":[{"loc":0}]}`},
		{"mori", p, moReg + moEngine + "|0x91c60000000897a000ffa0000000|||0|1|0|0", "register", `{"kv_mem_descs":[{"loc":0}]}`},
		{"mori", p, moReg + moEngine + "|0x91c40997a000ffa00000ccff|||0|1|0|0", "register", `{"kv_mem_descs":[{"loc":255}]}`},
		{"mori", p, moReg + moEngine + "|0x91c40a97a000ffa00000cd0100|||0|1|0|0", "malformed", ""}, // loc 256
		{"mori", p, moReg + moEngine + "|0x91c40c97a000d27fffffffa0000000|||0|1|0|0", "register", `{"kv_mem_descs":[{"device_id":2147483647}]}`},
		{"mori", p, moReg + moEngine + "|0x91c40c97a000ce80000000a0000000|||0|1|0|0", "malformed", ""}, // device 2^31
		{"mori", p, moReg + moEngine + "|0x91c41097a000d380000000000000ffa0000000|||0|1|0|0", "malformed", ""},
		{"mori", p, moReg + moEngine + "|0x91c40897a000ffa000ff00|||0|1|0|0", "malformed", ""}, // size -1
		{"mori", p, moReg + moEngine + "|0x91c41097a0cf8000000000000000ffa0000000|||0|1|0|0", "malformed", ""},
		{"mori", p, moReg + moEngine + "|0x91c40997a1ff00ffa0000000|||0|1|0|0", "malformed", ""}, // key not UTF-8
		{"mori", p, moReg + moEngine + "|0x91c40898a000ffa0000000|||0|1|0|0", "register", `{"kv_mem_descs":[{"loc":0}]}`},
		{"mori", p, moReg + moEngine + "|0x91c40997a000ffa0000000c1|||0|1|0|0", "register", `{"kv_mem_descs":[{"loc":0}]}`},
		{"mori", p, moReg + moEngine + "|0x91c40796a000ffa00000|||0|1|0|0", "malformed", ""},
		{"mori", p, moReg + moEngine + "|0x91c400|||0|1|0|0", "malformed", ""},
		{"mori", p, moReg + moEngine + "|0x92c40897a000ffa0000000|||0|1|0|0", "malformed", ""},
		{"mori", p, moReg + moEngine + "|||0x91c40897a000ffa0000000|0|1|0|0", "malformed", ""}, // state: no inner array
		{"mori", p, moReg + moEngine + "|||0x929190|0|1|0|0", "malformed", ""},
		{"mori", p, moReg + moEngine + "|||0x9290|0|1|0|0", "malformed", ""},
		{"mori", p, moReg + moEngine + "|||0x9291c40897a000ffa000000090|0|1|0|0", "register", `{"state_mem_descs":[[{"loc":0}],[]]}`},
		{"mori", p, moReg + moEngine + "||||0|1|0|0|||" + ext, "register", `{"ext":` + extJSON + `}`},
		{"mori", p, moReg + moEngine + "||||0|1|0|0||" + ext, "malformed", ""},
		{"mori", p, moReg + moEngine + "||||0|1|0|0|||x||" + ext, "register", `{"ext":` + extJSON + `}`},
	})
}

func TestMetadataEdges(t *testing.T) {
	const (
		mc = "1|10.0.0.1|5000|h:1|"
		nx = "NixlMsgGuard|1|10.0.0.1|5000|a|"
		mo = "MoriMsgGuard|1|10.0.0.1|5000|k|"
		p1 = "0x01000000"
	)
	run(t, []edge{
		{"mooncake", p, mc + "|||1", "metadata", `{"is_dummy":true,"dst_page_indices":[],"aux_index":null,"state_indices":[],
			"decode_prefix_len":null,"device_page_indices":[],"agent_name":null,"engine_key":null}`},
		{"mooncake", p, mc + "|||1|5", "metadata", `{"is_dummy":true,"decode_prefix_len":5}`},
		{"mooncake", p, mc + "|0||1", "metadata", `{"is_dummy":false,"aux_index":0}`},
		{"mooncake", p, mc + p1 + "|||1", "malformed", ""},
		{"mooncake", p, mc + p1 + "|2147483647||2147483647|2147483647", "metadata", `{"aux_index":2147483647,"decode_prefix_len":2147483647}`},
		{"mooncake", p, mc + p1 + "|2147483648||1", "malformed", ""},
		{"mooncake", p, mc + p1 + "|-1||1", "malformed", ""},
		{"mooncake", p, mc + p1 + "|0||0", "malformed", ""},
		{"mooncake", p, mc + p1 + "|0||1|-1", "malformed", ""},
		{"mooncake", p, mc + p1 + "|0||1||" + p1, "metadata", `{"device_page_indices":[1],"decode_prefix_len":null}`},
		{"mooncake", p, mc + p1 + "|0||1||0xffffffff", "malformed", ""},
		{"mooncake", p, mc + p1 + "|0||1||0x00", "malformed", ""},
		{"mooncake", p, mc + p1 + "|0||1|||" + ext, "metadata", `{"ext":` + extJSON + `}`},
		{"mooncake", p, mc + p1 + "|0||1||||" + ext, "metadata", `{"ext":` + extJSON + `}`},
		{"mooncake", p, mc + "0x000000|0||1", "malformed", ""},
		{"mooncake", p, "1", "malformed", ""},
		{"mooncake", p, "-0|10.0.0.1|5000|h:1||||1", "malformed", ""},
		{"mooncake", p, "1_0|10.0.0.1|5000|h:1||||1", "malformed", ""},

		{"nixl", p, nx + "|0|1", "metadata", `{"is_dummy":true,"aux_index":0,"device_page_indices":null,"session_id":null}`},
		{"nixl", p, nx + "|0|1||1", "metadata", `{"is_dummy":false,"decode_prefix_len":1}`},
		{"nixl", p, nx + "|0|1||0", "metadata", `{"is_dummy":true,"decode_prefix_len":0}`},
		{"nixl", p, nx + "|0|1||1|", "metadata", `{"is_dummy":false}`},
		{"nixl", p, nx + "|0|1||1|1", "metadata", `{"is_dummy":true}`},
		{"nixl", p, nx + p1 + "|0|1||1|1", "metadata", `{"is_dummy":true,"dst_page_indices":[1]}`},
		{"nixl", p, nx + p1 + "|0|1|||", "metadata", `{"is_dummy":false}`},
		{"nixl", p, nx + "|0|1|||-0", "malformed", ""},
		{"nixl", p, nx + "|0|1|||11", "malformed", ""},
		{"nixl", p, nx + "||1", "malformed", ""},
		{"nixl", p, nx + "|0|1||||" + ext, "metadata", `{"is_dummy":true,"ext":` + extJSON + `}`},
		{"nixl", p, nx + "|0|1|||" + ext, "malformed", ""},

		{"mori", p, mo + "|", "metadata", `{"is_dummy":true,"required_dst_info_num":1,"state_indices":[],"device_page_indices":null}`},
		{"mori", p, mo + "", "malformed", ""},
		{"mori", p, mo + "|-1", "metadata", `{"is_dummy":true,"aux_index":null}`},
		{"mori", p, mo + "|-1|||1", "metadata", `{"is_dummy":false,"aux_index":null,"decode_prefix_len":1}`},
		{"mori", p, mo + "|0", "metadata", `{"is_dummy":false,"aux_index":0}`},
		{"mori", p, mo + p1 + "|", "metadata", `{"is_dummy":false,"aux_index":null}`},
		{"mori", p, mo + "|-2", "malformed", ""},
		{"mori", p, mo + "|-0", "malformed", ""},
		{"mori", p, mo + "|-01", "malformed", ""},
		{"mori", p, mo + "||||0", "metadata", `{"is_dummy":true,"decode_prefix_len":0}`},
		{"mori", p, mo + "|||||" + ext, "metadata", `{"is_dummy":true,"ext":` + extJSON + `}`},
		{"mori", p, mo + "||||" + ext, "malformed", ""},
		{"mori", p, mo + "|||0", "malformed", ""},
	})
}
