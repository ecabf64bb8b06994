package backends

// NotifyWhat says what a notification is about.
type NotifyWhat uint8

// What a transfer engine tells in-band (wire.md 1.10).
const (
	NotifyKV      NotifyWhat = iota + 1 // a chunk's pages, or a part of them, have landed
	NotifyStaging                       // a chunk has landed in decode's staging ring
	NotifyAux                           // the aux row has landed
	NotifyAuxNoKV                       // so has it, and the source's last chunk had no pages
	NotifyState                         // the source's state items have landed
)

var notifyWords = [...]string{NotifyKV: "kv", NotifyStaging: "stg", NotifyAux: "aux", NotifyAuxNoKV: "aux_nokv", NotifyState: "state"}

// String is the word that logs use.
func (w NotifyWhat) String() string {
	if w == 0 || int(w) >= len(notifyWords) {
		return "unknown"
	}
	return notifyWords[w]
}

// Notification is a message that travels inside the transfer engine, with the
// data it speaks of, and not over ZeroMQ (wire.md 1.10).
type Notification struct {
	Room   uint64
	What   NotifyWhat
	Source int32 // pp_rank*tp_size + engine_rank of the prefill; none in NotifyAux
	Chunk  int32 // NotifyKV, NotifyStaging
	Last   bool  // NotifyKV, NotifyStaging: the source's last chunk
	// Part of Parts of a chunk that went in several writes; 0 of 1 = all of it.
	Part, Parts int32
	// Expected, of NotifyAuxNoKV: how many chunks come before the last one.
	Expected int32
	// Of NotifyStaging: place in the request (chunk_idx, page_start, num_pages
	// of wire.md 1.7), and the agent that wrote.
	ChunkIdx, PageStart, NumPages int32
	Agent                         string
}

// Notifier is implemented by dialects whose transfer engine carries
// notifications. Both methods may be called from any goroutine.
type Notifier interface {
	// ParseNotification is total over all byte strings; the error says what is
	// wrong with the text.
	ParseNotification(text []byte) (Notification, error)
	// FormatNotification is its inverse; the error names a value that does not
	// fit.
	FormatNotification(n Notification) (string, error)
}
