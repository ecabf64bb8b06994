package nixl

import "github.com/pdlog/pdlog/backends"

// decodeMetadata reads the metadata of wire.md 1.3. The flag of frame 10
// decides whether it is a dummy; for older peers, who do not send it, no pages
// and no prefix do.
func decodeMetadata(f backends.Frames) backends.Message {
	r := backends.NewReader(backends.KindMetadata, f, 8)
	if bad := r.Bad(); bad != nil {
		return bad
	}
	m := &backends.Metadata{
		Room:               r.Room(1),
		Peer:               r.Endpoint(2),
		AgentName:          r.Name(4, "bad agent_name"),
		DstPageIndices:     r.Pages(5, "bad dst_page_indices"),
		AuxIndex:           backends.Some(r.I31(6, "bad aux_index")),
		RequiredDstInfoNum: r.N31(7, "bad required_dst_info_num"),
		StateIndices:       r.IndexLists(8, "bad state_indices"),
		DecodePrefixLen:    r.OptI31(9, "bad decode_prefix_len"),
	}
	m.IsDummy = r.OptFlag(10, "bad is_dummy").Or(len(m.DstPageIndices) == 0 && m.DecodePrefixLen.V == 0)
	m.Ext, m.ExtIgnored = r.Ext(metadataExtPlace)
	return backends.Result(&r, m)
}

func encodeMetadata(m *backends.Metadata) (backends.Frames, error) {
	w := backends.NewWriter(backends.KindMetadata, metadataExtPlace+1)
	w.Tag(guard)
	w.Room(m.Room)
	w.Endpoint(m.Peer)
	w.Name("agent_name", m.AgentName)
	if m.IsDummy {
		w.Empty()
	} else {
		w.Pages("dst_page_indices", m.DstPageIndices)
	}
	w.Need("aux_index", m.AuxIndex, 0) // a dummy's too
	w.N31("required_dst_info_num", m.RequiredDstInfoNum)
	if m.IsDummy {
		w.Empty()
	} else {
		w.IndexLists("state_indices", m.StateIndices)
	}
	w.I31("decode_prefix_len", m.DecodePrefixLen.Or(0))
	if m.IsDummy {
		w.Tag("1")
	} else {
		w.Tag("0")
	}
	w.Ext(metadataExtPlace, m.Ext)
	return w.Done()
}
