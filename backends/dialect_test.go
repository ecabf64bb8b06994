package backends_test

import (
	"errors"
	"slices"
	"testing"

	"github.com/pdlog/pdlog/backends"
	"github.com/pdlog/pdlog/backends/backendtest"
)

// toy is a dialect made from the public parts alone: a guard of its own for the
// status, the shared messages for the rest.
type toy struct{ name string }

const toyGuard = "ToyMsgGuard"

func (d toy) Name() string { return d.name }

func (toy) Habits() backends.Habits { return backends.Habits{ErrAck: backends.ErrAckNever} }

func (toy) Decode(at backends.Side, f backends.Frames) backends.Message {
	if m, ok := backends.DecodeUnguarded(backends.TagBootstrap, at, f); ok {
		return m
	}
	if at == backends.AtDecode && len(f) > 0 && string(f[0]) == toyGuard {
		return backends.ReadStatus(f, 1)
	}
	return &backends.Foreign{Reason: "not a toy"}
}

func (toy) Encode(m backends.Message) (backends.Frames, error) {
	if s, ok := m.(*backends.Status); ok {
		w := backends.NewWriter(backends.KindStatus, 6)
		w.Tag(toyGuard)
		w.WriteStatus(s)
		w.WriteReason(s)
		w.Ext(5, s.Ext)
		return w.Done()
	}
	return backends.EncodeUnguarded(backends.TagBootstrap, m)
}

func TestDialectFromOutside(t *testing.T) {
	var r backends.Registry
	if _, err := r.Lookup("toy"); !errors.Is(err, backends.ErrUnknownDialect) {
		t.Errorf("before it is registered: %v", err)
	}
	r.Register(toy{"toy"})
	r.Register(toy{"another"})
	if got := r.Names(); !slices.Equal(got, []string{"another", "toy"}) {
		t.Errorf("names %q", got)
	}
	d, err := r.Lookup("toy")
	if err != nil {
		t.Fatal(err)
	}
	backendtest.RoundTrip(t, d)
	backendtest.Total(t, d)
}

func TestNameIsTakenOnce(t *testing.T) {
	for _, name := range []string{"", "toy"} {
		func() {
			defer func() {
				if recover() == nil {
					t.Errorf("name %q was accepted", name)
				}
			}()
			var r backends.Registry
			r.Register(toy{"toy"})
			r.Register(toy{name})
		}()
	}
}

func TestHabitsAreSaid(t *testing.T) {
	for _, name := range backends.Names() {
		d, err := backends.Lookup(name)
		if err != nil {
			t.Fatal(err)
		}
		if d.Habits().ErrAck == 0 {
			t.Errorf("%s does not say what its ACK after an error is worth", name)
		}
	}
}

func TestKindAndSideNames(t *testing.T) {
	for k := backends.KindForeign; k <= backends.KindBootstrap; k++ {
		if got, ok := backends.ParseKind(k.String()); !ok || got != k {
			t.Errorf("%s is read as %s", k, got)
		}
	}
	for _, s := range []backends.Side{backends.AtPrefill, backends.AtDecode} {
		if got, ok := backends.ParseSide(s.String()); !ok || got != s {
			t.Errorf("%s is read as %s", s, got)
		}
	}
	if _, ok := backends.ParseKind("Abort"); ok {
		t.Error("kind names are exact")
	}
	if _, ok := backends.ParseSide(""); ok {
		t.Error("no text is no side")
	}
}
