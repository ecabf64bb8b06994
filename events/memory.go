package events

import "slices"

// Same reports that two registrations describe the same memory; nil is the same
// as nil alone.
func (m *PeerMemory) Same(o *PeerMemory) bool {
	if m == nil || o == nil {
		return m == o
	}
	return slices.Equal(m.KvPtrs, o.KvPtrs) && slices.Equal(m.KvItemBytes, o.KvItemBytes) && slices.Equal(m.AuxPtrs, o.AuxPtrs) &&
		slices.EqualFunc(m.State, o.State, func(a, b *StateMemory) bool {
			return slices.Equal(a.GetPtrs(), b.GetPtrs()) && slices.Equal(a.GetItemBytes(), b.GetItemBytes())
		}) &&
		m.TpSize == o.TpSize && m.TpRank == o.TpRank && slices.Equal(m.KvLayers, o.KvLayers) &&
		m.DcpSize == o.DcpSize && m.DcpRank == o.DcpRank && m.StagingBase == o.StagingBase && m.StagingBytes == o.StagingBytes
}
