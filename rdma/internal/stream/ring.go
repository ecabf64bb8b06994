package stream

import (
	"fmt"
	"sync/atomic"
	"unsafe"

	"golang.org/x/sys/unix"
)

const (
	// ringVersion is in the frame that offers a ring. A target that wants
	// another one declines, and the connection stays with its socket.
	ringVersion = 1
	ringSlots   = 512                      // of frames, and of answers; a power of two
	slotLen     = 128                      // a header, on cache lines of its own
	answersAt   = 4096 + ringSlots*slotLen // behind the words and the frames
	ringLen     = answersAt + ringSlots*replyLen
	wordStride  = 128 // two cache lines: they are fetched in pairs
)

// The words of a ring, by what their side last did. Counts run free and wrap.
const (
	wordFrames   = iota * wordStride // frames that the writer has put
	wordTaken                        // frames that the target has taken
	wordAnswers                      // answers that the target has put
	wordRead                         // answers that the writer has read
	wordTargetIn                     // 1: the target waits at its socket; who clears it rings
	wordWriterIn                     // the same of the writer's receiver
	wordWakeAt                       // the writer's wish: no bell before this transfer is answered, low bits of its seq
	wordRoom                         // 1: the writer's sender waits for slots; who clears it rings
)

// ring is memory that a writer and a target share: headers go one way and
// answers the other without a system call. The socket stays: for descriptors
// and payloads, for a bell where the other side sleeps, and for its end.
//
// The peer may write anywhere in it at any time. So a side keeps the counts
// that it makes itself, reads each foreign word once and checks it, and copies
// a slot before it looks at it.
type ring struct {
	mem []byte
	// put and got are this side's own: of a writer frames and answers, of a
	// target answers and frames.
	put, got uint32
}

// newRing makes the memory of a ring. The caller passes fd on, and closes it.
func newRing() (r *ring, fd int, err error) {
	fd, err = unix.MemfdCreate("pdlog-ring", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	if err != nil {
		return nil, -1, fmt.Errorf("make a ring: %w", err)
	}
	err = unix.Ftruncate(fd, ringLen)
	if err == nil {
		_, err = unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, unix.F_SEAL_SHRINK|unix.F_SEAL_GROW|unix.F_SEAL_SEAL)
	}
	if err == nil {
		r, err = mapRing(fd)
	}
	if err != nil {
		_ = unix.Close(fd) // nobody has it
		return nil, -1, fmt.Errorf("make a ring: %w", err)
	}
	return r, fd, nil
}

// mapRing maps a ring that can not be cut from under the mapping.
func mapRing(fd int) (*ring, error) {
	mappable, err := poolKind(fd)
	if err != nil {
		return nil, err
	}
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return nil, fmt.Errorf("look at a ring: %w", err)
	}
	if !mappable || st.Size != ringLen {
		return nil, fmt.Errorf("a ring of %d bytes, want %d that can not be cut", st.Size, ringLen)
	}
	mem, err := unix.Mmap(fd, 0, ringLen, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		return nil, fmt.Errorf("map a ring: %w", err)
	}
	return &ring{mem: mem}, nil
}

func (r *ring) close() {
	if r != nil && r.mem != nil {
		_ = unix.Munmap(r.mem) // mapped by mapRing and not touched since
		r.mem = nil
	}
}

func (r *ring) word(at int) *atomic.Uint32 {
	return (*atomic.Uint32)(unsafe.Pointer(&r.mem[at])) //nolint:gosec // a multiple of wordStride, in page 0
}

func (r *ring) frame(n uint32) []byte {
	at := 4096 + int(n%ringSlots)*slotLen
	return r.mem[at : at+headerLen]
}

func (r *ring) answer(n uint32) []byte {
	at := answersAt + int(n%ringSlots)*replyLen
	return r.mem[at : at+replyLen]
}

// behind is how far the count that the peer has in a word is behind or ahead of
// ours: at most as many as there are slots, or the peer lies.
func behind(lead, rear uint32) (uint32, error) {
	if n := lead - rear; n <= ringSlots {
		return n, nil
	}
	return 0, fmt.Errorf("%w: a ring at %d and %d", errFrame, lead, rear)
}

// ---- the writer's side

// free is how many frames can be put.
func (r *ring) free() (uint32, error) {
	n, err := behind(r.put, r.word(wordTaken).Load())
	return ringSlots - n, err
}

// putFrame fills the next free slot; the target sees it after publish.
func (r *ring) putFrame(h *header) {
	h.encode(r.frame(r.put))
	r.put++
}

func (r *ring) publish() { r.word(wordFrames).Store(r.put) }

// answered is how many answers are there to read.
func (r *ring) answered() (uint32, error) { return behind(r.word(wordAnswers).Load(), r.got) }

// readAnswer copies the next answer and gives its slot back.
func (r *ring) readAnswer(b *[replyLen]byte) {
	copy(b[:], r.answer(r.got))
	r.got++
	r.word(wordRead).Store(r.got)
}

// ---- the target's side; its goroutine survives a fault in here, see guard

// takeFrame copies the next frame and gives its slot back. False: there is none.
func (r *ring) takeFrame(b *[headerLen]byte) (bool, error) {
	n, err := behind(r.word(wordFrames).Load(), r.got)
	if n == 0 || err != nil {
		return false, err
	}
	copy(b[:], r.frame(r.got))
	r.got++
	r.word(wordTaken).Store(r.got)
	return true, nil
}

// putAnswers takes whole replies. The writer sees to it that there is room: it
// has no more transfers on their way than there are slots.
func (r *ring) putAnswers(b []byte) error {
	n, err := behind(r.put, r.word(wordRead).Load())
	if err != nil {
		return err
	}
	if len(b)/replyLen > int(ringSlots-n) {
		return fmt.Errorf("%w: no room for answers, %d are not read", errFrame, n)
	}
	for ; len(b) > 0; b = b[replyLen:] {
		copy(r.answer(r.put), b[:replyLen])
		r.put++
	}
	r.word(wordAnswers).Store(r.put)
	return nil
}

// wanted says whether the writer's sender waits for slots that are there now.
func (r *ring) wanted() bool {
	return r.word(wordRoom).Load() == 1 && r.word(wordFrames).Load()-r.got <= ringSlots/2
}

// claim clears a word that says that the peer waits. True: the caller rings.
func (r *ring) claim(word int) bool { return r.word(word).CompareAndSwap(1, 0) }
