package store

import (
	"encoding/binary"
	"hash/crc32"

	"github.com/cockroachdb/errors"
	"go.etcd.io/bbolt"

	"github.com/pdlog/pdlog/events"
)

// Every transaction of a segment writes a tip: which transaction it is, and
// where the log ends with it. The bucket is small enough for bbolt to keep it in
// the root page, so it costs no page and stands or falls with the root.
//
// It is what makes one sync per commit safe (onesync.md). After a power loss the
// newest meta page may be there without the pages it points to; in their place
// then lies an older tree, whole and valid in itself, with acknowledged events
// missing. Its tip names another transaction. Who finds that goes one step back,
// to the root before, which the commit that broke off has not touched.
//
// Big-endian: txid u64, seq u64, chain u32, incarnation u64, flags u32, CRC-32C
// u32 of all before.
type tip struct {
	txid        uint64
	seq         uint64
	chain       uint32
	incarnation uint64
	// oneSync: the transaction behind this one may be written with one sync, so
	// it may be torn. Without it a root that does not verify is damage.
	oneSync bool
}

const (
	tipLen     = 36
	tipOneSync = 1
)

var (
	bucketTip = []byte("tip")
	keyTip    = []byte("tip")
)

func (t tip) encode() []byte {
	be := binary.BigEndian
	b := make([]byte, 0, tipLen)
	b = be.AppendUint64(b, t.txid)
	b = be.AppendUint64(b, t.seq)
	b = be.AppendUint32(b, t.chain)
	b = be.AppendUint64(b, t.incarnation)
	flags := uint32(0)
	if t.oneSync {
		flags = tipOneSync
	}
	b = be.AppendUint32(b, flags)
	return be.AppendUint32(b, crc32.Checksum(b, headTable))
}

func decodeTip(b []byte) (tip, error) {
	be := binary.BigEndian
	if len(b) != tipLen {
		return tip{}, errors.Newf("tip has %d bytes, want %d", len(b), tipLen)
	}
	if have, want := be.Uint32(b[32:]), crc32.Checksum(b[:32], headTable); have != want {
		return tip{}, errors.Newf("tip has checksum %08x, want %08x", have, want)
	}
	return tip{
		txid: be.Uint64(b), seq: be.Uint64(b[8:]), chain: be.Uint32(b[16:]), incarnation: be.Uint64(b[20:]),
		oneSync: be.Uint32(b[28:])&tipOneSync != 0,
	}, nil
}

// putTip writes the tip of tx: with it the log ends at seq.
func putTip(tx *bbolt.Tx, t tip) error {
	b, err := tx.CreateBucketIfNotExists(bucketTip)
	if err != nil {
		return err
	}
	t.txid = uint64(tx.ID()) //nolint:gosec // counts up from 0
	return b.Put(keyTip, t.encode())
}

// checkTip: the root is of the transaction its meta page names, and the log
// ends where it did then.
func (c *checker) checkTip(s *segment, v segmentView) error {
	if c.meta.Format < 2 { // no tip was written
		return nil
	}
	bad := func(err error) error { return &CorruptError{File: s.path, Seq: c.pos.Seq + 1, Err: err} }
	t, err := decodeTip(v.tip)
	if err != nil {
		return bad(err)
	}
	if t.txid != v.txid {
		return bad(errors.Newf("the root is of transaction %d, its meta page of %d", t.txid, v.txid))
	}
	if t.seq != c.pos.Seq || t.chain != c.pos.Chain {
		return bad(errors.Wrapf(events.ErrChain, "transaction %d ended at record %d with chain %08x, the frames end at %d with %08x",
			t.txid, t.seq, t.chain, c.pos.Seq, c.pos.Chain))
	}
	c.tip = t
	return nil
}

// scanNewest verifies the last segment of a log that was not closed in order,
// from its newest root, or from the one before if the newest is a commit that a
// power loss tore: one that was written with one sync, when nothing knows of more
// than the older root holds. torn is then why. The pages stay on the root taken.
func (c *checker) scanNewest(p *pages, s *segment, isFirst bool, reached func() uint64) (torn, err error) {
	before := *c
	v, err := p.view()
	if err == nil {
		err = c.scan(s, v, isFirst, nil)
	}
	if err == nil || !errors.Is(err, ErrCorrupt) || c.head.clean || !p.older() {
		return nil, err
	}
	older := before
	v, olderErr := p.view()
	if olderErr == nil {
		olderErr = older.scan(s, v, isFirst, nil)
	}
	notBelow := reached()
	if c.haveHead {
		notBelow = max(notBelow, c.head.seq)
	}
	if olderErr != nil || !older.tip.oneSync || older.meta.Sealed || older.pos.Seq < notBelow {
		p.newest()
		return nil, err
	}
	*c = older
	return err, nil
}
