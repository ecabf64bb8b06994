package projector

// timers is a lazy heap of room deadlines: an entry may be stale, and the
// room's true deadline is computed when it comes up.
type timers struct{ h timerHeap }

type timerEntry struct {
	at  uint64
	key roomKey
}

// timerHeap is container/heap's, without a box for each entry.
type timerHeap []timerEntry

func (h timerHeap) less(i, j int) bool {
	return h[i].at < h[j].at || h[i].at == h[j].at && h[i].key < h[j].key
}

func (t *timers) push(key roomKey, at uint64) {
	t.h = append(t.h, timerEntry{at: at, key: key})
	h := t.h
	for i := len(h) - 1; i > 0; {
		up := (i - 1) / 2
		if !h.less(i, up) {
			break
		}
		h[i], h[up] = h[up], h[i]
		i = up
	}
}

func (t *timers) pop() timerEntry {
	h := t.h
	first, last := h[0], len(h)-1
	h[0] = h[last]
	h = h[:last]
	t.h = h
	for i := 0; ; {
		least := 2*i + 1
		if least >= last {
			return first
		}
		if right := least + 1; right < last && h.less(right, least) {
			least = right
		}
		if !h.less(least, i) {
			return first
		}
		h[i], h[least] = h[least], h[i]
		i = least
	}
}

// NextDeadline is when Step(Tick) has to be called at the latest, on the
// deadline clock in unix ms; false when nothing waits for time. It may be
// early, never late.
func (m *Machine) NextDeadline() (uint64, bool) {
	if !m.started || m.stopped {
		return 0, false
	}
	at, ok := uint64(0), false
	if len(m.timers.h) > 0 {
		at, ok = m.timers.h[0].at, true
	}
	if m.st.Draining && (!ok || m.st.DrainUntil < at) {
		at, ok = m.st.DrainUntil, true
	}
	return at, ok
}

// touch makes sure that a room's next deadline is in the heap. A room has one
// entry that counts (its timer); others of it are stale.
func (m *Machine) touch(key roomKey) {
	at, ok := m.deadline(key)
	if !ok {
		return
	}
	if slot := m.timerSlot(key); *slot == 0 || at < *slot {
		*slot = at
		m.timers.push(key, at)
	}
}

func (m *Machine) timerSlot(key roomKey) *uint64 {
	if r := m.room(key); r != nil {
		return &r.timer
	}
	return &m.proom(key).timer
}

func (m *Machine) deadline(key roomKey) (uint64, bool) {
	if r := m.room(key); r != nil {
		return m.roomDeadline(r)
	}
	if r := m.proom(key); r != nil {
		return m.proomDeadline(r)
	}
	return 0, false
}

// fire lets everything that is due happen. Each firing changes the room so
// that its next deadline lies later, or it has none.
func (m *Machine) fire() {
	for len(m.timers.h) > 0 && m.timers.h[0].at <= m.now.Clock {
		e := m.timers.pop()
		at, ok := m.deadline(e.key)
		if !ok {
			m.clearTimer(e.key)
			continue
		}
		slot := m.timerSlot(e.key)
		if *slot != e.at {
			continue
		}
		*slot = 0
		if at > m.now.Clock {
			m.touch(e.key)
			continue
		}
		if r := m.room(e.key); r != nil {
			m.roomDue(r)
		} else if r := m.proom(e.key); r != nil {
			m.proomDue(r)
		}
		if at, ok := m.deadline(e.key); ok && at <= m.now.Clock {
			*m.timerSlot(e.key) = m.now.Clock + 1 // never twice in one instant
			m.timers.push(e.key, m.now.Clock+1)
			continue
		}
		m.touch(e.key)
	}
	m.drainDue()
}

func (m *Machine) clearTimer(key roomKey) {
	if m.room(key) != nil || m.proom(key) != nil {
		*m.timerSlot(key) = 0
	}
}
