package replay

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/pdlog/pdlog/events"
)

// Filter selects events; an empty list selects all.
type Filter struct {
	Nodes []string
	Rooms []uint64
	Pages []uint32
	Types []string
	// Requests are the engine's own ids. They select rooms: see FocusOnRequests.
	Requests []string
	Since    time.Time // zero = from the beginning
	Until    time.Time // zero = to the end; the bound itself is in
}

// Check says what is wrong with the filter: a type that is none. It names the
// nearest one that exists.
func (f *Filter) Check() error {
	known := events.TypeNames()
	for _, t := range f.Types {
		if slices.Contains(known, t) {
			continue
		}
		for _, k := range known {
			if strings.EqualFold(k, t) {
				return fmt.Errorf("unknown event type %q: did you mean %s?", t, k)
			}
		}
		return fmt.Errorf("unknown event type %q", t)
	}
	return nil
}

// Match says whether an event is selected.
func (f *Filter) Match(e *events.Event) bool {
	switch {
	case len(f.Nodes) > 0 && !slices.Contains(f.Nodes, e.Node),
		len(f.Rooms) > 0 && !slices.Contains(f.Rooms, e.Room),
		len(f.Types) > 0 && !slices.Contains(f.Types, e.TypeName()),
		!f.Since.IsZero() && e.Time().Before(f.Since),
		!f.Until.IsZero() && e.Time().After(f.Until):
		return false
	}
	return len(f.Pages) == 0 || mentionsPage(e, f.Pages)
}

// mentionsPage looks at the destination pages an event names.
func mentionsPage(e *events.Event, pages []uint32) bool {
	m := e.PayloadMessage()
	if m == nil {
		return false
	}
	fds := m.Descriptor().Fields()
	if fd := fds.ByName("page"); fd != nil && slices.Contains(pages, uint32(m.Get(fd).Uint())) { //nolint:gosec // uint32 field
		return true
	}
	fd := fds.ByName("pages")
	if fd == nil || !fd.IsList() || fd.Kind() != protoreflect.Uint32Kind {
		return false
	}
	list := m.Get(fd).List()
	for i := range list.Len() {
		if slices.Contains(pages, uint32(list.Get(i).Uint())) { //nolint:gosec // uint32 field
			return true
		}
	}
	return false
}
