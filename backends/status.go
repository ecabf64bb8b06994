package backends

import (
	"strings"
	"unicode/utf8"
)

// ReadStatus reads a status whose room stands at position i, the reason three
// behind it and the extension at the next place or later (wire.md 1.6).
func ReadStatus(f Frames, i int) Message {
	r := NewReader(KindStatus, f, i+3)
	m := &Status{
		Room:        r.Room(i),
		Status:      uint8(r.uint(i+1, uint64(PollSuccess), "bad status")),
		PrefillRank: r.I31(i+2, "bad prefill_rank"),
	}
	// The reason is for people: if it is not text the status still stands.
	if b := r.Frame(i + 3); utf8.Valid(b) {
		m.Reason = string(b)
	} else {
		m.ReasonBytes = r.Bytes(i + 3)
	}
	m.Ext, m.ExtIgnored = r.Ext(i + 4)
	return Result(&r, m)
}

// WriteStatus writes room, status and rank behind what is already there.
func (w *Writer) WriteStatus(m *Status) {
	w.Room(m.Room)
	if m.Status > PollSuccess {
		w.Fail("status %d is above %d", m.Status, PollSuccess)
	}
	w.I31("status", int32(m.Status))
	w.I31("prefill_rank", m.PrefillRank)
}

// WriteReason writes the reason of a status, empty if there is none. Bytes
// that are not UTF-8 are replaced: a status is not held back for its reason.
func (w *Writer) WriteReason(m *Status) {
	reason := m.Reason
	if reason == "" {
		reason = string(m.ReasonBytes)
	}
	w.Tag(strings.ToValidUTF8(reason, "\uFFFD"))
}
