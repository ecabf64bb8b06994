package nixl

import (
	"strings"

	"github.com/pdlog/pdlog/backends"
)

// Kinds of memory a KV pointer can lead to.
const (
	vram = "VRAM"
	dram = "DRAM"
)

// decodeRegistration reads the registration of wire.md 1.2; frames 13 and up
// are optional, as older peers do not send them.
func decodeRegistration(f backends.Frames) backends.Message {
	r := backends.NewReader(backends.KindRegister, f, 13)
	if bad := r.Bad(); bad != nil {
		return bad
	}
	m := &backends.Registration{
		Peer:              r.Endpoint(2),
		AgentName:         r.Name(4, "bad agent_name"),
		AgentMetadata:     r.Bytes(5),
		KVDataPtrs:        r.U64s(6, "bad kv_data_ptrs"),
		AuxDataPtrs:       r.U64s(7, "bad aux_data_ptrs"),
		StateDataPtrs:     r.U64Lists(8, "bad state_data_ptrs"),
		GPUID:             backends.Some(r.IntFrom(9, -1, "bad gpu_id")),
		AttnTPSize:        r.N31(10, "bad attn_tp_size"),
		EngineRank:        backends.Some(r.I31(11, "bad engine_rank")),
		KVItemLen:         r.U63(12, "bad kv_item_len"),
		StateItemLens:     r.U32Lists(13, "bad state_item_lens"),
		StateDimPerTensor: r.U32Lists(14, "bad state_dim_per_tensor"),
		StagingBase:       r.OptPointer(15, "bad staging_base"),
		StagingSize:       r.OptU63(16, "bad staging_size"),
		NumKVSlots:        r.OptU63(17, "bad num_kv_slots"),
		KVMemoryKinds:     r.OptWords(18, "bad kv_memory_kinds", vram, dram),
		KVItemLens:        r.U64s(19, "bad kv_item_lens"),
		StateLayerIDs:     r.U32Lists(20, "bad state_layer_ids"),
		KVLayerIDs:        r.U32s(21, "bad kv_layer_ids"),
		DCPSize:           backends.Some(r.DefN31(22, 1, "bad dcp_size")),
		DCPRank:           backends.Some(r.DefI31(23, 0, "bad dcp_rank")),
	}
	if len(m.AgentMetadata) == 0 {
		r.Fail(5, "no agent_metadata")
	}
	if n := len(m.KVMemoryKinds); n != 0 && n != len(m.KVDataPtrs) {
		r.Fail(18, "not as many kv_memory_kinds as kv_data_ptrs")
	}
	if n := len(m.KVItemLens); n != 0 && n != len(m.KVDataPtrs) {
		r.Fail(19, "not as many kv_item_lens as kv_data_ptrs")
	}
	m.Ext, m.ExtIgnored = r.Ext(registerExtPlace)
	return backends.Result(&r, m)
}

func encodeRegistration(m *backends.Registration) (backends.Frames, error) {
	w := backends.NewWriter(backends.KindRegister, registerExtPlace+1)
	if len(m.AgentMetadata) == 0 {
		w.Fail("no agent_metadata")
	}
	if n := len(m.KVMemoryKinds); n != 0 && n != len(m.KVDataPtrs) {
		w.Fail("%d kv_memory_kinds for %d kv_data_ptrs", n, len(m.KVDataPtrs))
	}
	for _, kind := range m.KVMemoryKinds {
		if kind != vram && kind != dram {
			w.Fail("kv_memory_kinds: %q is neither %s nor %s", kind, vram, dram)
		}
	}
	if n := len(m.KVItemLens); n != 0 && n != len(m.KVDataPtrs) {
		w.Fail("%d kv_item_lens for %d kv_data_ptrs", n, len(m.KVDataPtrs))
	}
	w.Tag(guard)
	w.Tag(registered)
	w.Endpoint(m.Peer)
	w.Name("agent_name", m.AgentName)
	w.Bytes(m.AgentMetadata)
	w.U64s(m.KVDataPtrs)
	w.U64s(m.AuxDataPtrs)
	w.U64Lists("state_data_ptrs", m.StateDataPtrs)
	w.Need("gpu_id", m.GPUID, -1)
	w.N31("attn_tp_size", m.AttnTPSize)
	w.Need("engine_rank", m.EngineRank, 0)
	w.U63("kv_item_len", m.KVItemLen)
	w.U32Lists("state_item_lens", m.StateItemLens)
	w.U32Lists("state_dim_per_tensor", m.StateDimPerTensor)
	w.OptPointer(m.StagingBase)
	w.OptU63("staging_size", m.StagingSize)
	w.OptU63("num_kv_slots", m.NumKVSlots)
	w.Tag(strings.Join(m.KVMemoryKinds, ","))
	w.U64s(m.KVItemLens)
	w.U32Lists("state_layer_ids", m.StateLayerIDs)
	w.U32s(m.KVLayerIDs)
	w.N31("dcp_size", m.DCPSize.Or(1))
	w.I31("dcp_rank", m.DCPRank.Or(0))
	w.Ext(registerExtPlace, m.Ext)
	return w.Done()
}
