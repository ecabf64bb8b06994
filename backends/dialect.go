package backends

import (
	"errors"
	"fmt"
	"slices"
	"sync"
)

// Dialect turns frames into messages and back for one SGLang backend. It holds
// no state: all methods may be called from any goroutine.
type Dialect interface {
	// Name is the dialect's name in configuration and captures.
	Name() string
	// Decode reads a message received on this side. It never fails: see
	// Malformed and Foreign. The result shares no memory with f.
	Decode(at Side, f Frames) Message
	// Encode writes a message in the newest form SGLang reads. The error is
	// ErrKind for a message the dialect does not have, or names the value
	// that does not fit the wire; then there are no frames.
	Encode(m Message) (Frames, error)
	// Habits tells how SGLang processes of this dialect behave.
	Habits() Habits
}

// ErrAck says what an SGLang prefill of a dialect does with its ABORT_ACK after
// a write of the room ended in an error (wire.md 4.2, F1-F3).
type ErrAck uint8

// The three habits seen.
const (
	// ErrAckUnproven: it acks at once, although writes may still be running.
	ErrAckUnproven ErrAck = iota + 1
	// ErrAckNever: it keeps the count and never acks; decode waits in vain.
	ErrAckNever
	// ErrAckAfterDrain: it waits for the transfer's own status, without limit,
	// then acks; the status may be an error with sibling writes running.
	ErrAckAfterDrain
)

// Habits are facts about SGLang's code for a dialect that its frames do not
// show. They describe peers; pdlog's own nodes have none of these.
type Habits struct {
	// ErrAck: an ACK after an error proves no more than this says.
	ErrAck ErrAck
	// ReceiptAcks: with deferred release off, prefill answers an ABORT at once
	// with the 2-frame receipt (wire.md 1.5, 4.2). Otherwise it is silent.
	ReceiptAcks bool
	// SuccessByStatus: success arrives as a Status. Otherwise it travels with
	// the data and a Status only ever says Failed (wire.md 1.6).
	SuccessByStatus bool
	// AuxByMessage: the aux row arrives as AUX_DATA by default, a second
	// writer that the transfer engine knows nothing of (wire.md 1.8, F22).
	AuxByMessage bool
	// Reregisters: a second registration under a known peer key replaces the
	// first. Otherwise it is ignored (wire.md 1.2).
	Reregisters bool
	// ExactDstCount: prefill starts when the number of peers that sent
	// metadata equals required_dst_info_num, and never if more come; otherwise
	// it starts at that number or above (wire.md 1.3, F39).
	ExactDstCount bool
}

// Sentinel errors of this package.
var (
	// ErrKind: the dialect has no such message.
	ErrKind = errors.New("the dialect has no such message")
	// ErrUnknownDialect: no dialect is registered under that name.
	ErrUnknownDialect = errors.New("unknown dialect")
)

// Registry holds dialects by name. The zero Registry is empty and ready.
type Registry struct {
	mu       sync.RWMutex
	dialects map[string]Dialect
}

// Register adds a dialect. It panics if the name is empty or taken: two
// packages claiming one name is a mistake in the build.
func (r *Registry) Register(d Dialect) {
	r.mu.Lock()
	defer r.mu.Unlock()
	name := d.Name()
	if _, taken := r.dialects[name]; taken || name == "" {
		panic(fmt.Sprintf("backends: dialect name %q is empty or taken", name))
	}
	if r.dialects == nil {
		r.dialects = map[string]Dialect{}
	}
	r.dialects[name] = d
}

// Lookup finds a dialect by name; the error is ErrUnknownDialect.
func (r *Registry) Lookup(name string) (Dialect, error) {
	r.mu.RLock()
	defer r.mu.RUnlock()
	d, ok := r.dialects[name]
	if !ok {
		return nil, fmt.Errorf("%w %q", ErrUnknownDialect, name)
	}
	return d, nil
}

// Names lists the registered dialects, sorted.
func (r *Registry) Names() []string {
	r.mu.RLock()
	defer r.mu.RUnlock()
	names := make([]string, 0, len(r.dialects))
	for name := range r.dialects {
		names = append(names, name)
	}
	slices.Sort(names)
	return names
}

// std is the registry that dialects join when they are imported.
var std Registry

// Register adds a dialect to the program's registry; dialects call it in init.
// It panics as Registry.Register does.
func Register(d Dialect) { std.Register(d) }

// Lookup finds a dialect of the program's registry; the error is
// ErrUnknownDialect.
func Lookup(name string) (Dialect, error) { return std.Lookup(name) }

// Names lists the dialects of the program's registry, sorted.
func Names() []string { return std.Names() }
