package backends

import (
	"encoding/hex"
	"encoding/json"
	"fmt"
	"strconv"
)

// MessageFromFields is the inverse of FieldsJSON for a message to be sent:
// fields is a JSON object with its names (conformance rules, section 6). Keys
// that only a received message has (dropped, form, length, a registration's
// engine_key) and unknown ones are ignored; so is null. The error names a value
// that no Go type of the message can hold; whether the message fits the wire is
// for Dialect.Encode to say.
func MessageFromFields(kind Kind, fields []byte) (Message, error) {
	f, err := parseObject(fields)
	if err != nil {
		return nil, fmt.Errorf("fields of %s: %w", kind, err)
	}
	m := f.message(kind)
	if f.err != nil {
		return nil, fmt.Errorf("fields of %s: %w", kind, f.err)
	}
	if m == nil {
		return nil, fmt.Errorf("fields of %s: %w", kind, ErrKind)
	}
	return m, nil
}

func (f *fieldSet) message(kind Kind) Message {
	switch kind {
	case KindRegister:
		return f.registration()
	case KindMetadata:
		return f.metadata()
	case KindAbort:
		return &Abort{Room: f.uint("room"), Peer: f.endpoint(), Generation: f.optUint("generation"), Ext: f.ext()}
	case KindAbortAck:
		return &AbortAck{
			Room: f.uint("room"), PrefillRank: optNumber[int32](f, "prefill_rank"),
			Generation: f.optUint("generation"), Ext: f.ext(),
		}
	case KindStatus:
		return &Status{
			Room: f.uint("room"), Status: number[uint8](f, "status"), PrefillRank: number[int32](f, "prefill_rank"),
			Reason: f.str("reason"), ReasonBytes: f.hex("reason_hex"), Ext: f.ext(),
		}
	case KindStagingReq:
		return &StagingReq{
			Room: f.uint("room"), ChunkIdx: number[int32](f, "chunk_idx"), ChunkPages: number[int32](f, "chunk_pages"),
			SessionID: f.str("session_id"), PPRank: optNumber[int32](f, "pp_rank"),
		}
	case KindStagingRsp:
		return &StagingRsp{
			Room: f.uint("room"), ChunkIdx: number[int32](f, "chunk_idx"),
			Offset: number[int64](f, "offset"), Round: number[int64](f, "round"), End: number[int64](f, "end"),
			SessionID: f.str("session_id"),
		}
	case KindWatermark:
		return &Watermark{Round: f.uint("round"), Tail: f.uint("tail"), SessionID: f.str("session_id")}
	case KindChunkReady:
		return &ChunkReady{
			Room: f.uint("room"), ChunkIdx: number[int32](f, "chunk_idx"),
			PageStart: number[int32](f, "page_start"), NumPages: number[int32](f, "num_pages"),
			WriterID: f.str("writer_id"), PrefillRank: number[int32](f, "prefill_rank"),
		}
	case KindAuxData:
		return &AuxData{
			Room: f.uint("room"), BufferIndex: number[int32](f, "buffer_index"),
			AuxIndex: number[int32](f, "aux_index"), Data: f.hex("data"),
		}
	case KindBootstrap:
		return &Bootstrap{Room: f.uint("room"), Peer: f.endpoint()}
	}
	return nil
}

func (f *fieldSet) registration() *Registration {
	m := &Registration{
		Peer:      f.endpoint(),
		SessionID: f.str("session_id"), AgentName: f.str("agent_name"), AgentMetadata: f.hex("agent_metadata"),
		KVDataPtrs:    list(f, "kv_data_ptrs", intValue[uint64]),
		AuxDataPtrs:   list(f, "aux_data_ptrs", intValue[uint64]),
		StateDataPtrs: list(f, "state_data_ptrs", listOf(intValue[uint64])),
		KVMemDescs:    list(f, "kv_mem_descs", memDesc),
		AuxMemDescs:   list(f, "aux_mem_descs", memDesc),
		StateMemDescs: list(f, "state_mem_descs", listOf(memDesc)),
		DstTPRank:     optNumber[int32](f, "dst_tp_rank"),
		GPUID:         optNumber[int32](f, "gpu_id"),
		AttnTPSize:    number[int32](f, "attn_tp_size"),
		EngineRank:    optNumber[int32](f, "engine_rank"),
		KVItemLen:     f.uint("kv_item_len"),
		KVItemLens:    list(f, "kv_item_lens", intValue[uint64]),

		StateItemLens:       list(f, "state_item_lens", listOf(intValue[uint32])),
		StateDimPerTensor:   list(f, "state_dim_per_tensor", listOf(intValue[uint32])),
		KVLayerIDs:          list(f, "kv_layer_ids", intValue[uint32]),
		StateLayerIDs:       list(f, "state_layer_ids", listOf(intValue[uint32])),
		StagingBase:         f.optUint("staging_base"),
		StagingSize:         f.optUint("staging_size"),
		StagingSlotLayerIDs: list(f, "staging_slot_layer_ids", intValue[uint64]),
		NumKVSlots:          f.optUint("num_kv_slots"),
		KVMemoryKinds:       list(f, "kv_memory_kinds", textValue),
		DCPSize:             optNumber[int32](f, "dcp_size"),
		DCPRank:             optNumber[int32](f, "dcp_rank"),
		Ext:                 f.ext(),
	}
	if e := f.object("engine"); e != nil {
		m.Engine = &Engine{
			Key: e.str("key"), NodeID: e.str("node_id"), Hostname: e.str("hostname"), Host: e.str("host"),
			Port: number[uint16](e, "port"), PID: e.uint("pid"),
		}
		f.fail("engine", e.err)
	}
	return m
}

func (f *fieldSet) metadata() *Metadata {
	return &Metadata{
		Room: f.uint("room"), Peer: f.endpoint(),
		SessionID: f.str("session_id"), AgentName: f.str("agent_name"), EngineKey: f.str("engine_key"),
		DstPageIndices:     list(f, "dst_page_indices", intValue[int32]),
		AuxIndex:           optNumber[int32](f, "aux_index"),
		StateIndices:       list(f, "state_indices", listOf(intValue[int32])),
		RequiredDstInfoNum: number[int32](f, "required_dst_info_num"),
		DecodePrefixLen:    optNumber[int32](f, "decode_prefix_len"),
		DevicePageIndices:  list(f, "device_page_indices", intValue[int32]),
		IsDummy:            f.optBool("is_dummy").V,
		Ext:                f.ext(),
	}
}

func memDesc(raw json.RawMessage) (m MemDesc, err error) {
	f, err := parseObject(raw)
	if err != nil {
		return m, err
	}
	m = MemDesc{
		EngineKey: f.str("engine_key"), ID: f.uint("id"), DeviceID: number[int32](f, "device_id"),
		DeviceBusID: f.str("device_bus_id"), Data: f.uint("data"), Size: f.uint("size"), Loc: number[uint8](f, "loc"),
	}
	return m, f.err
}

func (f *fieldSet) endpoint() Endpoint {
	return Endpoint{IP: f.str("ip"), Port: optNumber[uint16](f, "port").V}
}

func (f *fieldSet) ext() *Extension {
	x := f.object("ext")
	if x == nil {
		return nil
	}
	e := &Extension{
		Node: x.str("node"), Boot: x.boot("boot"), Incarnation: x.uint("incarnation"),
		HLC: x.optUint("hlc").V, RoomSeq: x.optUint("room_seq").V, CauseSeq: x.optUint("cause_seq").V,
		Proof:   Proof(x.enum("proof", proofNames[:])),
		Drained: x.optBool("drained"), WriteKeys: list(x, "write_keys", writeKey), Reason: x.str("reason"),
		PrefillRank: optNumber[uint32](x, "prefill_rank"), LogSince: x.optUint("log_since").V,
		LogID: x.hex("log_id"), SeenLogID: x.hex("seen_log_id"), SeenSeq: x.optUint("seen_seq").V,
		PublishedBoot: x.optUint("published_boot").V, SeenBoot: x.optUint("seen_boot").V,
	}
	f.fail("ext", x.err)
	return e
}

func writeKey(raw json.RawMessage) (k WriteKey, err error) {
	f, err := parseObject(raw)
	if err != nil {
		return k, err
	}
	k = WriteKey{
		Kind:  WriteKeyKind(f.enum("kind", writeKeyKindNames[:])),
		Index: optNumber[uint32](f, "index").V, Component: optNumber[uint32](f, "component").V,
		Provider: f.str("provider"), Endpoint: f.str("endpoint"), Key: f.hex("key"),
	}
	return k, f.err
}

// fieldSet is a JSON object being read; the first bad member sets err.
type fieldSet struct {
	m   map[string]json.RawMessage
	err error
}

func parseObject(raw []byte) (*fieldSet, error) {
	f := new(fieldSet)
	if err := json.Unmarshal(raw, &f.m); err != nil {
		return nil, err
	}
	if f.m == nil {
		return nil, fmt.Errorf("null is no object")
	}
	return f, nil
}

func (f *fieldSet) fail(key string, err error) {
	if err != nil && f.err == nil {
		f.err = fmt.Errorf("%s: %w", key, err)
	}
}

// get returns a member that is there and not null.
func (f *fieldSet) get(key string) (json.RawMessage, bool) {
	raw, ok := f.m[key]
	return raw, ok && string(raw) != "null"
}

type integer interface {
	uint8 | uint16 | uint32 | uint64 | int32 | int64
}

// intValue reads an exact integer that T can hold.
func intValue[T integer](raw json.RawMessage) (T, error) {
	mag, neg, ok := parseDec(raw)
	v := T(mag)
	if neg {
		v = -v
		ok = ok && v < 0
	} else {
		ok = ok && v >= 0
	}
	// The magnitude must survive the way through T.
	back := uint64(v)
	if neg {
		back = -back
	}
	if !ok || back != mag {
		return 0, fmt.Errorf("%.40q is no integer of type %T", raw, v)
	}
	return v, nil
}

func textValue(raw json.RawMessage) (s string, err error) {
	err = json.Unmarshal(raw, &s)
	return s, err
}

func optNumber[T integer](f *fieldSet, key string) Opt[T] {
	raw, ok := f.get(key)
	if !ok {
		return Opt[T]{}
	}
	v, err := intValue[T](raw)
	f.fail(key, err)
	return Some(v)
}

func number[T integer](f *fieldSet, key string) T {
	v := optNumber[T](f, key)
	if !v.Set {
		f.fail(key, fmt.Errorf("missing"))
	}
	return v.V
}

func (f *fieldSet) uint(key string) uint64         { return number[uint64](f, key) }
func (f *fieldSet) optUint(key string) Opt[uint64] { return optNumber[uint64](f, key) }

func (f *fieldSet) str(key string) string {
	raw, ok := f.get(key)
	if !ok {
		return ""
	}
	s, err := textValue(raw)
	f.fail(key, err)
	return s
}

func (f *fieldSet) hex(key string) []byte {
	if _, ok := f.get(key); !ok {
		return nil
	}
	b, err := hex.DecodeString(f.str(key))
	f.fail(key, err)
	return b
}

// boot reads 16 hex digits.
func (f *fieldSet) boot(key string) uint64 {
	s := f.str(key)
	v, err := strconv.ParseUint(s, 16, 64)
	if err == nil && len(s) != 16 {
		err = fmt.Errorf("%q is not 16 hex digits", s)
	}
	f.fail(key, err)
	return v
}

func (f *fieldSet) optBool(key string) (v Opt[bool]) {
	raw, ok := f.get(key)
	if !ok {
		return v
	}
	f.fail(key, json.Unmarshal(raw, &v.V))
	v.Set = true
	return v
}

func (f *fieldSet) enum(key string, names []string) int32 {
	s := f.str(key)
	if s == "" {
		return 0
	}
	for i, name := range names {
		if s == name {
			return int32(i)
		}
	}
	f.fail(key, fmt.Errorf("%q is none of %q", s, names))
	return 0
}

func (f *fieldSet) object(key string) *fieldSet {
	raw, ok := f.get(key)
	if !ok {
		return nil
	}
	o, err := parseObject(raw)
	f.fail(key, err)
	return o
}

// list reads an array; absent is nil, which Encode takes for empty.
func list[T any](f *fieldSet, key string, value func(json.RawMessage) (T, error)) []T {
	raw, ok := f.get(key)
	if !ok {
		return nil
	}
	v, err := listOf(value)(raw)
	f.fail(key, err)
	return v
}

func listOf[T any](value func(json.RawMessage) (T, error)) func(json.RawMessage) ([]T, error) {
	return func(raw json.RawMessage) ([]T, error) {
		var items []json.RawMessage
		if err := json.Unmarshal(raw, &items); err != nil {
			return nil, err
		}
		v := make([]T, len(items))
		for i, item := range items {
			var err error
			if v[i], err = value(item); err != nil {
				return nil, fmt.Errorf("item %d: %w", i, err)
			}
		}
		return v, nil
	}
}
