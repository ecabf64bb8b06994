package geometry

import "fmt"

// StateKind is what a state component holds (wire.md 5).
type StateKind string

// The kinds. All but mamba are lists of pages or rows.
const (
	StateMamba         StateKind = "mamba" // one item a request
	StateSWA           StateKind = "swa"
	StateDSA           StateKind = "dsa"
	StateSWARing       StateKind = "swa_ring"
	StateC128          StateKind = "c128_state"
	StateBlockScale    StateKind = "block_scale"
	StateBlockScaleSWA StateKind = "block_scale_swa"
	StateMinimaxIndexK StateKind = "minimax_index_k" // equal TP and one stage only
)

// Component is one state component of a decode rank.
type Component struct {
	Kind    StateKind
	Buffers []Buffer
	// Entries are the buffers that this prefill rank's stage writes; nil: all.
	Entries []int
}

// Items is a component's destination list in one chunk.
type Items struct {
	Dst    []uint32
	Source int // items that prefill has; -1: not known, taken as as many
}

func (w Writer) state(m Memory, c Chunk) ([]Write, error) {
	var out []Write
	for i, items := range c.State {
		if len(items.Dst) == 0 {
			continue
		}
		if i >= len(m.State) {
			return nil, fmt.Errorf("state component %d of %d", i, len(m.State))
		}
		comp := m.State[i]
		dst, err := w.stateItems(comp.Kind, items)
		if err != nil {
			return nil, fmt.Errorf("state component %d (%s): %w", i, comp.Kind, err)
		}
		runs, err := Runs(nil, dst)
		if err != nil {
			return nil, err
		}
		entries := comp.Entries
		if entries == nil {
			entries = make([]int, len(comp.Buffers))
			for j := range entries {
				entries[j] = j
			}
		}
		for _, e := range entries {
			if e < 0 || e >= len(comp.Buffers) {
				return nil, fmt.Errorf("state component %d (%s): buffer %d of %d", i, comp.Kind, e, len(comp.Buffers))
			}
			for _, run := range runs {
				r, err := comp.Buffers[e].Items(run.Dst, run.Len)
				if err != nil {
					return nil, fmt.Errorf("state component %d (%s), buffer %d: %w", i, comp.Kind, e, err)
				}
				out = append(out, Write{Kind: State, Component: i, Entry: e, Item: run.Dst, First: r, Times: 1})
			}
		}
	}
	return out, nil
}

// stateItems judges a component's list against what upstream sends. With
// different TP a mamba item is cut by a rule that is not known exactly, so the
// whole item counts as written: it holds too much rather than too little.
func (w Writer) stateItems(kind StateKind, items Items) ([]uint32, error) {
	p := w.Pairing
	sameTP := p.Prefill.TP == p.Decode.TP
	n := len(items.Dst)
	have := items.Source
	if have < 0 {
		have = n
	}
	switch kind {
	case StateMamba:
		if n != 1 {
			return nil, fmt.Errorf("%d items, want 1", n)
		}
		return items.Dst, nil
	case StateMinimaxIndexK:
		if !sameTP || p.Prefill.PP != 1 {
			return nil, fmt.Errorf("needs equal tp and one stage, has tp %d to %d and pp %d", p.Prefill.TP, p.Decode.TP, p.Prefill.PP)
		}
	case StateSWA, StateDSA, StateSWARing, StateC128, StateBlockScale, StateBlockScaleSWA:
		if !sameTP && p.Model == GQA {
			return nil, fmt.Errorf("tp %d to %d: pages of a model with heads cannot be cut", p.Prefill.TP, p.Decode.TP)
		}
	default:
		return nil, fmt.Errorf("unknown kind")
	}
	if kind == StateSWA || kind == StateDSA {
		return items.Dst[:min(n, have)], nil // the common prefix
	}
	if have != n {
		return nil, fmt.Errorf("%d items for %d", have, n)
	}
	return items.Dst, nil
}
