package mooncake

import "github.com/pdlog/pdlog/backends"

// decodeMetadata reads the metadata of wire.md 1.3. No pages with an aux index
// is a full prefix hit, not a dummy: aux and state must still be sent.
func decodeMetadata(f backends.Frames) backends.Message {
	r := backends.NewReader(backends.KindMetadata, f, 8)
	if bad := r.Bad(); bad != nil {
		return bad
	}
	m := &backends.Metadata{
		Room:               r.Room(0),
		Peer:               r.Endpoint(1),
		SessionID:          r.Session(3),
		DstPageIndices:     r.Pages(4, "bad dst_page_indices"),
		AuxIndex:           r.OptI31(5, "bad aux_index"),
		StateIndices:       r.IndexLists(6, "bad state_indices"),
		RequiredDstInfoNum: r.N31(7, "bad required_dst_info_num"),
		DecodePrefixLen:    r.OptI31(8, "bad decode_prefix_len"),
		DevicePageIndices:  r.Pages(9, "bad device_page_indices"),
		IsDummy:            r.Empty(4) && r.Empty(5),
	}
	if !m.AuxIndex.Set && !m.IsDummy {
		r.Fail(5, "pages without aux_index")
	}
	m.Ext, m.ExtIgnored = r.Ext(metadataExtPlace)
	return backends.Result(&r, m)
}

func encodeMetadata(m *backends.Metadata) (backends.Frames, error) {
	w := backends.NewWriter(backends.KindMetadata, metadataExtPlace+1)
	w.Room(m.Room)
	w.Endpoint(m.Peer)
	w.Session(m.SessionID)
	if m.IsDummy {
		w.Empty()
		w.Empty()
		w.Empty()
	} else {
		w.Pages("dst_page_indices", m.DstPageIndices)
		w.Need("aux_index", m.AuxIndex, 0)
		w.IndexLists("state_indices", m.StateIndices)
	}
	w.N31("required_dst_info_num", m.RequiredDstInfoNum)
	w.I31("decode_prefix_len", m.DecodePrefixLen.Or(0))
	w.Pages("device_page_indices", m.DevicePageIndices)
	w.Ext(metadataExtPlace, m.Ext)
	return w.Done()
}
