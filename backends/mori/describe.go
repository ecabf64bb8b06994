package mori

import (
	"slices"
	"unicode/utf8"

	"github.com/pdlog/pdlog/backends"
)

const (
	engineElements = 6                // read and written (wire.md 1.2)
	descRead       = 7                // read; the rest differs between versions
	descWritten    = 15               // the form since July 2026
	descMinLen     = 2 + 1 + descRead // bytes: bin head, array head, a byte for each element read
	handleLen      = 64               // bytes of an ipc or fabric handle
	maxI31         = 1<<31 - 1
	maxU63         = 1<<63 - 1
)

// parseEngine reads an EngineDesc: an array of at least six. What follows the
// sixth element is not looked at.
func parseEngine(b []byte) (*backends.Engine, bool) {
	d := decoder{b: b}
	if d.array() < engineElements {
		return nil, false
	}
	e := &backends.Engine{
		Key:      d.text(),
		NodeID:   d.text(),
		Hostname: d.text(),
		Host:     d.text(),
		Port:     uint16(d.uint(65535)),
		PID:      d.uint(maxU63),
	}
	return e, !d.bad && isName(e.Key)
}

// parseDescs reads an array of bin, each holding a MemoryDesc; the array fills
// the frame. An empty frame is an empty list.
func parseDescs(b []byte) ([]backends.MemDesc, bool) {
	if len(b) == 0 {
		return []backends.MemDesc{}, true
	}
	d := decoder{b: b}
	list := d.descs()
	return list, !d.bad && len(d.b) == 0
}

// parseDescLists reads an array of such arrays.
func parseDescLists(b []byte) ([][]backends.MemDesc, bool) {
	lists := [][]backends.MemDesc{}
	if len(b) == 0 {
		return lists, true
	}
	d := decoder{b: b}
	n := d.list(1)
	lists = slices.Grow(lists, n)
	for ; n > 0 && !d.bad; n-- {
		lists = append(lists, d.descs())
	}
	return lists, !d.bad && len(d.b) == 0
}

func (d *decoder) descs() []backends.MemDesc {
	n := d.list(descMinLen)
	list := make([]backends.MemDesc, 0, n)
	for ; n > 0 && !d.bad; n-- {
		inner := decoder{b: d.bin()}
		if inner.array() < descRead {
			d.bad = true
			break
		}
		m := backends.MemDesc{
			EngineKey:   inner.text(),
			ID:          inner.uint(maxU63),
			DeviceID:    inner.int32From(-1),
			DeviceBusID: inner.text(),
			Data:        inner.uint(1<<64 - 1),
			Size:        inner.uint(1<<64 - 1),
			Loc:         uint8(inner.uint(255)),
		}
		d.bad = d.bad || inner.bad
		list = append(list, m)
	}
	return list
}

func appendEngine(b []byte, e *backends.Engine) ([]byte, bool) {
	if e == nil || !isName(e.Key) || e.PID > maxU63 ||
		!utf8.ValidString(e.NodeID) || !utf8.ValidString(e.Hostname) || !utf8.ValidString(e.Host) {
		return nil, false
	}
	b = appendArray(b, engineElements)
	for _, s := range [...]string{e.Key, e.NodeID, e.Hostname, e.Host} {
		b = appendStr(b, s)
	}
	return appendUint(appendUint(b, uint64(e.Port)), e.PID), true
}

// appendDescs writes a list of descriptors. No descriptors are an empty frame
// at the top; inside a list of lists they are an empty array.
func appendDescs(b []byte, list []backends.MemDesc, inner bool) ([]byte, bool) {
	if len(list) == 0 && !inner {
		return b, true
	}
	b = appendArray(b, len(list))
	for i := range list {
		m := &list[i]
		if m.ID > maxU63 || m.DeviceID < -1 || !utf8.ValidString(m.EngineKey) || !utf8.ValidString(m.DeviceBusID) {
			return nil, false
		}
		b = appendBin(b, appendDesc(nil, m))
	}
	return b, true
}

func appendDescLists(b []byte, lists [][]backends.MemDesc) ([]byte, bool) {
	if len(lists) == 0 {
		return b, true
	}
	b = appendArray(b, len(lists))
	for _, list := range lists {
		var ok bool
		if b, ok = appendDescs(b, list, true); !ok {
			return nil, false
		}
	}
	return b, true
}

// appendDesc writes the seven elements that are known and neutral values for
// the eight that belong to Mori's own process-local handles.
func appendDesc(b []byte, m *backends.MemDesc) []byte {
	var noHandle [handleLen]byte
	b = appendArray(b, descWritten)
	b = appendStr(b, m.EngineKey)
	b = appendUint(b, m.ID)
	b = appendInt(b, m.DeviceID)
	b = appendStr(b, m.DeviceBusID)
	b = appendUint(b, m.Data)
	b = appendUint(b, m.Size)
	b = appendUint(b, uint64(m.Loc))
	b = appendBin(b, noHandle[:]) // ipcHandle
	b = appendInt(b, -1)          // numaNode
	b = appendUint(b, 0)          // ipcOffset
	b = appendBin(b, noHandle[:]) // fabricHandle
	b = appendInt(b, -1)          // vpodId
	b = appendStr(b, "")          // vpodPpodId
	b = appendUint(b, 0)          // fabricOffset
	return appendUint(b, 0)       // fabricAllocSize
}

func isName(s string) bool {
	for i := range len(s) {
		if s[i] < 0x21 || s[i] > 0x7e {
			return false
		}
	}
	return s != ""
}
