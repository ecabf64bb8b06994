package store

import (
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"os"
	"path/filepath"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/cockroachdb/errors"
	"go.etcd.io/bbolt"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protodesc"
	"google.golang.org/protobuf/types/descriptorpb"

	"github.com/pdlog/pdlog/events"
)

const (
	formatVersion = 2 // what is written; 1 had no tip, and its first builds no checksum of the meta
	oldestFormat  = 1
	segmentExt    = ".db"
	spareName     = "next.tmp"
	seqDigits     = 20
)

var (
	bucketFrames = []byte("frames")
	bucketMeta   = []byte("meta")

	keyFormat      = []byte("format")
	keyNode        = []byte("node")
	keyLogID       = []byte("log_id")
	keyFirstSeq    = []byte("first_seq")
	keyChainStart  = []byte("chain_start")
	keyBoot        = []byte("boot")
	keyIncarnation = []byte("incarnation")
	keyDescriptor  = []byte("descriptor")
	keySum         = []byte("crc")        // of the values above
	keyLastSeq     = []byte("last_seq")   // when sealed
	keyChainHead   = []byte("chain_head") // when sealed
)

// segmentMeta is the meta bucket of a segment.
type segmentMeta struct {
	Format      uint32 // of what was read
	Node        string
	LogID       LogID
	FirstSeq    uint64
	ChainStart  uint32
	Boot        uint64 // of the start that created the segment
	Incarnation uint64
	OneSync     bool // written only: for the tip
	Sealed      bool
	LastSeq     uint64 // when sealed
	ChainHead   uint32 // when sealed
}

// segment is one file. Its handle is opened when needed; a sealed one only
// read-only, so that other processes can open it too.
type segment struct {
	path  string
	first uint64

	mu     sync.RWMutex
	db     *bbolt.DB
	closed bool // for good
	gone   bool // retention took it
}

func segmentPath(dir string, first uint64) string {
	return filepath.Join(dir, fmt.Sprintf("%0*d%s", seqDigits, first, segmentExt))
}

// listSegments gives the segment files of dir in order of their first sequence.
func listSegments(dir string) ([]*segment, error) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, errors.Wrap(err, "list segments")
	}
	var segs []*segment
	for _, e := range entries {
		name, ok := strings.CutSuffix(e.Name(), segmentExt)
		if !ok || len(name) != seqDigits {
			continue
		}
		first, err := strconv.ParseUint(name, 10, 64)
		if err != nil || first == 0 {
			continue
		}
		segs = append(segs, &segment{path: filepath.Join(dir, e.Name()), first: first})
	}
	slices.SortFunc(segs, func(a, b *segment) int {
		if a.first < b.first {
			return -1
		}
		return 1
	})
	return segs, nil
}

// view runs fn in a short read transaction, opening the segment read-only if
// it is not open. Damage that makes bbolt panic comes back as an error.
func (s *segment) view(fn func(*bbolt.Tx) error) error {
	s.mu.RLock()
	for s.db == nil {
		s.mu.RUnlock()
		s.mu.Lock()
		if s.closed {
			gone := s.gone
			s.mu.Unlock()
			if gone {
				return errors.Wrapf(ErrBelow, "read %s", s.path)
			}
			return ErrClosed
		}
		if s.db == nil {
			db, err := openReadOnly(s.path)
			if err != nil {
				s.mu.Unlock()
				return err
			}
			s.db = db
		}
		s.mu.Unlock()
		s.mu.RLock()
	}
	defer s.mu.RUnlock()
	return guard(s.path, func() error { return s.db.View(fn) })
}

func (s *segment) close() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.db == nil {
		return nil
	}
	db := s.db
	s.db = nil
	return errors.Wrapf(db.Close(), "close %s", s.path)
}

// retire says why the segment will be closed.
func (s *segment) retire() {
	s.mu.Lock()
	s.gone = true
	s.mu.Unlock()
}

// shut closes the segment for good.
func (s *segment) shut() error {
	s.mu.Lock()
	s.closed = true
	s.mu.Unlock()
	return s.close()
}

// guard turns a panic of bbolt on a damaged page, or a fault on a mapping
// behind the end of a truncated file, into a CorruptError (store.md 2.5).
func guard(path string, fn func() error) (err error) {
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	defer func() {
		if r := recover(); r != nil {
			err = &CorruptError{File: path, Err: errors.Newf("bbolt: %v", r)}
		}
	}()
	return fn()
}

const lockTimeout = time.Second // a handle that is being demoted is closed within milliseconds

func openReadOnly(path string) (db *bbolt.DB, err error) {
	if err := prefetch(path); err != nil {
		return nil, err
	}
	err = guard(path, func() error {
		db, err = bbolt.Open(path, 0o644, &bbolt.Options{ReadOnly: true, Timeout: lockTimeout})
		return err
	})
	return db, errors.Wrapf(err, "open %s", path)
}

// openWritable opens or creates a segment for the committer. bbolt's own two
// syncs per commit are on, the freelist is synced (store.md 2.4), and the
// mapping is large enough that a reader never stalls a commit.
func openWritable(path string, segmentBytes int64) (db *bbolt.DB, err error) {
	err = guard(path, func() error {
		db, err = bbolt.Open(path, 0o644, &bbolt.Options{
			Timeout:         lockTimeout,
			FreelistType:    bbolt.FreelistMapType,
			InitialMmapSize: int(2 * segmentBytes),
			NoStatistics:    true,
		})
		return err
	})
	return db, errors.Wrapf(err, "open %s", path)
}

// prefetch reads the file once: bbolt maps with MADV_RANDOM, so a cold scan
// without it is some ten times slower (store.md 2.4).
func prefetch(path string) error {
	f, err := os.Open(path)
	if err != nil {
		return errors.Wrap(err, "prefetch segment")
	}
	defer f.Close()
	buf := make([]byte, 1<<20)
	for {
		n, err := f.Read(buf)
		if n == 0 || err != nil {
			return nil // a read error shows up again, with its place, when pages are verified
		}
	}
}

// putMeta creates the buckets and writes what is known when a segment starts.
func putMeta(db *bbolt.DB, m segmentMeta, descriptor []byte) error {
	return db.Update(func(tx *bbolt.Tx) error {
		if _, err := tx.CreateBucketIfNotExists(bucketFrames); err != nil {
			return err
		}
		b, err := tx.CreateBucketIfNotExists(bucketMeta)
		if err != nil {
			return err
		}
		sum := uint32(0)
		for _, kv := range []struct{ k, v []byte }{
			{keyFormat, be32(formatVersion)},
			{keyNode, []byte(m.Node)},
			{keyLogID, m.LogID[:]},
			{keyFirstSeq, be64(m.FirstSeq)},
			{keyChainStart, be32(m.ChainStart)},
			{keyBoot, be64(m.Boot)},
			{keyIncarnation, be64(m.Incarnation)},
			{keyDescriptor, descriptor},
		} {
			if err := b.Put(kv.k, kv.v); err != nil {
				return err
			}
			sum = metaSum(sum, kv.v)
		}
		if err := b.Put(keySum, be32(sum)); err != nil {
			return err
		}
		return putTip(tx, tip{seq: m.FirstSeq - 1, chain: m.ChainStart, incarnation: m.Incarnation, oneSync: m.OneSync})
	})
}

// summed are the meta values under keySum, in its order. The chain vouches for
// those of the seal.
var summed = [][]byte{keyFormat, keyNode, keyLogID, keyFirstSeq, keyChainStart, keyBoot, keyIncarnation, keyDescriptor}

// withoutSum: the meta has every key of the first builds, which wrote no
// checksum, and no other. A key that is not known may be the checksum's own,
// damaged.
func withoutSum(b map[string][]byte) bool {
	have := len(summed)
	for _, key := range [][]byte{keyLastSeq, keyChainHead} {
		if b[string(key)] != nil {
			have++
		}
	}
	for _, key := range summed {
		if b[string(key)] == nil {
			return false
		}
	}
	return len(b) == have
}

// metaSum goes on with CRC-32C over a value and its length: bbolt has no
// checksum over its data, and a node's name is as good as an event.
func metaSum(sum uint32, v []byte) uint32 {
	return crc32.Update(crc32.Update(sum, headTable, be32(uint32(len(v)))), headTable, v)
}

// putSeal ends a segment at record last.
func putSeal(tx *bbolt.Tx, last uint64, chain uint32, incarnation uint64) error {
	b := tx.Bucket(bucketMeta)
	if err := b.Put(keyLastSeq, be64(last)); err != nil {
		return err
	}
	if err := b.Put(keyChainHead, be32(chain)); err != nil {
		return err
	}
	return putTip(tx, tip{seq: last, chain: chain, incarnation: incarnation})
}

func getMeta(path string, b map[string][]byte) (segmentMeta, error) {
	bad := func(format string, args ...any) (segmentMeta, error) {
		return segmentMeta{}, &CorruptError{File: path, Err: errors.Newf("meta: "+format, args...)}
	}
	if b == nil {
		return bad("buckets are missing")
	}
	format := b[string(keyFormat)]
	if len(format) != 4 {
		return bad("no format version")
	}
	version := binary.BigEndian.Uint32(format)
	if version < oldestFormat || version > formatVersion {
		return segmentMeta{}, errors.Wrapf(ErrFormat, "%s has version %d, this build reads %d to %d", path, version, oldestFormat, formatVersion)
	}
	if have := b[string(keySum)]; version > 1 || have != nil || !withoutSum(b) {
		sum := uint32(0)
		for _, key := range summed {
			sum = metaSum(sum, b[string(key)])
		}
		if len(have) != 4 || binary.BigEndian.Uint32(have) != sum {
			return bad("checksum is %x, want %08x", have, sum)
		}
	}
	m := segmentMeta{Format: version, Node: string(b[string(keyNode)])}
	if copy(m.LogID[:], b[string(keyLogID)]) != len(m.LogID) {
		return bad("no log id")
	}
	for _, f := range []struct {
		key []byte
		dst *uint64
	}{{keyFirstSeq, &m.FirstSeq}, {keyBoot, &m.Boot}, {keyIncarnation, &m.Incarnation}} {
		v := b[string(f.key)]
		if len(v) != 8 {
			return bad("no %s", f.key)
		}
		*f.dst = binary.BigEndian.Uint64(v)
	}
	v := b[string(keyChainStart)]
	if len(v) != 4 {
		return bad("no chain at start")
	}
	m.ChainStart = binary.BigEndian.Uint32(v)
	last, chain := b[string(keyLastSeq)], b[string(keyChainHead)]
	if len(last) == 8 && len(chain) == 4 {
		m.Sealed, m.LastSeq, m.ChainHead = true, binary.BigEndian.Uint64(last), binary.BigEndian.Uint32(chain)
	}
	return m, nil
}

// descriptorSet is the schema as it was compiled in, for whoever opens the
// file in five years.
func descriptorSet() ([]byte, error) {
	set := &descriptorpb.FileDescriptorSet{File: []*descriptorpb.FileDescriptorProto{
		protodesc.ToFileDescriptorProto((&events.Event{}).ProtoReflect().Descriptor().ParentFile()),
	}}
	b, err := proto.MarshalOptions{Deterministic: true}.Marshal(set)
	return b, errors.Wrap(err, "encode schema")
}

func be64(v uint64) []byte { return binary.BigEndian.AppendUint64(nil, v) }
func be32(v uint32) []byte { return binary.BigEndian.AppendUint32(nil, v) }
