package mooncake

import "github.com/pdlog/pdlog/backends"

// decodeRegistration reads the registration of wire.md 1.2; frames 10 and up
// are optional, as older peers do not send them.
func decodeRegistration(f backends.Frames) backends.Message {
	r := backends.NewReader(backends.KindRegister, f, 10)
	if bad := r.Bad(); bad != nil {
		return bad
	}
	m := &backends.Registration{
		Peer:                r.Endpoint(1),
		SessionID:           r.Session(3),
		KVDataPtrs:          r.U64s(4, "bad kv_data_ptrs"),
		AuxDataPtrs:         r.U64s(5, "bad aux_data_ptrs"),
		StateDataPtrs:       r.U64Lists(6, "bad state_data_ptrs"),
		DstTPRank:           backends.Some(r.I31(7, "bad dst_tp_rank")),
		AttnTPSize:          r.N31(8, "bad attn_tp_size"),
		KVItemLen:           r.U63(9, "bad kv_item_len"),
		StateItemLens:       r.U32Lists(10, "bad state_item_lens"),
		StateDimPerTensor:   r.U32Lists(11, "bad state_dim_per_tensor"),
		KVLayerIDs:          r.U32s(12, "bad kv_layer_ids"),
		StateLayerIDs:       r.U32Lists(13, "bad state_layer_ids"),
		StagingBase:         r.OptPointer(14, "bad staging_base"),
		StagingSize:         r.OptU63(15, "bad staging_size"),
		DCPSize:             backends.Some(r.DefN31(16, 1, "bad dcp_size")),
		DCPRank:             backends.Some(r.DefI31(17, 0, "bad dcp_rank")),
		StagingSlotLayerIDs: r.U64s(18, "bad staging_slot_layer_ids"),
		KVItemLens:          r.U64s(19, "bad kv_item_lens"),
	}
	if n := len(m.KVItemLens); n != 0 && n != len(m.KVDataPtrs) {
		r.Fail(19, "not as many kv_item_lens as kv_data_ptrs")
	}
	m.Ext, m.ExtIgnored = r.Ext(registerExtPlace)
	return backends.Result(&r, m)
}

func encodeRegistration(m *backends.Registration) (backends.Frames, error) {
	w := backends.NewWriter(backends.KindRegister, registerExtPlace+1)
	if n := len(m.KVItemLens); n != 0 && n != len(m.KVDataPtrs) {
		w.Fail("%d kv_item_lens for %d kv_data_ptrs", n, len(m.KVDataPtrs))
	}
	w.Tag(registered)
	w.Endpoint(m.Peer)
	w.Session(m.SessionID)
	w.U64s(m.KVDataPtrs)
	w.U64s(m.AuxDataPtrs)
	w.U64Lists("state_data_ptrs", m.StateDataPtrs)
	w.Need("dst_tp_rank", m.DstTPRank, 0)
	w.N31("attn_tp_size", m.AttnTPSize)
	w.U63("kv_item_len", m.KVItemLen)
	w.U32Lists("state_item_lens", m.StateItemLens)
	w.U32Lists("state_dim_per_tensor", m.StateDimPerTensor)
	w.U32s(m.KVLayerIDs)
	w.U32Lists("state_layer_ids", m.StateLayerIDs)
	w.OptPointer(m.StagingBase)
	w.OptU63("staging_size", m.StagingSize)
	w.N31("dcp_size", m.DCPSize.Or(1))
	w.I31("dcp_rank", m.DCPRank.Or(0))
	w.U64s(m.StagingSlotLayerIDs)
	w.U64s(m.KVItemLens)
	w.Ext(registerExtPlace, m.Ext)
	return w.Done()
}
