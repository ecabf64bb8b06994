package store

import (
	"encoding/binary"
	"hash/crc32"
	"iter"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/cockroachdb/errors"

	"github.com/pdlog/pdlog/events"
)

// A snapshot file is NNNNNNNNNNNNNNNNNNNN.snap, named by the last sequence it
// includes:
//
//	"PDS1", seq u64, chain u32 after that record, length u64, that many bytes,
//	CRC-32C u32 of all before; little-endian
const (
	snapshotExt   = ".snap"
	snapshotMagic = "PDS1"
	snapshotHead  = 4 + 8 + 4 + 8
	snapshotsKept = 2
)

// ErrSnapshot: a snapshot does not rest on this log: it is of a record that is
// not durable, no longer kept, or has another chain.
var ErrSnapshot = errors.New("snapshot does not fit the log")

// Snapshot is a state of the caller's after record Seq.
type Snapshot struct {
	Seq   uint64
	Chain uint32 // after record Seq
	Data  []byte
}

func snapshotPath(dir string, seq uint64) string {
	s := strconv.FormatUint(seq, 10)
	return filepath.Join(dir, strings.Repeat("0", seqDigits-len(s))+s+snapshotExt)
}

// listSnapshots gives the sequences of the snapshot files of dir, newest first.
func listSnapshots(dir string) ([]uint64, error) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, errors.Wrap(err, "list snapshots")
	}
	var seqs []uint64
	for _, e := range entries {
		name, ok := strings.CutSuffix(e.Name(), snapshotExt)
		if !ok || len(name) != seqDigits {
			continue
		}
		if seq, err := strconv.ParseUint(name, 10, 64); err == nil {
			seqs = append(seqs, seq)
		}
	}
	slices.Sort(seqs)
	slices.Reverse(seqs)
	return seqs, nil
}

// WriteSnapshot stores the caller's state after record seq, durably and as a
// whole, and keeps the two newest. chain is the chain after that record (the
// PrevHash of the next one). ErrSnapshot if the log does not have it so.
func (l *Log) WriteSnapshot(seq uint64, chain uint32, data []byte) error {
	if err := l.fits(seq, chain); err != nil {
		return errors.Wrap(err, "write snapshot")
	}
	head := append(make([]byte, 0, snapshotHead), snapshotMagic...)
	head = binary.LittleEndian.AppendUint64(head, seq)
	head = binary.LittleEndian.AppendUint32(head, chain)
	head = binary.LittleEndian.AppendUint64(head, uint64(len(data)))
	sum := binary.LittleEndian.AppendUint32(nil, crc32.Update(crc32.Checksum(head, headTable), headTable, data))
	l.snapMu.Lock()
	defer l.snapMu.Unlock()
	if err := replaceSynced(snapshotPath(l.dir, seq), head, data, sum); err != nil {
		return errors.Wrap(err, "write snapshot")
	}
	seqs, err := listSnapshots(l.dir)
	if err != nil {
		return err
	}
	for _, old := range seqs[min(len(seqs), snapshotsKept):] {
		if err := removeIfThere(snapshotPath(l.dir, old)); err != nil {
			return err
		}
	}
	if l.snapsKnown {
		l.snaps = slices.Insert(slices.DeleteFunc(l.snaps, func(s uint64) bool { return s == seq }), 0, seq)
		l.snaps = l.snaps[:min(len(l.snaps), snapshotsKept)]
	}
	return nil
}

// held is the sequence up to which events are in every one of the snapshots
// kept: should the newest turn out damaged, the one before it still has its
// tail. 0 while there are not two that fit.
func (l *Log) held() (uint64, error) {
	l.snapMu.Lock()
	defer l.snapMu.Unlock()
	if !l.snapsKnown {
		l.snaps = l.snaps[:0]
		for s, err := range DirSnapshots(l.dir) {
			if err == nil {
				err = l.Fits(s)
			}
			switch {
			case err == nil:
				l.snaps = append(l.snaps, s.Seq)
			case errors.IsAny(err, ErrCorrupt, ErrSnapshot):
				l.log.Error("snapshot is ignored", "dir", l.dir, "err", err)
			default:
				return 0, err
			}
		}
		l.snapsKnown = true
	}
	if len(l.snaps) < snapshotsKept {
		return 0, nil
	}
	return slices.Min(l.snaps), nil
}

// LatestSnapshot is the newest snapshot that reads well and rests on this log;
// nil when there is none. One that does not is left where it is and logged as
// an error: the caller goes on from an older one, or from the first event.
func (l *Log) LatestSnapshot() (*Snapshot, error) {
	l.snapMu.Lock()
	defer l.snapMu.Unlock()
	for s, err := range DirSnapshots(l.dir) {
		if err == nil {
			if err = l.Fits(s); err == nil {
				return s, nil
			}
		}
		if !errors.IsAny(err, ErrCorrupt, ErrSnapshot) {
			return nil, err
		}
		l.log.Error("snapshot is ignored", "dir", l.dir, "err", err)
	}
	return nil, nil
}

// DirSnapshots reads the snapshots in the directory of a log, newest first. One
// that does not read well comes as an error that names it (a *CorruptError, or
// of the file system), and does not end the sequence. Whether a snapshot rests
// on the log, Log.Fits says.
func DirSnapshots(dir string) iter.Seq2[*Snapshot, error] {
	return func(yield func(*Snapshot, error) bool) {
		seqs, err := listSnapshots(dir)
		if err != nil {
			yield(nil, err)
			return
		}
		for _, seq := range seqs {
			s, err := readSnapshot(dir, seq)
			if errors.Is(err, os.ErrNotExist) {
				continue // a newer one took its place meanwhile
			}
			if !yield(s, err) {
				return
			}
		}
	}
}

// newestSnapshot is the sequence of the newest snapshot that reads well; 0 if
// there is none. The log reached so far once.
func newestSnapshot(dir string) uint64 {
	for s, err := range DirSnapshots(dir) {
		if err == nil {
			return s.Seq
		}
	}
	return 0
}

// Fits says whether the log has the record that the snapshot is of, with its
// chain; else it is an ErrSnapshot.
func (l *Log) Fits(s *Snapshot) error { return l.fits(s.Seq, s.Chain) }

func readSnapshot(dir string, seq uint64) (*Snapshot, error) {
	path := snapshotPath(dir, seq)
	b, err := os.ReadFile(path)
	if err != nil {
		return nil, errors.Wrap(err, "read snapshot")
	}
	bad := func(why string) (*Snapshot, error) {
		return nil, &CorruptError{File: path, Seq: seq, Err: errors.Newf("snapshot: %s", why)}
	}
	le := binary.LittleEndian
	if len(b) < snapshotHead+4 || string(b[:4]) != snapshotMagic {
		return bad("not a snapshot")
	}
	end := len(b) - 4
	if crc32.Checksum(b[:end], headTable) != le.Uint32(b[end:]) {
		return bad("checksum does not fit")
	}
	if le.Uint64(b[4:]) != seq || le.Uint64(b[16:]) != uint64(end-snapshotHead) {
		return bad("it is of another record, or of another length")
	}
	return &Snapshot{Seq: seq, Chain: le.Uint32(b[12:]), Data: b[snapshotHead:end:end]}, nil
}

// fits says whether the log has record seq with that chain after it.
func (l *Log) fits(seq uint64, chain uint32) error {
	have, err := l.chainAfter(seq)
	if err != nil {
		return err
	}
	if have != chain {
		return errors.Wrapf(ErrSnapshot, "record %d: it has chain %08x, the log %08x", seq, chain, have)
	}
	return nil
}

// chainAfter is the chain after a durable record, or before the first one kept.
func (l *Log) chainAfter(seq uint64) (uint32, error) {
	durable, first := l.Durable(), l.First()
	if seq > durable || seq+1 < first {
		return 0, errors.Wrapf(ErrSnapshot, "record %d: the log has %d to %d", seq, first, durable)
	}
	at, before := seq, seq < first // then its chain stands in the record after it
	if before {
		if durable < first {
			return l.startChain, nil
		}
		at = first
	}
	frames, err := l.ReadFrames(at, 1)
	if err != nil {
		return 0, err
	}
	if len(frames) == 0 {
		return 0, errors.Wrapf(ErrSnapshot, "record %d cannot be read", seq)
	}
	if before {
		return frames[0].Info.PrevChain, nil
	}
	chain := frames[0].Info.Chain
	_, err = events.DecodeFrame(frames[0].Data, "", func(e *events.Event) error {
		if e.Seq == seq+1 {
			chain = e.PrevHash
		}
		return nil
	})
	return chain, err
}

// copySnapshots brings along the snapshots of what was salvaged or backed up.
func copySnapshots(from, to string, pos events.Position) error {
	seqs, err := listSnapshots(from)
	if err != nil {
		return err
	}
	for _, seq := range seqs {
		if seq > pos.Seq {
			continue
		}
		if _, err := readSnapshot(from, seq); err != nil {
			continue // of no use; it stays where it was
		}
		b, err := os.ReadFile(snapshotPath(from, seq))
		if err != nil {
			return errors.Wrap(err, "copy snapshot")
		}
		if err := writeSynced(snapshotPath(to, seq), b); err != nil {
			return errors.Wrap(err, "copy snapshot")
		}
	}
	return nil
}
