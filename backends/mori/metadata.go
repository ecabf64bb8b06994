package mori

import "github.com/pdlog/pdlog/backends"

// decodeMetadata reads the metadata of wire.md 1.3. An aux index of -1 means
// none; pages without an aux row are legal here.
func decodeMetadata(f backends.Frames) backends.Message {
	r := backends.NewReader(backends.KindMetadata, f, 7)
	if bad := r.Bad(); bad != nil {
		return bad
	}
	m := &backends.Metadata{
		Room:               r.Room(1),
		Peer:               r.Endpoint(2),
		EngineKey:          r.Name(4, "bad engine_key"),
		DstPageIndices:     r.Pages(5, "bad dst_page_indices"),
		StateIndices:       r.IndexLists(7, "bad state_indices"),
		RequiredDstInfoNum: r.DefN31(8, 1, "bad required_dst_info_num"),
		DecodePrefixLen:    r.OptI31(9, "bad decode_prefix_len"),
	}
	if !r.Empty(6) {
		if aux := r.IntFrom(6, -1, "bad aux_index"); aux >= 0 {
			m.AuxIndex = backends.Some(aux)
		}
	}
	m.IsDummy = len(m.DstPageIndices) == 0 && !m.AuxIndex.Set && m.DecodePrefixLen.V == 0
	m.Ext, m.ExtIgnored = r.Ext(metadataExtPlace)
	return backends.Result(&r, m)
}

// encodeMetadata writes ten frames. A Mori peer takes a message without pages,
// aux index and prefix for a dummy, and one with a prefix for none, whatever
// IsDummy says here: the frames have no place for it.
func encodeMetadata(m *backends.Metadata) (backends.Frames, error) {
	w := backends.NewWriter(backends.KindMetadata, metadataExtPlace+1)
	w.Tag(guard)
	w.Room(m.Room)
	w.Endpoint(m.Peer)
	w.Name("engine_key", m.EngineKey)
	if m.IsDummy {
		w.Empty()
		w.Empty()
		w.Empty()
	} else {
		w.Pages("dst_page_indices", m.DstPageIndices)
		w.OptI31("aux_index", m.AuxIndex)
		w.IndexLists("state_indices", m.StateIndices)
	}
	w.N31("required_dst_info_num", m.RequiredDstInfoNum)
	if m.DecodePrefixLen.V == 0 {
		w.Empty()
	} else {
		w.I31("decode_prefix_len", m.DecodePrefixLen.V)
	}
	w.Ext(metadataExtPlace, m.Ext)
	return w.Done()
}
