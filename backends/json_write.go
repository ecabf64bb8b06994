package backends

import (
	"encoding/hex"
	"strconv"
	"unicode/utf8"
)

// FieldsJSON returns the `fields` object that `pdnode wire decode` prints for
// m: integers exact, opaque bytes as lower-case hex, lists never null, absent
// values left out (conformance rules, sections 4 and 5).
func FieldsJSON(m Message) []byte {
	o := object{b: append(make([]byte, 0, 256), '{')}
	switch m := m.(type) {
	case *Registration:
		o.registration(m)
	case *Metadata:
		o.metadata(m)
	case *Abort:
		o.abort(m)
	case *AbortAck:
		o.uint("room", m.Room)
		optInt(&o, "prefill_rank", m.PrefillRank)
		o.optUint("generation", m.Generation)
		o.str("form", m.Form().String())
		o.ext(m.Ext, m.ExtIgnored)
	case *Status:
		o.uint("room", m.Room)
		o.uint("status", uint64(m.Status))
		o.int("prefill_rank", int64(m.PrefillRank))
		o.nonEmpty("reason", m.Reason)
		if m.ReasonBytes != nil {
			o.hex("reason_hex", m.ReasonBytes)
		}
		o.ext(m.Ext, m.ExtIgnored)
	case *StagingReq:
		o.uint("room", m.Room)
		o.int("chunk_idx", int64(m.ChunkIdx))
		o.int("chunk_pages", int64(m.ChunkPages))
		o.str("session_id", m.SessionID)
		optInt(&o, "pp_rank", m.PPRank)
	case *StagingRsp:
		o.uint("room", m.Room)
		o.int("chunk_idx", int64(m.ChunkIdx))
		o.int("offset", m.Offset)
		o.int("round", m.Round)
		o.int("end", m.End)
		o.str("session_id", m.SessionID)
	case *Watermark:
		o.uint("round", m.Round)
		o.uint("tail", m.Tail)
		o.str("session_id", m.SessionID)
	case *ChunkReady:
		o.uint("room", m.Room)
		o.int("chunk_idx", int64(m.ChunkIdx))
		o.int("page_start", int64(m.PageStart))
		o.int("num_pages", int64(m.NumPages))
		o.str("writer_id", m.WriterID)
		o.int("prefill_rank", int64(m.PrefillRank))
	case *AuxData:
		o.uint("room", m.Room)
		o.int("buffer_index", int64(m.BufferIndex))
		o.int("aux_index", int64(m.AuxIndex))
		o.uint("length", uint64(len(m.Data)))
		o.hex("data", m.Data)
	case *Bootstrap:
		o.uint("room", m.Room)
		o.endpoint(m.Peer)
	}
	return append(o.b, '}')
}

func (o *object) registration(m *Registration) {
	o.endpoint(m.Peer)
	o.nonEmpty("session_id", m.SessionID)
	o.nonEmpty("agent_name", m.AgentName)
	if m.AgentMetadata != nil {
		o.hex("agent_metadata", m.AgentMetadata)
	}
	if m.Engine != nil {
		o.str("engine_key", m.Engine.Key)
		o.key("engine")
		o.b = append(o.b, '{')
		o.str("key", m.Engine.Key)
		o.str("node_id", m.Engine.NodeID)
		o.str("hostname", m.Engine.Hostname)
		o.str("host", m.Engine.Host)
		o.uint("port", uint64(m.Engine.Port))
		o.uint("pid", m.Engine.PID)
		o.b = append(o.b, '}')
	}
	ints(o, "kv_data_ptrs", m.KVDataPtrs)
	ints(o, "aux_data_ptrs", m.AuxDataPtrs)
	intLists(o, "state_data_ptrs", m.StateDataPtrs)
	o.descs("kv_mem_descs", m.KVMemDescs)
	o.descs("aux_mem_descs", m.AuxMemDescs)
	if m.StateMemDescs != nil {
		o.key("state_mem_descs")
		o.b = append(o.b, '[')
		for i, list := range m.StateMemDescs {
			o.comma(i)
			o.descList(list)
		}
		o.b = append(o.b, ']')
	}
	optInt(o, "dst_tp_rank", m.DstTPRank)
	optInt(o, "gpu_id", m.GPUID)
	o.int("attn_tp_size", int64(m.AttnTPSize))
	optInt(o, "engine_rank", m.EngineRank)
	o.uint("kv_item_len", m.KVItemLen)
	intLists(o, "state_item_lens", m.StateItemLens)
	intLists(o, "state_dim_per_tensor", m.StateDimPerTensor)
	ints(o, "kv_layer_ids", m.KVLayerIDs)
	intLists(o, "state_layer_ids", m.StateLayerIDs)
	o.optUint("staging_base", m.StagingBase)
	o.optUint("staging_size", m.StagingSize)
	o.optUint("num_kv_slots", m.NumKVSlots)
	if m.KVMemoryKinds != nil {
		o.key("kv_memory_kinds")
		o.b = append(o.b, '[')
		for i, kind := range m.KVMemoryKinds {
			o.comma(i)
			o.text(kind)
		}
		o.b = append(o.b, ']')
	}
	optInt(o, "dcp_size", m.DCPSize)
	optInt(o, "dcp_rank", m.DCPRank)
	ints(o, "staging_slot_layer_ids", m.StagingSlotLayerIDs)
	ints(o, "kv_item_lens", m.KVItemLens)
	o.ext(m.Ext, m.ExtIgnored)
}

func (o *object) metadata(m *Metadata) {
	o.uint("room", m.Room)
	o.endpoint(m.Peer)
	o.nonEmpty("session_id", m.SessionID)
	o.nonEmpty("agent_name", m.AgentName)
	o.nonEmpty("engine_key", m.EngineKey)
	ints(o, "dst_page_indices", m.DstPageIndices)
	optInt(o, "aux_index", m.AuxIndex)
	intLists(o, "state_indices", m.StateIndices)
	o.int("required_dst_info_num", int64(m.RequiredDstInfoNum))
	optInt(o, "decode_prefix_len", m.DecodePrefixLen)
	ints(o, "device_page_indices", m.DevicePageIndices)
	o.bool("is_dummy", m.IsDummy)
	o.ext(m.Ext, m.ExtIgnored)
}

func (o *object) abort(m *Abort) {
	o.uint("room", m.Room)
	if !m.Peer.IsZero() {
		o.endpoint(m.Peer)
	}
	o.optUint("generation", m.Generation)
	if m.DroppedAddress || m.DroppedGeneration {
		o.key("dropped")
		o.b = append(o.b, '[')
		if m.DroppedAddress {
			o.text("address")
		}
		if m.DroppedGeneration {
			if m.DroppedAddress {
				o.b = append(o.b, ',')
			}
			o.text("generation")
		}
		o.b = append(o.b, ']')
	}
	o.ext(m.Ext, m.ExtIgnored)
}

func (o *object) ext(e *Extension, ignored string) {
	o.nonEmpty("ext_ignored", ignored)
	if e == nil {
		return
	}
	o.key("ext")
	o.b = append(o.b, '{')
	o.str("node", e.Node)
	o.str("boot", hex16(e.Boot))
	o.uint("incarnation", e.Incarnation)
	o.nonZero("hlc", e.HLC)
	o.nonZero("room_seq", e.RoomSeq)
	o.nonZero("cause_seq", e.CauseSeq)
	if name := e.Proof.String(); name != proofNames[0] {
		o.str("proof", name)
	}
	if e.Drained.Set {
		o.bool("drained", e.Drained.V)
	}
	if len(e.WriteKeys) > 0 {
		o.key("write_keys")
		o.b = append(o.b, '[')
		for i := range e.WriteKeys {
			k := &e.WriteKeys[i]
			o.comma(i)
			o.b = append(o.b, '{')
			o.str("kind", k.Kind.String())
			o.uint("index", uint64(k.Index))
			o.uint("component", uint64(k.Component))
			o.str("provider", k.Provider)
			o.str("endpoint", k.Endpoint)
			o.hex("key", k.Key)
			o.b = append(o.b, '}')
		}
		o.b = append(o.b, ']')
	}
	o.nonEmpty("reason", e.Reason)
	optInt(o, "prefill_rank", e.PrefillRank)
	o.nonZero("log_since", e.LogSince)
	if len(e.LogID) > 0 {
		o.hex("log_id", e.LogID)
	}
	if len(e.SeenLogID) > 0 {
		o.hex("seen_log_id", e.SeenLogID)
	}
	o.nonZero("seen_seq", e.SeenSeq)
	o.nonZero("published_boot", e.PublishedBoot)
	o.nonZero("seen_boot", e.SeenBoot)
	o.b = append(o.b, '}')
}

func (o *object) descs(key string, list []MemDesc) {
	if list != nil {
		o.key(key)
		o.descList(list)
	}
}

func (o *object) descList(list []MemDesc) {
	o.b = append(o.b, '[')
	for i := range list {
		m := &list[i]
		o.comma(i)
		o.b = append(o.b, '{')
		o.str("engine_key", m.EngineKey)
		o.uint("id", m.ID)
		o.int("device_id", int64(m.DeviceID))
		o.str("device_bus_id", m.DeviceBusID)
		o.uint("data", m.Data)
		o.uint("size", m.Size)
		o.uint("loc", uint64(m.Loc))
		o.b = append(o.b, '}')
	}
	o.b = append(o.b, ']')
}

// object appends the members of a JSON object, in order.
type object struct{ b []byte }

func (o *object) key(k string) {
	if o.b[len(o.b)-1] != '{' {
		o.b = append(o.b, ',')
	}
	o.text(k)
	o.b = append(o.b, ':')
}

func (o *object) comma(i int) {
	if i > 0 {
		o.b = append(o.b, ',')
	}
}

func (o *object) uint(k string, v uint64) {
	o.key(k)
	o.b = strconv.AppendUint(o.b, v, 10)
}

func (o *object) int(k string, v int64) {
	o.key(k)
	o.b = strconv.AppendInt(o.b, v, 10)
}

func (o *object) bool(k string, v bool) {
	o.key(k)
	o.b = strconv.AppendBool(o.b, v)
}

func (o *object) str(k, v string) {
	o.key(k)
	o.text(v)
}

func (o *object) hex(k string, v []byte) {
	o.key(k)
	o.b = append(o.b, '"')
	o.b = hex.AppendEncode(o.b, v)
	o.b = append(o.b, '"')
}

func (o *object) nonEmpty(k, v string) {
	if v != "" {
		o.str(k, v)
	}
}

func (o *object) nonZero(k string, v uint64) {
	if v != 0 {
		o.uint(k, v)
	}
}

func (o *object) optUint(k string, v Opt[uint64]) {
	if v.Set {
		o.uint(k, v.V)
	}
}

func (o *object) endpoint(e Endpoint) {
	o.str("ip", e.IP)
	o.uint("port", uint64(e.Port))
}

// text appends a JSON string. What is not UTF-8 becomes U+FFFD; decoded
// messages hold no such text.
func (o *object) text(s string) {
	o.b = append(o.b, '"')
	for _, c := range s {
		switch {
		case c == '"' || c == '\\':
			o.b = append(o.b, '\\', byte(c))
		case c < 0x20:
			const digits = "0123456789abcdef"
			o.b = append(o.b, '\\', 'u', '0', '0', digits[c>>4], digits[c&15])
		default:
			o.b = utf8.AppendRune(o.b, c)
		}
	}
	o.b = append(o.b, '"')
}

func optInt[T int32 | uint32](o *object, k string, v Opt[T]) {
	if v.Set {
		o.int(k, int64(v.V))
	}
}

// ints appends a list; nil is a list the dialect does not have.
func ints[T item](o *object, k string, list []T) {
	if list != nil {
		o.key(k)
		o.b = appendInts(o.b, list)
	}
}

func intLists[T item](o *object, k string, lists [][]T) {
	if lists == nil {
		return
	}
	o.key(k)
	o.b = append(o.b, '[')
	for i, list := range lists {
		o.comma(i)
		o.b = appendInts(o.b, list)
	}
	o.b = append(o.b, ']')
}

func appendInts[T item](b []byte, list []T) []byte {
	b = append(b, '[')
	for i, v := range list {
		if i > 0 {
			b = append(b, ',')
		}
		if v < 0 {
			b = strconv.AppendInt(b, int64(v), 10)
		} else {
			b = strconv.AppendUint(b, uint64(v), 10)
		}
	}
	return append(b, ']')
}

// hex16 is the text of a boot: 16 lower-case hex digits.
func hex16(v uint64) string {
	const digits = "0123456789abcdef"
	var b [16]byte
	for i := range b {
		b[i] = digits[v>>(60-4*i)&15]
	}
	return string(b[:])
}
