package store

import (
	"github.com/cockroachdb/errors"
	"golang.org/x/sys/unix"

	"github.com/pdlog/pdlog/events"
)

// DirInfo describes a log that is not open.
type DirInfo struct {
	Node      string
	LogID     LogID
	FirstSeq  uint64 // oldest event kept
	LastSeq   uint64 // last event read; 0 when none was
	LastChain uint32
	Segments  int
	// Torn is why the newest commit was left out: a power loss tore it, as far as
	// anything in dir tells. Nil mostly.
	Torn error
}

// ReadDir reads the log in dir from sequence from on (0 or 1: from the oldest
// kept) and calls visit with every event, all envelope fields filled in and
// everything verified on the way: checksums, sequence, chain, seals, the head
// file. It writes nothing.
//
// A damaged log gives a *CorruptError after the events before the damage; a
// segment that a live node is writing an *InUseError (ErrInUse) after the
// events of the sealed ones; an error of visit is returned as it is.
func ReadDir(dir string, from uint64, visit func(*events.Event) error) (DirInfo, error) {
	return ReadDirIf(dir, from, nil, visit)
}

// ReadDirIf is ReadDir that decodes and visits only the events that want says
// true to (nil: all). All of the log is verified.
func ReadDirIf(dir string, from uint64, want func(events.Head) bool, visit func(*events.Event) error) (DirInfo, error) {
	segs, err := listSegments(dir)
	if err != nil {
		return DirInfo{}, err
	}
	if len(segs) == 0 {
		return DirInfo{}, errors.Wrapf(ErrNotALog, "%s", dir)
	}
	holder, live := Locked(dir)
	info := DirInfo{FirstSeq: segs[0].first, Segments: len(segs)}
	if from > 0 && from < segs[0].first && from != 1 {
		return info, errors.Wrapf(ErrBelow, "read record %d of %s: the log starts at %d", from, dir, segs[0].first)
	}
	skip := 0
	for skip+1 < len(segs) && segs[skip+1].first <= from {
		skip++
	}
	h, haveHead, err := readHead(dir)
	if err != nil {
		return info, err
	}
	chk := newChecker(h, haveHead)
	chk.want = want
	for i, s := range segs[skip:] {
		last := ""
		if s == segs[len(segs)-1] {
			last = dir
		}
		err := readSegment(s, chk, i == 0, last, from, visit)
		info.Node, info.LogID, info.LastSeq, info.LastChain, info.Torn = chk.meta.Node, chk.meta.LogID, chk.pos.Seq, chk.pos.Chain, chk.torn
		if errors.Is(err, unix.EWOULDBLOCK) {
			if !live {
				holder, _ = Locked(dir)
			}
			return info, &InUseError{File: s.path, Lock: holder, Next: max(from, s.first)}
		}
		if err != nil {
			return info, err
		}
	}
	if _, started := Locked(dir); live || started {
		return info, nil // the head moves on under us
	}
	if haveHead && h.seq > chk.pos.Seq {
		return info, errors.Wrapf(ErrHeadAhead, "read log %s: head says record %d, the segments end at %d: acknowledged events are missing",
			dir, h.seq, chk.pos.Seq)
	}
	if chk.headSeen && chk.headChain != h.chain {
		return info, errors.Wrapf(ErrHeadMismatch, "read log %s: record %d: head has chain %08x, segments have %08x",
			dir, h.seq, h.chain, chk.headChain)
	}
	return info, nil
}

// readSegment reads one segment; lastOf is the directory if it is the last one.
func readSegment(s *segment, chk *checker, isFirst bool, lastOf string, from uint64, visit func(*events.Event) error) error {
	p, err := openPagesStream(s.path)
	if err != nil {
		return err
	}
	defer p.close()                      //nolint:errcheck // read-only
	if lastOf != "" && !chk.head.clean { // which root? Nothing is handed out before that is known
		probe := *chk
		torn, err := probe.scanNewest(p, s, isFirst, func() uint64 { return newestSnapshot(lastOf) })
		chk.torn, probe.torn = torn, torn
		if err == nil && visit == nil {
			*chk = probe
			return nil
		}
	}
	v, err := p.view()
	if err == nil {
		err = chk.visit(s, v, isFirst, from, visit)
	}
	if errors.Is(err, ErrCorrupt) && p.changed() {
		return errors.Wrapf(unix.EWOULDBLOCK, "%s changed while it was read", s.path)
	}
	return err
}

// visit hands on the events of a segment from sequence from on.
func (c *checker) visit(s *segment, v segmentView, isFirst bool, from uint64, visit func(*events.Event) error) error {
	c.decode = visit != nil
	return c.scan(s, v, isFirst, func([]byte) error {
		for _, e := range c.events {
			if e.Seq < from {
				continue
			}
			if err := visit(e); err != nil {
				return err
			}
		}
		return nil
	})
}

// StatDir verifies the whole log in dir and describes it. Its errors are those
// of ReadDir.
func StatDir(dir string) (DirInfo, error) { return ReadDir(dir, 0, nil) }

// LastSeq is the last sequence of the log in dir, as its newest segment says
// without being verified; 0 if it cannot tell. It is for finding one's way.
func LastSeq(dir string) uint64 {
	segs, err := listSegments(dir)
	if err != nil || len(segs) == 0 {
		return 0
	}
	p, err := openPagesPart(segs[len(segs)-1].path)
	if err != nil {
		return 0
	}
	defer p.close() //nolint:errcheck // read-only
	v, err := p.view()
	if err != nil {
		return 0
	}
	b, err := v.last()
	if err != nil {
		return 0
	}
	in, err := events.FramePeek(b)
	if err != nil {
		return 0
	}
	return in.LastSeq
}
