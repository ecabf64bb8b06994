package mori

import "github.com/pdlog/pdlog/backends"

// decodeRegistration reads the registration of wire.md 1.2; frames 12 and 13
// are optional.
func decodeRegistration(f backends.Frames) backends.Message {
	r := backends.NewReader(backends.KindRegister, f, 12)
	if bad := r.Bad(); bad != nil {
		return bad
	}
	m := &backends.Registration{
		Peer:              r.Endpoint(2),
		GPUID:             backends.Some(r.IntFrom(8, -1, "bad gpu_id")),
		AttnTPSize:        r.N31(9, "bad attn_tp_size"),
		EngineRank:        backends.Some(r.I31(10, "bad engine_rank")),
		KVItemLen:         r.U63(11, "bad kv_item_len"),
		StateItemLens:     r.U32Lists(12, "bad state_item_lens"),
		StateDimPerTensor: r.U32Lists(13, "bad state_dim_per_tensor"),
	}
	var ok bool
	if m.Engine, ok = parseEngine(r.Frame(4)); !ok {
		r.Fail(4, "bad engine description")
	}
	if m.KVMemDescs, ok = parseDescs(r.Frame(5)); !ok {
		r.Fail(5, "bad kv_mem_descs")
	}
	if m.AuxMemDescs, ok = parseDescs(r.Frame(6)); !ok {
		r.Fail(6, "bad aux_mem_descs")
	}
	if m.StateMemDescs, ok = parseDescLists(r.Frame(7)); !ok {
		r.Fail(7, "bad state_mem_descs")
	}
	m.Ext, m.ExtIgnored = r.Ext(registerExtPlace)
	return backends.Result(&r, m)
}

func encodeRegistration(m *backends.Registration) (backends.Frames, error) {
	w := backends.NewWriter(backends.KindRegister, registerExtPlace+1)
	w.Tag(guard)
	w.Tag(registered)
	w.Endpoint(m.Peer)
	writeDescription(&w, "engine", func(b []byte) ([]byte, bool) { return appendEngine(b, m.Engine) })
	writeDescription(&w, "kv_mem_descs", func(b []byte) ([]byte, bool) { return appendDescs(b, m.KVMemDescs, false) })
	writeDescription(&w, "aux_mem_descs", func(b []byte) ([]byte, bool) { return appendDescs(b, m.AuxMemDescs, false) })
	writeDescription(&w, "state_mem_descs", func(b []byte) ([]byte, bool) { return appendDescLists(b, m.StateMemDescs) })
	w.Need("gpu_id", m.GPUID, -1)
	w.N31("attn_tp_size", m.AttnTPSize)
	w.Need("engine_rank", m.EngineRank, 0)
	w.U63("kv_item_len", m.KVItemLen)
	w.U32Lists("state_item_lens", m.StateItemLens)
	w.U32Lists("state_dim_per_tensor", m.StateDimPerTensor)
	w.Ext(registerExtPlace, m.Ext)
	return w.Done()
}

// writeDescription writes one frame of msgpack; add reports whether every
// value fits its form.
func writeDescription(w *backends.Writer, key string, add func([]byte) ([]byte, bool)) {
	b, ok := add(nil)
	if !ok {
		w.Fail("%s: a value does not fit its form", key)
	}
	w.Bytes(b)
}
