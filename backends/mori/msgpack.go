package mori

import (
	"encoding/binary"
	"unicode/utf8"
)

// decoder reads the few msgpack forms that descriptions use: arrays, strings,
// bins and integers, in any width. The first element of another form, or one
// that is cut, sets bad; what is read after that has no meaning. It allocates
// for strings alone, and only for bytes that are there.
type decoder struct {
	b   []byte
	bad bool
}

func (d *decoder) take(n uint64) []byte {
	if d.bad || n > uint64(len(d.b)) {
		d.bad = true
		return nil
	}
	head := d.b[:n]
	d.b = d.b[n:]
	return head
}

// lead reads the first byte of an element; 0xc1, which msgpack never uses, if
// there is none.
func (d *decoder) lead() byte {
	if b := d.take(1); b != nil {
		return b[0]
	}
	return 0xc1
}

// number reads n bytes, big-endian.
func (d *decoder) number(n uint64) uint64 {
	var v uint64
	for _, c := range d.take(n) {
		v = v<<8 | uint64(c)
	}
	return v
}

// array reads an array's head and returns its length as announced; it may be
// more than there is.
func (d *decoder) array() uint64 {
	switch c := d.lead(); {
	case c&0xf0 == 0x90:
		return uint64(c & 0x0f)
	case c == 0xdc:
		return d.number(2)
	case c == 0xdd:
		return d.number(4)
	}
	d.bad = true
	return 0
}

// list reads the head of an array that must be complete, each element at least
// minLen bytes long; so its length is one that the input can hold.
func (d *decoder) list(minLen uint64) int {
	n := d.array()
	if n > uint64(len(d.b))/minLen {
		d.bad = true
		return 0
	}
	return int(n)
}

// text reads a string, which must be UTF-8.
func (d *decoder) text() string {
	var n uint64
	switch c := d.lead(); {
	case c&0xe0 == 0xa0:
		n = uint64(c & 0x1f)
	case c >= 0xd9 && c <= 0xdb:
		n = d.number(1 << (c - 0xd9))
	default:
		d.bad = true
		return ""
	}
	b := d.take(n)
	if !utf8.Valid(b) {
		d.bad = true
		return ""
	}
	return string(b)
}

// bin reads a bin; the result is part of the input.
func (d *decoder) bin() []byte {
	c := d.lead()
	if c < 0xc4 || c > 0xc6 {
		d.bad = true
		return nil
	}
	return d.take(d.number(1 << (c - 0xc4)))
}

// integer reads an integer of any form. A negative one is returned as its two's
// complement with neg set.
func (d *decoder) integer() (v uint64, neg bool) {
	switch c := d.lead(); {
	case c <= 0x7f: // positive fixint
		return uint64(c), false
	case c >= 0xe0: // negative fixint
		return uint64(int64(int8(c))), true
	case c >= 0xcc && c <= 0xcf: // uint8 … uint64
		return d.number(1 << (c - 0xcc)), false
	case c >= 0xd0 && c <= 0xd3: // int8 … int64
		width := uint64(1) << (c - 0xd0)
		shift := 64 - 8*width
		s := int64(d.number(width)<<shift) >> shift
		return uint64(s), s < 0
	}
	d.bad = true
	return 0, false
}

// uint reads an integer 0 … limit.
func (d *decoder) uint(limit uint64) uint64 {
	v, neg := d.integer()
	if neg || v > limit {
		d.bad = true
	}
	return v
}

// int32From reads an integer low … 2^31-1.
func (d *decoder) int32From(low int64) int32 {
	v, neg := d.integer()
	s := int64(v)
	if !neg && v > maxI31 || neg && s < low {
		d.bad = true
		return 0
	}
	return int32(s)
}

// The writers use the shortest form.

func appendArray(b []byte, n int) []byte {
	switch {
	case n < 16:
		return append(b, 0x90|byte(n))
	case n < 1<<16:
		return binary.BigEndian.AppendUint16(append(b, 0xdc), uint16(n))
	}
	return binary.BigEndian.AppendUint32(append(b, 0xdd), uint32(n))
}

func appendStr(b []byte, s string) []byte {
	if len(s) < 32 {
		return append(append(b, 0xa0|byte(len(s))), s...)
	}
	return append(appendLen(b, 0xd9, len(s)), s...)
}

func appendBin(b, v []byte) []byte {
	return append(appendLen(b, 0xc4, len(v)), v...)
}

// appendLen writes a length behind the first of the three codes of its family.
func appendLen(b []byte, code byte, n int) []byte {
	switch {
	case n < 1<<8:
		return append(b, code, byte(n))
	case n < 1<<16:
		return binary.BigEndian.AppendUint16(append(b, code+1), uint16(n))
	}
	return binary.BigEndian.AppendUint32(append(b, code+2), uint32(n))
}

func appendUint(b []byte, v uint64) []byte {
	switch {
	case v < 1<<7:
		return append(b, byte(v))
	case v < 1<<8:
		return append(b, 0xcc, byte(v))
	case v < 1<<16:
		return binary.BigEndian.AppendUint16(append(b, 0xcd), uint16(v))
	case v < 1<<32:
		return binary.BigEndian.AppendUint32(append(b, 0xce), uint32(v))
	}
	return binary.BigEndian.AppendUint64(append(b, 0xcf), v)
}

// appendInt writes v, which is not below -1: the one negative number of the
// format.
func appendInt(b []byte, v int32) []byte {
	if v < 0 {
		return append(b, 0xff)
	}
	return appendUint(b, uint64(v))
}
