package projector

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"

	"github.com/pdlog/pdlog/events"
)

// coder walks a state in one order, to write it or to read it: what is written
// is what is read because both are the same walk. Numbers are uvarints, byte
// strings carry their length, maps go by sorted key, so equal states give
// equal bytes. Reading is total: any bytes give a state or an error, and memory
// in proportion to their number.
type coder struct {
	b       []byte // written so far, or left to read
	reading bool
	log     []byte // read last
	err     error
}

var errSnapshotShort = errors.New("it ends too early")

func (c *coder) fail(err error) {
	if c.err == nil {
		c.err = err
	}
	c.b = nil
}

func (c *coder) uvarint(v uint64) uint64 {
	if !c.reading {
		c.b = binary.AppendUvarint(c.b, v)
		return v
	}
	v, n := binary.Uvarint(c.b)
	if n <= 0 {
		c.fail(errSnapshotShort)
		return 0
	}
	c.b = c.b[n:]
	return v
}

// u64, as all that writes, leaves what it writes untouched: views read it at the
// same time.
func (c *coder) u64(p *uint64) {
	if v := c.uvarint(*p); c.reading {
		*p = v
	}
}

// number is any other integer that is never negative.
func number[T ~int | ~int32 | ~uint32 | ~uint8](c *coder, p *T) {
	v := c.uvarint(uint64(*p)) //nolint:gosec // not negative
	if !c.reading {
		return
	}
	if *p = T(v); uint64(*p) != v {
		c.fail(fmt.Errorf("number %d is too large for its place", v))
	}
}

func (c *coder) flag(p *bool) {
	v := uint64(0)
	if *p {
		v = 1
	}
	if v = c.uvarint(v); v > 1 {
		c.fail(fmt.Errorf("flag is %d", v))
	}
	if c.reading {
		*p = v == 1
	}
}

// count is the length of something whose elements take a byte each at least.
func (c *coder) count(n int) int {
	v := c.uvarint(uint64(n)) //nolint:gosec // a length
	if c.reading && v > uint64(len(c.b)) {
		c.fail(errSnapshotShort)
		return 0
	}
	return int(v) //nolint:gosec // checked
}

func (c *coder) bytes(p *[]byte) {
	n := c.count(len(*p))
	if !c.reading {
		c.b = append(c.b, *p...)
		return
	}
	*p = nil
	if n > 0 {
		*p = slices.Clone(c.b[:n])
		c.b = c.b[n:]
	}
}

// blob is bytes that belong to what is read, or to their owner.
func (c *coder) blob(b []byte) []byte {
	n := c.count(len(b))
	if !c.reading {
		c.b = append(c.b, b...)
		return b
	}
	b = c.b[:n:n]
	c.b = c.b[n:]
	return b
}

func text[T ~string](c *coder, p *T) {
	n := c.count(len(*p))
	if !c.reading {
		c.b = append(c.b, *p...)
		return
	}
	*p = T(c.b[:n])
	c.b = c.b[n:]
}

// word is a text that many structs have in common.
func word[T ~string](c *coder, p *T) {
	if text(c, p); c.reading {
		*p = shared(*p)
	}
}

// logID is bytes that are those of the struct before, mostly.
func (c *coder) logID(p *[]byte) {
	if c.bytes(p); !c.reading {
		return
	}
	if bytes.Equal(*p, c.log) {
		*p = c.log
	} else {
		c.log = *p
	}
}

// maybe is a pointer that may be nil.
func maybe[T any](c *coder, p **T, one func(*T)) {
	have := *p != nil
	if c.flag(&have); !have {
		if c.reading {
			*p = nil
		}
		return
	}
	if c.reading {
		*p = new(T)
	}
	one(*p)
}

func list[T any](c *coder, p *[]T, one func(*T)) {
	n := c.count(len(*p))
	if c.reading {
		*p = nil
	}
	for i := 0; i < n && c.err == nil; i++ {
		if c.reading {
			*p = append(*p, *new(T))
		}
		one(&(*p)[i])
	}
}

// pointers is a list of structs that have one owner.
func pointers[T any](c *coder, p *[]*T, one func(*T)) {
	list(c, p, func(e **T) {
		if c.reading {
			*e = new(T)
		}
		one(*e)
	})
}

func table[K uint64 | ~string, V any](c *coder, p *map[K]V, key func(*K), value func(K, *V)) {
	n := c.count(len(*p))
	if !c.reading {
		for _, k := range sortedKeys(*p) {
			v := (*p)[k]
			key(&k)
			value(k, &v)
		}
		return
	}
	*p = map[K]V{}
	for i := 0; i < n && c.err == nil; i++ {
		var k K
		var v V
		key(&k)
		value(k, &v)
		if _, twice := (*p)[k]; twice {
			c.fail(fmt.Errorf("key %v stands twice", k))
			return
		}
		(*p)[k] = v
	}
}

func numbered[V any](c *coder, p *map[uint64]V, value func(uint64, *V)) { table(c, p, c.u64, value) }

func named[K ~string, V any](c *coder, p *map[K]V, value func(K, *V)) {
	table(c, p, func(k *K) { text(c, k) }, value)
}

// whole is a table of structs that have one owner.
func whole[V any](c *coder, one func(*V)) func(uint64, **V) {
	return func(_ uint64, p **V) {
		if c.reading {
			*p = new(V)
		}
		one(*p)
	}
}

func (c *coder) pages(p *[]uint32) { list(c, p, func(v *uint32) { number(c, v) }) }

func (c *coder) ranks(p *[]RankID) { list(c, p, func(v *RankID) { text(c, v) }) }

// writeKey is the one protobuf message that a state holds as it came.
func (c *coder) writeKey(k *events.WriteKey) {
	var b []byte
	if !c.reading {
		var err error
		if b, err = k.MarshalVT(); err != nil {
			c.fail(err)
			return
		}
	}
	c.bytes(&b)
	if c.reading && c.err == nil {
		if err := k.UnmarshalVT(b); err != nil {
			c.fail(err)
		}
	}
}
