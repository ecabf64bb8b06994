package projector

// parked finds, by decode node, the open writes whose end is not known: no
// worker waits for one, its token holds the room and its source pages (F43). It
// bounds how many there may be. It is derived from the tokens alone, and made
// again when a state is read back.
type parked map[string]map[uint64]struct{}

func (p parked) add(t *Token) {
	node := t.To.Node()
	if p[node] == nil {
		p[node] = map[uint64]struct{}{}
	}
	p[node][t.ID] = struct{}{}
}

func (p parked) remove(t *Token) {
	node := t.To.Node()
	delete(p[node], t.ID)
	if len(p[node]) == 0 {
		delete(p, node)
	}
}

// parkedIn is what a state has parked.
func parkedIn(st *State) parked {
	p := parked{}
	for _, r := range st.PRooms {
		for _, t := range r.Tokens {
			if t.Uncertain {
				p.add(t)
			}
		}
	}
	return p
}

// Parked counts a prefill's writes whose end is not known, by decode node.
func (m *Machine) Parked() map[string]int {
	out := make(map[string]int, len(m.parked))
	for node, set := range m.parked {
		out[node] = len(set)
	}
	return out
}
