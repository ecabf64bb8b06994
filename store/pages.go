package store

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"hash/fnv"
	"os"
	"slices"

	"github.com/cockroachdb/errors"
	"golang.org/x/sys/unix"
)

// pages reads a bbolt file without bbolt: total on any bytes, no mapping, no
// panic, no endless loop. It is what a damaged or foreign segment is read
// with (docs/log-format.md has the byte table); bbolt itself follows whatever
// a damaged page says (store.md 2.5).
type pages struct {
	path string
	data []byte // the whole file, or nil
	file *os.File
	size int64

	windows *windows // what was read of a stream; nil = as much as is asked for
	opened  uint64   // the newest transaction when it was opened

	pageSize int64
	boltMeta            // the one that is read
	metas    []boltMeta // the valid ones, newest first
	budget   uint64     // pages that a walk may still visit: no more than there are
}

// boltMeta is what a meta page says.
type boltMeta struct {
	root uint64 // page of the root bucket
	high uint64 // pages from here on are unused
	txid uint64
}

const (
	bboltMagic   = 0xED0CDAED
	bboltVersion = 2

	pageHeaderLen  = 16
	pageElementLen = 16
	bucketValueLen = 16
	metaLen        = 64
	metaSumOffset  = 56

	flagBranch = 0x01
	flagLeaf   = 0x02
	flagBucket = 0x01 // of a leaf element

	maxDepth = 32
)

// errPages is the cause of every CorruptError of this reader.
var errPages = errors.New("bbolt page is damaged")

// openPages reads the whole file, which also brings it into the page cache.
// A file that a live node is writing gives unix.EWOULDBLOCK.
func openPages(path string) (*pages, error) {
	p, err := openPagesPart(path)
	if err != nil {
		return nil, err
	}
	defer p.close() //nolint:errcheck // read-only
	data := make([]byte, p.size)
	if n, err := p.file.ReadAt(data, 0); err != nil {
		return nil, &CorruptError{File: path, Err: errors.Wrapf(err, "read %d of %d bytes", n, p.size)}
	}
	p.data = data
	return p, nil
}

// openPagesPart opens the file and reads pages as they are asked for.
func openPagesPart(path string) (*pages, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, errors.Wrap(err, "open segment")
	}
	p, err := func() (*pages, error) {
		if err := flock(f, unix.LOCK_SH|unix.LOCK_NB); err != nil { // bbolt's own lock
			return nil, errors.Wrapf(err, "lock %s", path)
		}
		st, err := f.Stat()
		if err != nil {
			return nil, errors.Wrap(err, "open segment")
		}
		p := &pages{path: path, file: f, size: st.Size()}
		return p, p.findMeta()
	}()
	if err != nil {
		return nil, errors.CombineErrors(err, f.Close())
	}
	return p, nil
}

// openPagesStream opens the file for one walk in bounded memory: it reads ahead
// of it, and holds no lock meanwhile, so that a node can start. What it reads is
// the state that the file has now; if a node writes to the file before the walk
// has ended, pages of that state may be gone: see changed.
func openPagesStream(path string) (*pages, error) {
	p, err := openPagesPart(path)
	if err != nil {
		return nil, err
	}
	p.windows, p.opened = &windows{}, p.txid
	if err := unix.Flock(int(p.file.Fd()), unix.LOCK_UN); err != nil { //nolint:gosec // a descriptor
		return nil, errors.CombineErrors(errors.Wrapf(err, "unlock %s", path), p.close())
	}
	return p, nil
}

// changed says whether the file was written to, or is about to be, since it was
// opened.
func (p *pages) changed() bool {
	now, err := openPagesPart(p.path)
	if err != nil {
		return errors.Is(err, unix.EWOULDBLOCK)
	}
	defer now.close() //nolint:errcheck // read-only
	return now.txid != p.opened
}

func (p *pages) close() error {
	if p.file == nil {
		return nil
	}
	f := p.file
	p.file = nil
	return errors.Wrap(f.Close(), "close segment")
}

func (p *pages) bad(format string, args ...any) error {
	return &CorruptError{File: p.path, Err: errors.Wrapf(errPages, format, args...)}
}

// read gives n bytes at off. Those of a stream are good until the next read.
func (p *pages) read(off, n int64) ([]byte, error) {
	if off < 0 || n < 0 || off > p.size || n > p.size-off {
		return nil, p.bad("%d bytes at %d are outside the file of %d", n, off, p.size)
	}
	if p.data != nil {
		return p.data[off : off+n : off+n], nil
	}
	var b []byte
	var err error
	if p.windows != nil {
		b, err = p.windows.read(p.file, p.size, off, n)
	} else {
		b = make([]byte, n)
		_, err = p.file.ReadAt(b, off)
	}
	if err != nil {
		return nil, &CorruptError{File: p.path, Err: errors.Wrapf(err, "read %d bytes at %d", n, off)}
	}
	return b, nil
}

// keep is b for longer than until the next read.
func (p *pages) keep(b []byte) []byte {
	if p.windows == nil {
		return b
	}
	return bytes.Clone(b)
}

// findMeta takes the valid meta page with the higher transaction id.
func (p *pages) findMeta() error {
	try := func(off, wantSize int64) {
		b, err := p.read(off+pageHeaderLen, metaLen)
		if err != nil {
			return
		}
		le := binary.LittleEndian
		sum := fnv.New64a()
		_, _ = sum.Write(b[:metaSumOffset])
		size := int64(le.Uint32(b[8:]))
		if le.Uint32(b) != bboltMagic || le.Uint32(b[4:]) != bboltVersion || le.Uint64(b[metaSumOffset:]) != sum.Sum64() ||
			size < 512 || size > 1<<16 || size&(size-1) != 0 || (wantSize != 0 && size != wantSize) {
			return
		}
		p.pageSize = size
		p.metas = append(p.metas, boltMeta{root: le.Uint64(b[16:]), high: le.Uint64(b[40:]), txid: le.Uint64(b[48:])})
	}
	try(0, 0)
	if len(p.metas) > 0 {
		try(p.pageSize, p.pageSize)
	} else {
		for size := int64(1024); size <= 1<<16 && len(p.metas) == 0; size *= 2 {
			try(size, size)
		}
	}
	if len(p.metas) == 0 {
		return p.bad("no valid meta page in a file of %d bytes", p.size)
	}
	slices.SortFunc(p.metas, func(a, b boltMeta) int { return cmp.Compare(b.txid, a.txid) })
	p.newest()
	return nil
}

func (p *pages) newest() { p.boltMeta = p.metas[0] }

// older goes to the root of the transaction before; false when its meta page is
// not there.
func (p *pages) older() bool {
	if len(p.metas) < 2 || p.metas[1].txid+1 != p.metas[0].txid {
		return false
	}
	p.boltMeta = p.metas[1]
	return true
}

// page gives the bytes of a page with its overflow.
func (p *pages) page(id uint64) ([]byte, error) {
	if p.budget == 0 {
		return nil, p.bad("the tree has more pages than the file")
	}
	p.budget--
	if id < 2 || id >= p.high || id > uint64(p.size/p.pageSize) {
		return nil, p.bad("page %d of %d", id, p.high)
	}
	off := int64(id) * p.pageSize
	h, err := p.read(off, pageHeaderLen)
	if err != nil {
		return nil, err
	}
	if have := binary.LittleEndian.Uint64(h); have != id {
		return nil, p.bad("page %d says it is page %d", id, have)
	}
	return p.read(off, (int64(binary.LittleEndian.Uint32(h[12:]))+1)*p.pageSize)
}

// walkPage visits the pairs of a page in order. A leaf is visited with its
// element flags. lastOnly goes down the last branch alone.
func (p *pages) walkPage(b []byte, depth int, lastOnly bool, visit func(flags uint32, k, v []byte) error) error {
	le := binary.LittleEndian
	flags, count := le.Uint16(b[8:]), int(le.Uint16(b[10:]))
	if depth > maxDepth {
		return p.bad("tree is deeper than %d", maxDepth)
	}
	if pageHeaderLen+count*pageElementLen > len(b) {
		return p.bad("page %d says it has %d elements", le.Uint64(b), count)
	}
	from := 0
	if lastOnly && count > 0 {
		from = count - 1
	}
	if flags == flagBranch { // its children are read while it is walked
		b = p.keep(b)
	}
	for i := from; i < count; i++ {
		at := pageHeaderLen + i*pageElementLen
		e := b[at:]
		switch flags {
		case flagBranch:
			child, err := p.page(le.Uint64(e[8:]))
			if err != nil {
				return err
			}
			if err := p.walkPage(child, depth+1, lastOnly, visit); err != nil {
				return err
			}
		case flagLeaf:
			pos, ks, vs := uint64(at)+uint64(le.Uint32(e[4:])), uint64(le.Uint32(e[8:])), uint64(le.Uint32(e[12:]))
			if pos+ks+vs > uint64(len(b)) {
				return p.bad("element %d of page %d is outside of it", i, le.Uint64(b))
			}
			if err := visit(le.Uint32(e), b[pos:pos+ks:pos+ks], b[pos+ks:pos+ks+vs:pos+ks+vs]); err != nil {
				return err
			}
		default:
			return p.bad("page %d has flags %#x", le.Uint64(b), flags)
		}
	}
	return nil
}

// bucket visits the pairs of a top-level bucket in order; ok = false when there
// is none of that name.
func (p *pages) bucket(name []byte, lastOnly bool, visit func(k, v []byte) error) (ok bool, err error) {
	p.budget = p.high
	var val []byte
	root, err := p.page(p.root)
	if err != nil {
		return false, err
	}
	err = p.walkPage(root, 0, false, func(flags uint32, k, v []byte) error {
		if flags&flagBucket != 0 && bytes.Equal(k, name) {
			val = p.keep(v) // the bucket itself, when it is small
		}
		return nil
	})
	if err != nil || val == nil {
		return false, err
	}
	if len(val) < bucketValueLen {
		return false, p.bad("bucket %s has %d bytes", name, len(val))
	}
	var top []byte
	if id := binary.LittleEndian.Uint64(val); id != 0 {
		if top, err = p.page(id); err != nil {
			return false, err
		}
	} else if top = val[bucketValueLen:]; len(top) < pageHeaderLen {
		return false, p.bad("inline bucket %s has %d bytes", name, len(val))
	}
	return true, p.walkPage(top, 0, lastOnly, func(flags uint32, k, v []byte) error {
		if flags&flagBucket != 0 {
			return p.bad("bucket %s holds a bucket", name)
		}
		return visit(k, v)
	})
}

// view is the segment as the checker reads it.
func (p *pages) view() (segmentView, error) {
	meta := map[string][]byte{}
	ok, err := p.bucket(bucketMeta, false, func(k, v []byte) error {
		meta[string(k)] = p.keep(v)
		return nil
	})
	if err != nil {
		return segmentView{}, err
	}
	if !ok {
		meta = nil
	}
	var tip []byte
	if _, err := p.bucket(bucketTip, false, func(k, v []byte) error {
		if bytes.Equal(k, keyTip) {
			tip = p.keep(v)
		}
		return nil
	}); err != nil {
		return segmentView{}, err
	}
	return segmentView{
		meta: meta,
		tip:  tip,
		txid: p.txid,
		frames: func(visit func(k, v []byte) error) error {
			ok, err := p.bucket(bucketFrames, false, visit)
			if err == nil && !ok {
				err = p.bad("bucket of frames is missing")
			}
			return err
		},
		last: func() (v []byte, err error) {
			_, err = p.bucket(bucketFrames, true, func(_, b []byte) error { v = p.keep(b); return nil })
			return v, err
		},
	}, nil
}
