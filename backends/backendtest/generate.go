package backendtest

import (
	"strconv"
	"strings"

	"pgregory.net/rapid"

	"github.com/pdlog/pdlog/backends"
)

// Values that lie at the edges of a form come up far more often than by chance.
var (
	u63 = rapid.OneOf(
		rapid.SampledFrom([]uint64{0, 1, 1<<31 - 1, 1 << 32, 1<<63 - 1}),
		rapid.Uint64Max(1<<63-1))
	u64 = rapid.OneOf(rapid.SampledFrom([]uint64{0, 1<<63 - 1, 1 << 63, 1<<64 - 1}), rapid.Uint64())
	u32 = rapid.OneOf(rapid.SampledFrom([]uint32{0, 1<<31 - 1, 1 << 31, 1<<32 - 1}), rapid.Uint32())
	i31 = rapid.OneOf(rapid.SampledFrom([]int32{0, 1, 1<<31 - 1}), rapid.Int32Min(0))
	n31 = rapid.OneOf(rapid.SampledFrom([]int32{1, 1<<31 - 1}), rapid.Int32Min(1))

	ips = rapid.SampledFrom([]string{
		"10.0.0.1", "0.0.0.0", "255.255.255.255", "::", "::1", "fe80::1", "2001:DB8::7",
		"::ffff:10.0.0.1", "ffff:ffff:ffff:ffff:ffff:ffff:255.255.255.255",
	})
	ports   = rapid.Uint16Min(1)
	names   = rapid.StringMatching(`[!-~]{1,40}`)
	texts   = rapid.OneOf(rapid.String(), rapid.SampledFrom([]string{"", "\x00\n", "échec ✗", "PDX1"}))
	opaque  = rapid.SliceOfN(rapid.Byte(), 0, 40)
	pages   = rapid.SliceOfN(i31, 0, 20)
	u64s    = rapid.SliceOfN(u64, 0, 8)
	u32s    = rapid.SliceOfN(u32, 0, 8)
	u64lol  = rapid.SliceOfN(u64s, 0, 4)
	u32lol  = rapid.SliceOfN(u32s, 0, 4)
	indexes = rapid.SliceOfN(pages, 0, 4)
)

func opt[T any](t *rapid.T, g *rapid.Generator[T], label string) backends.Opt[T] {
	if !rapid.Bool().Draw(t, label+" set") {
		return backends.Opt[T]{}
	}
	return backends.Some(g.Draw(t, label))
}

func endpoint(t *rapid.T) backends.Endpoint {
	return backends.Endpoint{IP: ips.Draw(t, "ip"), Port: ports.Draw(t, "port")}
}

func session(t *rapid.T) string {
	return names.Draw(t, "host") + ":" + strconv.Itoa(int(ports.Draw(t, "rpc port")))
}

// extension draws an extension half of the time.
func extension(t *rapid.T) *backends.Extension {
	if rapid.Bool().Draw(t, "no ext") {
		return nil
	}
	logID := func(label string) []byte {
		if rapid.Bool().Draw(t, label+" set") {
			return rapid.SliceOfN(rapid.Byte(), 16, 16).Draw(t, label)
		}
		return nil
	}
	e := &backends.Extension{
		Node: names.Draw(t, "node"), Boot: max(1, u64.Draw(t, "boot")), Incarnation: max(1, u64.Draw(t, "incarnation")),
		HLC: u64.Draw(t, "hlc"), RoomSeq: u64.Draw(t, "room_seq"), CauseSeq: u64.Draw(t, "cause_seq"),
		Proof:   backends.Proof(rapid.Int32Range(0, 4).Draw(t, "proof")),
		Drained: opt(t, rapid.Bool(), "drained"), Reason: texts.Draw(t, "ext reason"),
		PrefillRank: opt(t, u32, "ext rank"), LogSince: u64.Draw(t, "log_since"),
		LogID: logID("log_id"), SeenLogID: logID("seen_log_id"), SeenSeq: u64.Draw(t, "seen_seq"),
		PublishedBoot: u64.Draw(t, "published_boot"), SeenBoot: u64.Draw(t, "seen_boot"),
	}
	for range rapid.IntRange(0, 3).Draw(t, "write keys") {
		e.WriteKeys = append(e.WriteKeys, backends.WriteKey{
			Kind: backends.WriteKeyKind(rapid.Int32Range(0, 5).Draw(t, "key kind")), Index: u32.Draw(t, "index"),
			Component: u32.Draw(t, "component"), Provider: texts.Draw(t, "provider"),
			Endpoint: texts.Draw(t, "endpoint"), Key: rapid.SliceOfN(rapid.Byte(), 1, 9).Draw(t, "key"),
		})
	}
	return e
}

// message draws a message of the kind that every dialect which has the kind can
// send: what belongs to one dialect alone is filled for all.
func message(t *rapid.T, k backends.Kind) backends.Message {
	switch k {
	case backends.KindRegister:
		return registration(t)
	case backends.KindMetadata:
		return metadata(t)
	case backends.KindAbort:
		return &backends.Abort{
			Room: u63.Draw(t, "room"), Peer: endpoint(t), Generation: opt(t, u63, "generation"), Ext: extension(t),
		}
	case backends.KindAbortAck:
		m := &backends.AbortAck{
			Room: u63.Draw(t, "room"), PrefillRank: opt(t, i31, "prefill_rank"), Generation: opt(t, u63, "generation"),
			Ext: extension(t),
		}
		// cannot_tell moves the rank into the extension; it has its own test.
		if m.Ext != nil && m.Ext.Proof == backends.ProofCannotTell {
			m.PrefillRank = backends.Opt[int32]{}
		}
		return m
	case backends.KindStatus:
		return &backends.Status{
			Room: u63.Draw(t, "room"), Status: rapid.Uint8Max(4).Draw(t, "status"),
			PrefillRank: i31.Draw(t, "prefill_rank"), Reason: texts.Draw(t, "reason"), Ext: extension(t),
		}
	case backends.KindStagingReq:
		return &backends.StagingReq{
			Room: u63.Draw(t, "room"), ChunkIdx: i31.Draw(t, "chunk"), ChunkPages: i31.Draw(t, "pages"),
			SessionID: names.Draw(t, "session"), PPRank: opt(t, i31, "pp_rank"),
		}
	case backends.KindStagingRsp:
		m := &backends.StagingRsp{
			Room: u63.Draw(t, "room"), ChunkIdx: i31.Draw(t, "chunk"), Offset: -2, End: -1,
			SessionID: names.Draw(t, "session"),
		}
		if rapid.Bool().Draw(t, "fits") {
			m.Offset, m.Round = rapid.Int64Min(0).Draw(t, "offset"), rapid.Int64Min(0).Draw(t, "round")
			m.End = rapid.Int64Min(m.Offset).Draw(t, "end")
		}
		return m
	case backends.KindWatermark:
		return &backends.Watermark{
			Round: u63.Draw(t, "round"), Tail: u63.Draw(t, "tail"), SessionID: names.Draw(t, "session"),
		}
	case backends.KindChunkReady:
		return &backends.ChunkReady{
			Room: u63.Draw(t, "room"), ChunkIdx: i31.Draw(t, "chunk"), PageStart: i31.Draw(t, "start"),
			NumPages: i31.Draw(t, "pages"), WriterID: names.Draw(t, "writer"), PrefillRank: i31.Draw(t, "rank"),
		}
	case backends.KindAuxData:
		return &backends.AuxData{
			Room: u63.Draw(t, "room"), BufferIndex: i31.Draw(t, "buffer"), AuxIndex: i31.Draw(t, "aux"),
			Data: opaque.Draw(t, "data"),
		}
	case backends.KindBootstrap:
		return &backends.Bootstrap{Room: u63.Draw(t, "room"), Peer: endpoint(t)}
	}
	t.Fatalf("no generator for %s", k)
	return nil
}

func registration(t *rapid.T) *backends.Registration {
	ptrs := u64s.Draw(t, "kv_data_ptrs")
	m := &backends.Registration{
		Peer: endpoint(t), SessionID: session(t), AgentName: names.Draw(t, "agent"),
		AgentMetadata: append(opaque.Draw(t, "agent metadata"), 'x'),
		Engine: &backends.Engine{
			Key: names.Draw(t, "engine key"), NodeID: texts.Draw(t, "node id"), Hostname: texts.Draw(t, "hostname"),
			Host: strings.Repeat("h", rapid.SampledFrom([]int{0, 31, 32, 255, 256, 65536}).Draw(t, "host length")),
			Port: rapid.Uint16().Draw(t, "engine port"), PID: u63.Draw(t, "pid"),
		},
		KVDataPtrs: ptrs, AuxDataPtrs: u64s.Draw(t, "aux_data_ptrs"), StateDataPtrs: u64lol.Draw(t, "state_data_ptrs"),
		KVMemDescs:  rapid.SliceOfN(memDesc, 0, 17).Draw(t, "kv descs"),
		AuxMemDescs: rapid.SliceOfN(memDesc, 0, 2).Draw(t, "aux descs"),
		StateMemDescs: rapid.SliceOfN(rapid.SliceOfN(memDesc, 0, 2), 0, 3).
			Draw(t, "state descs"),
		DstTPRank: backends.Some(i31.Draw(t, "dst_tp_rank")), AttnTPSize: n31.Draw(t, "tp"),
		GPUID:      backends.Some(rapid.Int32Min(-1).Draw(t, "gpu")),
		EngineRank: backends.Some(i31.Draw(t, "engine_rank")),
		KVItemLen:  u63.Draw(t, "kv_item_len"), KVItemLens: []uint64{}, KVMemoryKinds: []string{},
		StateItemLens: u32lol.Draw(t, "state_item_lens"), StateDimPerTensor: u32lol.Draw(t, "dims"),
		KVLayerIDs: u32s.Draw(t, "kv layers"), StateLayerIDs: u32lol.Draw(t, "state layers"),
		StagingBase: opt(t, u64, "staging_base"), StagingSize: opt(t, u63, "staging_size"),
		StagingSlotLayerIDs: u64s.Draw(t, "slot layers"), NumKVSlots: opt(t, u63, "slots"),
		DCPSize: backends.Some(n31.Draw(t, "dcp_size")), DCPRank: backends.Some(i31.Draw(t, "dcp_rank")),
		Ext: extension(t),
	}
	if rapid.Bool().Draw(t, "lens") {
		m.KVItemLens = rapid.SliceOfN(u64, len(ptrs), len(ptrs)).Draw(t, "kv_item_lens")
		m.KVMemoryKinds = rapid.SliceOfN(rapid.SampledFrom([]string{"VRAM", "DRAM"}), len(ptrs), len(ptrs)).Draw(t, "kinds")
	}
	return m
}

var memDesc = rapid.Custom(func(t *rapid.T) backends.MemDesc {
	return backends.MemDesc{
		EngineKey: texts.Draw(t, "engine key"), ID: u63.Draw(t, "id"), DeviceID: rapid.Int32Min(-1).Draw(t, "device"),
		DeviceBusID: texts.Draw(t, "bus"), Data: u64.Draw(t, "data"), Size: u64.Draw(t, "size"),
		Loc: rapid.Uint8().Draw(t, "loc"),
	}
})

// metadata draws a real one, which has an aux index, or a dummy, which has
// neither pages, state nor prefix.
func metadata(t *rapid.T) *backends.Metadata {
	m := &backends.Metadata{
		Room: u63.Draw(t, "room"), Peer: endpoint(t), SessionID: session(t), AgentName: names.Draw(t, "agent"),
		EngineKey: names.Draw(t, "engine"), RequiredDstInfoNum: n31.Draw(t, "required"),
		AuxIndex:       backends.Some(i31.Draw(t, "aux_index")),
		DstPageIndices: []int32{}, StateIndices: [][]int32{},
		DevicePageIndices: pages.Draw(t, "device pages"), IsDummy: rapid.Bool().Draw(t, "dummy"), Ext: extension(t),
	}
	if !m.IsDummy {
		m.DstPageIndices, m.StateIndices = pages.Draw(t, "pages"), indexes.Draw(t, "state")
		m.DecodePrefixLen = opt(t, i31, "prefix")
	}
	return m
}
