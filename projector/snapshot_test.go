package projector

import (
	"bytes"
	"errors"
	"fmt"
	"hash/fnv"
	"io"
	"math/rand/v2"
	"reflect"
	"slices"
	"strings"
	"testing"
	"unsafe"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/testing/protocmp"
	"pgregory.net/rapid"

	"github.com/pdlog/pdlog/events"
)

// wholeState compares every field, the unexported ones too.
var wholeState = cmp.Options{
	protocmp.Transform(),
	cmp.Exporter(func(t reflect.Type) bool { return t.PkgPath() == reflect.TypeFor[State]().PkgPath() }),
	cmp.FilterPath(func(p cmp.Path) bool { // of one life
		f, ok := p.Last().(cmp.StructField)
		return ok && f.Name() == "timer"
	}, cmp.Ignore()),
	cmp.FilterValues(bothEmpty, cmp.Ignore()),
}

func bothEmpty(a, b any) bool {
	va, vb := reflect.ValueOf(a), reflect.ValueOf(b)
	if !va.IsValid() || !vb.IsValid() || va.Type() != vb.Type() {
		return false
	}
	switch va.Kind() {
	case reflect.Map, reflect.Slice:
		return va.Len() == 0 && vb.Len() == 0
	}
	return false
}

// checkSnapshot: from a snapshot at any place and the rest of the log comes the
// state that comes from the whole log, and the same bytes again.
func checkSnapshot(t *rapid.T, cfg Config, log []*events.Event) {
	cut := rapid.IntRange(0, len(log)).Draw(t, "cut")
	snap := fold(cfg, log[:cut]).Snapshot()
	m := New(cfg)
	if err := m.Restore(snap); err != nil {
		t.Fatalf("restore after event %d: %v", cut, err)
	}
	if again := m.Snapshot(); !bytes.Equal(again, snap) {
		t.Fatalf("snapshot after event %d has %d bytes, of what it restores to %d: they differ", cut, len(snap), len(again))
	}
	for _, e := range log[cut:] {
		m.Apply(e)
	}
	full := fold(cfg, log)
	if d := cmp.Diff(full.st, m.st, wholeState); d != "" {
		t.Fatalf("whole fold (-) and snapshot after event %d with the rest (+) differ:\n%s", cut, d)
	}
	if !bytes.Equal(full.Snapshot(), m.Snapshot()) {
		t.Fatalf("snapshots of equal states differ")
	}
}

// filler gives every field of every struct a value of its own.
type filler struct{ rng *rand.Rand }

func (f filler) fill(v reflect.Value, depth int) {
	v = reflect.NewAt(v.Type(), unsafe.Pointer(v.UnsafeAddr())).Elem() // unexported fields too
	switch v.Kind() {
	case reflect.Bool:
		v.SetBool(true)
	case reflect.Uint8:
		v.SetUint(1 + f.rng.Uint64N(200))
	case reflect.Uint32:
		v.SetUint(1 + f.rng.Uint64N(1<<31))
	case reflect.Uint64:
		v.SetUint(1 + f.rng.Uint64())
	case reflect.Int, reflect.Int32:
		v.SetInt(1 + f.rng.Int64N(1<<30))
	case reflect.String:
		v.SetString(fmt.Sprintf("%x/%d", f.rng.Uint64(), f.rng.IntN(9)))
	case reflect.Pointer:
		if v.Type() == reflect.TypeFor[*events.WriteKey]() {
			v.Set(reflect.ValueOf(&events.WriteKey{Kind: 1, Index: f.rng.Uint32(), Key: []byte("k")}))
			return
		}
		v.Set(reflect.New(v.Type().Elem()))
		if k, ok := v.Interface().(*KnownRooms); ok {
			f.fillKnown(k)
			return
		}
		f.fill(v.Elem(), depth)
	case reflect.Struct:
		_, message := v.Addr().Interface().(proto.Message)
		for i := range v.NumField() {
			if message && !v.Type().Field(i).IsExported() { // protobuf's own
				continue
			}
			f.fill(v.Field(i), depth)
		}
	case reflect.Slice:
		n := 1 + f.rng.IntN(3)
		v.Set(reflect.MakeSlice(v.Type(), n, n))
		for i := range n {
			f.fill(v.Index(i), depth+1)
		}
	case reflect.Array:
		for i := range v.Len() {
			f.fill(v.Index(i), depth+1)
		}
	case reflect.Map:
		v.Set(reflect.MakeMap(v.Type()))
		for range 1 + f.rng.IntN(3) {
			k, e := reflect.New(v.Type().Key()).Elem(), reflect.New(v.Type().Elem()).Elem()
			f.fill(k, depth+1)
			f.fill(e, depth+1)
			v.SetMapIndex(k, e)
		}
	default:
		panic("a field of kind " + v.Kind().String() + ": say here how it is filled")
	}
}

// fillKnown does so with receipts of which some were forgotten.
func (f filler) fillKnown(k *KnownRooms) {
	for i := range 5 + f.rng.IntN(3000) {
		r := k.add(f.rng.Uint64())
		room := r.Room
		f.fill(reflect.ValueOf(r).Elem(), 0)
		var end ending
		f.fill(reflect.ValueOf(&end).Elem(), 0)
		c := coder{}
		c.ending(&end)
		r.Room, r.At, r.ending = room, uint64(i), k.texts.put(c.b) //nolint:gosec // an index
		if i%3 == 0 {
			k.queue = append(k.queue, knownRef{room: room, at: r.At})
		}
	}
	k.forget(knownFor+uint64(f.rng.IntN(5)), func(uint64) bool { return false }) //nolint:gosec // small
}

// Equal is for the comparison of states: where a receipt lies is of no account.
func (k *KnownRooms) Equal(o *KnownRooms) bool {
	if k.Len() != o.Len() || !slices.Equal(k.queue, o.queue) {
		return false
	}
	for _, i := range k.byNumber() {
		a := k.slot(i)
		b := o.find(a.Room)
		if b == nil || !bytes.Equal(k.texts.get(a.ending), o.texts.get(b.ending)) {
			return false
		}
		x, y := *a, *b
		x.ending, y.ending = place{}, place{}
		if x != y {
			return false
		}
	}
	return true
}

// No field of the state is forgotten: each is given a value of its own, and
// what the snapshot brings back is the same.
func TestSnapshotHoldsEveryField(t *testing.T) {
	for seed := range uint64(20) {
		f := filler{rand.New(rand.NewPCG(seed, 1))}
		cfg := decodeConfig(events.Policy_POLICY_FENCE)
		m := New(cfg)
		pages, aux := len(m.st.Pages), len(m.st.Aux)
		f.fill(reflect.ValueOf(m.st).Elem(), 0)
		m.st.Pages, m.st.Aux = slices.Grow(m.st.Pages, pages)[:pages], slices.Grow(m.st.Aux, aux)[:aux] // as the pool is
		m.st.tokens, m.st.byNumber, m.st.Receipts = map[uint64]roomKey{}, map[uint64][]roomKey{}, map[uint64][]*Receipt{}
		m.st.index()
		m.st.free, m.st.auxFree = fullRowSet(pages), fullRowSet(aux)
		for i := range m.st.Pages {
			if m.st.Pages[i].owner != 0 {
				m.st.free.remove(i)
			}
		}
		for i := range m.st.Aux {
			if m.st.Aux[i] != 0 {
				m.st.auxFree.remove(i)
			}
		}
		back := New(cfg)
		if err := back.Restore(m.Snapshot()); err != nil {
			t.Fatal(err)
		}
		if d := cmp.Diff(m.st, back.st, wholeState); d != "" {
			t.Fatalf("seed %d: before (-) and after (+):\n%s", seed, d)
		}
	}
}

// derived are the fields that no snapshot holds: of one life, or a second form
// of what it holds.
var derived = []string{"State.free", "State.auxFree", "State.tokens", "State.byNumber", "State.Receipts", "Room.timer", "PRoom.timer",
	"KnownRooms.index", "KnownRooms.slots", "KnownRooms.used", "KnownRooms.free", "KnownRooms.texts", "KnownRooms.coder", "KnownRoom.ending"}

// shape writes the fields and types below t, by name: where a field stands in
// memory is not in a snapshot.
func shape(w io.Writer, t reflect.Type, seen map[reflect.Type]bool) {
	switch t.Kind() {
	case reflect.Pointer, reflect.Slice, reflect.Array:
		shape(w, t.Elem(), seen)
	case reflect.Map:
		shape(w, t.Key(), seen)
		shape(w, t.Elem(), seen)
	case reflect.Struct:
		if seen[t] || t == reflect.TypeFor[events.WriteKey]() {
			return
		}
		seen[t] = true
		fields := reflect.VisibleFields(t)
		slices.SortFunc(fields, func(a, b reflect.StructField) int { return strings.Compare(a.Name, b.Name) })
		for _, f := range fields {
			if slices.Contains(derived, t.Name()+"."+f.Name) {
				continue
			}
			fmt.Fprintf(w, "%s.%s %s\n", t, f.Name, f.Type)
			shape(w, f.Type, seen)
		}
	}
}

// A State of another shape is another snapshot: whoever changes it raises
// snapshotVersion, and puts the sum here that the failure prints.
func TestSnapshotVersionFollowsTheState(t *testing.T) {
	const version, sum = 12, 0xbe67bab9
	h := fnv.New32a()
	seen := map[reflect.Type]bool{}
	for _, t := range []reflect.Type{reflect.TypeFor[State](), reflect.TypeFor[KnownRoom](), reflect.TypeFor[ending]()} {
		shape(h, t, seen)
	}
	if have := h.Sum32(); have != sum || snapshotVersion != version {
		t.Errorf("State has sum %#x in version %d, want %#x in version %d: raise snapshotVersion and note the new sum", have, snapshotVersion, uint32(sum), version)
	}
}

func TestSnapshotOfAnotherIsRefused(t *testing.T) {
	m := New(decodeConfig(events.Policy_POLICY_FENCE))
	good := m.Snapshot()
	other := decodeConfig(events.Policy_POLICY_FENCE)
	other.Node = "e"
	for name, c := range map[string]struct {
		cfg Config
		b   []byte
	}{
		"node":    {other, good},
		"role":    {prefillConfig(), good},
		"version": {m.cfg, append([]byte{snapshotVersion + 1}, good[1:]...)},
		"cut":     {m.cfg, good[:len(good)-1]},
		"longer":  {m.cfg, append(bytes.Clone(good), 0)},
		"empty":   {m.cfg, nil},
	} {
		to := New(c.cfg)
		to.st.LastGen = 7
		if err := to.Restore(c.b); !errors.Is(err, ErrSnapshot) || to.st.LastGen != 7 {
			t.Errorf("%s: %v, the machine has %+v", name, err, to.st)
		}
	}
}

// A pool that shrank owns what is left of it, as the fold of the log does.
func TestSnapshotOfALargerPool(t *testing.T) {
	cfg := decodeConfig(events.Policy_POLICY_FENCE)
	log := []*events.Event{
		{Seq: 1, Hlc: 1 << 20, Room: 5, RoomSeq: 1, Payload: &events.Event_RoomOpened{RoomOpened: &events.RoomOpened{}}},
		{Seq: 2, Hlc: 2 << 20, Room: 5, RoomSeq: 1, Payload: &events.Event_PagesReserved{PagesReserved: &events.PagesReserved{Pages: []uint32{3, 15}, Aux: 2}}},
	}
	snap := fold(cfg, log).Snapshot()
	cfg.Pages = 8
	m := New(cfg)
	if err := m.Restore(snap); err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(fold(cfg, log).st, m.st, wholeState); d != "" {
		t.Errorf("whole fold (-), from the snapshot (+):\n%s", d)
	}
}

func FuzzRestore(f *testing.F) {
	cfg := prefillConfig()
	m := New(cfg)
	m.Step(At(t0), Start{Boot: 7, Incarnation: 1, LogID: make([]byte, 16)})
	m.Step(At(t0), WireRegister{At: "p/0", Address: "10.0.0.2:5000", Session: "s"})
	m.Step(At(t0), WireMetadata{At: "p/0", Room: 1, Address: "10.0.0.2:5000", Pages: []uint32{1, 2, 3}, Required: 1})
	m.Step(At(t0), SendChunk{Room: 1, Rank: "p/0", First: 0, Count: 2})
	f.Add(m.Snapshot())
	f.Add(New(cfg).Snapshot())
	f.Fuzz(func(t *testing.T, b []byte) {
		m := New(cfg)
		if m.Restore(b) != nil {
			return
		}
		again := New(cfg)
		if err := again.Restore(m.Snapshot()); err != nil {
			t.Fatalf("what was restored cannot be written and read: %v", err)
		}
		if !bytes.Equal(again.Snapshot(), m.Snapshot()) {
			t.Fatal("written and read again it is another state")
		}
		m.Apply(&events.Event{Seq: m.st.Seq + 1, Room: 1, RoomSeq: 3, Payload: &events.Event_RoomCleared{RoomCleared: &events.RoomCleared{}}})
	})
}
