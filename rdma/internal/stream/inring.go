package stream

import (
	"errors"
	"fmt"

	"golang.org/x/sys/unix"
)

// ringHeldBytes is how much is placed before it is answered, if there is more
// to do: an answer in a ring costs no call.
const ringHeldBytes = 256 << 10

var errRingFault = errors.New("a page of the ring is not there")

// addRing takes an offer of a ring, or declines it.
func (in *inbound) addRing() error {
	if len(in.fds) == 0 || in.ring != nil || in.joining != nil || in.lastSeq > 0 || !in.d.transport.rings(in.conn) {
		return fmt.Errorf("%w: a ring, %d descriptors, after transfer %d", errFrame, len(in.fds), in.lastSeq)
	}
	fd := in.fds[0]
	in.fds = in.fds[1:]
	answer := reply{op: opHelloOK}
	if in.h.meta == ringVersion {
		r, err := mapRing(fd)
		if err == nil {
			in.joining, answer.frames = r, featureRing
		}
	}
	_ = unix.Close(fd) // mapped, or of no use
	in.replies = answer.append(in.replies)
	in.due = true
	return nil
}

// stepRing takes frames out of the ring, and from the socket where the ring says
// so. It returns when answers are due, and every now and then to see whether
// the connection has been closed: a writer can fill a ring for ever. False:
// wait until the socket is readable.
func (in *inbound) stepRing(fd int) bool {
	in.idle = false
	if in.asleep {
		if in.err = in.sleepRing(false); in.err != nil {
			return true
		}
	}
	for n := 0; in.err == nil && n < ringSlots; n++ {
		if in.held >= maxHeld || in.heldBytes >= ringHeldBytes || in.crowded {
			return true
		}
		took, err := false, error(nil)
		if !in.turn {
			took, err = in.takeRing()
		}
		switch {
		case err != nil:
			in.err = err
		case took:
			if in.asleep { // the writer need not ring, and may have cleared the word
				in.err = in.sleepRing(false)
			}
			if in.err == nil {
				in.err = in.ringFrame()
			}
		case len(in.ahead) > 0:
			in.err = in.feedAhead()
		case in.held > 0 || in.unrung:
			in.idle = true
			return true
		case !in.turn && !in.asleep:
			in.err = in.sleepRing(true) // and look once more
		case !in.readSocket(fd):
			return false
		case in.asleep:
			if err := in.sleepRing(false); in.err == nil {
				in.err = err
			}
		}
	}
	return true
}

// ringFrame takes the frame that takeRing has read.
func (in *inbound) ringFrame() error {
	if err := in.h.decode(in.slot[:]); err != nil {
		return err
	}
	switch in.h.op {
	case opTurn:
		in.turn = true
		return nil
	case opCopy:
		if err := in.beginFrame(); err != nil {
			return err
		}
		return in.copyFrame()
	default:
		return fmt.Errorf("%w: op %d in a ring", errFrame, in.h.op)
	}
}

// survive makes an error of a fault in the ring's memory. It can not be cut; but
// the peer can have the kernel look for a fresh page, and there may be none.
func survive(err *error) {
	if r := recover(); r != nil {
		if _, fault := r.(faulter); !fault {
			panic(r)
		}
		*err = errRingFault
	}
}

func (in *inbound) takeRing() (took bool, err error) {
	defer survive(&err)
	if took, err = in.ring.takeFrame(&in.slot); took {
		in.crowded = in.ring.wanted()
	}
	return took, err
}

// sleepRing says to the writer whether it has to ring.
func (in *inbound) sleepRing(yes bool) (err error) {
	defer survive(&err)
	in.asleep = yes
	v := uint32(0)
	if yes {
		v = 1
	}
	in.ring.word(wordTargetIn).Store(v)
	return nil
}

// answerRing puts the answers into the ring, and leaves a bell in in.replies if
// the writer is to be woken.
func (in *inbound) answerRing() (err error) {
	defer survive(&err)
	if len(in.replies) > 0 {
		if err := in.ring.putAnswers(in.replies); err != nil {
			return err
		}
		in.replies = in.replies[:0]
		in.unrung = true
	}
	bell := in.crowded && in.ring.claim(wordRoom)
	in.crowded = false
	late := int32(uint32(in.answered)-in.ring.word(wordWakeAt).Load()) >= 0 //nolint:gosec // low bits, which wrap
	if in.unrung && (in.idle || in.urgent || late) {
		if in.ring.claim(wordWriterIn) {
			bell = true
		}
		in.unrung, in.urgent = false, false
	}
	if bell {
		in.replies = reply{op: opRang}.append(in.replies)
	}
	return nil
}
