package events

// ChainAfter is the chain value behind an event, as its successor names it in
// prev_hash (events.md I9). Not ok: this build cannot encode the event to the
// very bytes it was read from (fields or types of a newer schema, a map), or it
// lacks what the chain runs over.
func ChainAfter(e *Event) (chain uint32, ok bool) {
	if e.Payload == nil || e.GetConfigChanged() != nil || len(e.ProtoReflect().GetUnknown()) > 0 || e.Seq == 0 || e.Hlc == 0 {
		return 0, false
	}
	w := NewFrameWriter(Position{Seq: e.Seq - 1, HLC: e.Hlc - 1, Chain: e.PrevHash})
	if w.Append(e) != nil {
		return 0, false
	}
	return w.Position().Chain, true
}
