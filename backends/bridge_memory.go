package backends

import "github.com/pdlog/pdlog/events"

// maxEntries bounds what a registration puts on the log: an engine has a buffer
// a layer, or two.
const maxEntries = 4096

// memory is what a registration says of the decode rank's memory; nil if it
// lists more buffers than any engine has.
func (m *Registration) memory() *events.PeerMemory {
	out := &events.PeerMemory{
		KvPtrs: m.KVDataPtrs, KvItemBytes: m.KVItemLens, AuxPtrs: m.AuxDataPtrs, KvLayers: m.KVLayerIDs,
		TpSize: uint32(m.AttnTPSize), TpRank: uint32(max(m.Rank(), 0)), //nolint:gosec // not negative
		DcpSize: uint32(m.DCPSize.Or(1)), DcpRank: uint32(m.DCPRank.Or(0)), //nolint:gosec // decoded >= 0
		StagingBase: m.StagingBase.Or(0), StagingBytes: m.StagingSize.Or(0),
	}
	for _, d := range m.KVMemDescs {
		out.KvPtrs = append(out.KvPtrs, d.Data)
	}
	for _, d := range m.AuxMemDescs {
		out.AuxPtrs = append(out.AuxPtrs, d.Data)
	}
	if len(out.KvItemBytes) == 0 { // an older form: one length for all
		for range out.KvPtrs {
			out.KvItemBytes = append(out.KvItemBytes, m.KVItemLen)
		}
	}
	entries := len(out.KvPtrs) + len(out.AuxPtrs) + len(out.KvLayers)
	state := func(i int) *events.StateMemory {
		for len(out.State) <= i {
			out.State = append(out.State, &events.StateMemory{})
		}
		return out.State[i]
	}
	for i, ptrs := range m.StateDataPtrs {
		state(i).Ptrs = ptrs
		entries += 1 + len(ptrs)
	}
	for i, descs := range m.StateMemDescs {
		for _, d := range descs {
			state(i).Ptrs = append(state(i).Ptrs, d.Data)
		}
		entries += 1 + len(descs)
	}
	for i, lens := range m.StateItemLens {
		for _, n := range lens {
			state(i).ItemBytes = append(state(i).ItemBytes, uint64(n))
		}
		entries += 1 + len(lens)
	}
	if entries > maxEntries {
		return nil
	}
	return out
}
