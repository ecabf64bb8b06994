package geometry

import "fmt"

// Layers describes the KV entries of one rank: a list of buffers, for MHA all K
// layers and then all V layers, for MLA one entry a layer (wire.md 5).
type Layers struct {
	Entries int
	Start   int      // number of its first layer; prefill's side counts
	IDs     []uint32 // kv_layer_ids, one per entry; nil: an older registration
}

// MatchLayers pairs prefill's entries with decode's: out[i] is the place on
// decode's side that prefill's entry i is written to. By layer ids if both have
// them; else by number: all of them if there are as many, or the slice of the
// prefill's stage. split: entries are K layers and then V layers.
func MatchLayers(prefill, decode Layers, split bool) ([]int, error) {
	switch {
	case prefill.Entries < 0 || decode.Entries < 0 || prefill.Start < 0:
		return nil, fmt.Errorf("%d entries from layer %d for %d", prefill.Entries, prefill.Start, decode.Entries)
	case len(prefill.IDs) > 0 && len(decode.IDs) > 0:
		return byLayerID(prefill, decode)
	}
	out := make([]int, 0, min(prefill.Entries, decode.Entries))
	if prefill.Entries == decode.Entries {
		for i := range prefill.Entries {
			out = append(out, i)
		}
		return out, nil
	}
	parts := 1
	if split {
		parts = 2
	}
	if prefill.Entries%parts != 0 || decode.Entries%parts != 0 {
		return nil, fmt.Errorf("%d entries for %d: K and V do not have as many layers, and no layer ids say which is which", prefill.Entries, decode.Entries)
	}
	n, all := prefill.Entries/parts, decode.Entries/parts
	if prefill.Start > all || n > all-prefill.Start {
		return nil, fmt.Errorf("layers %d to %d of %d", prefill.Start, uint64(prefill.Start)+uint64(n), all)
	}
	for part := range parts {
		for i := range n {
			out = append(out, part*all+prefill.Start+i)
		}
	}
	return out, nil
}

// byLayerID pairs the n-th entry of a layer with the n-th of the same layer.
func byLayerID(prefill, decode Layers) ([]int, error) {
	if len(prefill.IDs) != prefill.Entries || len(decode.IDs) != decode.Entries {
		return nil, fmt.Errorf("%d and %d layer ids for %d and %d entries", len(prefill.IDs), len(decode.IDs), prefill.Entries, decode.Entries)
	}
	places := make(map[uint32][]int, decode.Entries)
	for i, id := range decode.IDs {
		places[id] = append(places[id], i)
	}
	out := make([]int, prefill.Entries)
	for i, id := range prefill.IDs {
		if len(places[id]) == 0 {
			return nil, fmt.Errorf("layer %d has more entries on prefill than on decode", id)
		}
		out[i] = places[id][0]
		places[id] = places[id][1:]
	}
	return out, nil
}
