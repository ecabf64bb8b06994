package node

import (
	"log/slog"
	"strconv"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cockroachdb/errors"

	"github.com/pdlog/pdlog/backends"
)

// scripted is a transport with one peer; takes says whether it takes a message
// now.
type scripted struct {
	takes func() bool
	got   []string
}

var _ transport = (*scripted)(nil)

func (t *scripted) Listen(string) (receiver, error)       { return nil, errors.New("it only sends") }
func (t *scripted) Dial(string, dialSide) (pusher, error) { return scriptedPeer{t}, nil }
func (t *scripted) Close() error                          { return nil }

type scriptedPeer struct{ t *scripted }

func (p scriptedPeer) Send(f backends.Frames) error {
	if !p.t.takes() {
		time.Sleep(pollEvery) // as a socket does; on the test's own clock
		return errAgain
	}
	p.t.got = append(p.t.got, string(f[0]))
	return nil
}
func (p scriptedPeer) Dropped() bool             { return false }
func (p scriptedPeer) Close(time.Duration) error { return nil }

func numbered(i int, sent func(error)) outgoing {
	return outgoing{frames: backends.Frames{[]byte(strconv.Itoa(i))}, sent: sent}
}

// TestSendersTakeABurst: a thousand aborts at once, and more, are no reason to
// lose one.
func TestSendersTakeABurst(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tr := &scripted{takes: func() bool { return true }}
		s := newSenders(tr, toPrefill, nil, slog.New(slog.DiscardHandler))
		const burst = 10000
		for i := range burst {
			s.send("peer", numbered(i, func(err error) {
				if err != nil {
					t.Errorf("message %d: %v", i, err)
				}
			}))
		}
		synctest.Wait()
		s.close()
		if len(tr.got) != burst || s.lost.Load() != 0 {
			t.Fatalf("%d of %d left, %d lost", len(tr.got), burst, s.lost.Load())
		}
		for i, g := range tr.got {
			if g != strconv.Itoa(i) {
				t.Fatalf("message %d is %s: the order is lost", i, g)
			}
		}
	})
}

// TestSendersGiveUpTogether: what waits for a peer that takes nothing ends when
// its own time is over, not one after the other; and when the peer takes
// messages again, the next one leaves.
func TestSendersGiveUpTogether(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		stuck := true
		tr := &scripted{takes: func() bool { return !stuck }}
		s := newSenders(tr, toPrefill, nil, slog.New(slog.DiscardHandler))
		began := time.Now()
		var ended []time.Duration
		for i := range 100 {
			s.send("peer", numbered(i, func(err error) {
				if !errors.Is(err, errSendTimeout) {
					t.Errorf("message %d: %v, want %v", i, err, errSendTimeout)
				}
				ended = append(ended, time.Since(began))
			}))
		}
		time.Sleep(2 * sendTimeout[toPrefill])
		synctest.Wait()
		if len(ended) != 100 {
			t.Fatalf("%d of 100 have ended after twice the time", len(ended))
		}
		if last, limit := ended[99], sendTimeout[toPrefill]+2*pollEvery; last > limit {
			t.Errorf("the last of 100 waited %v, want at most %v", last, limit)
		}
		stuck = false
		s.send("peer", numbered(100, nil))
		synctest.Wait()
		s.close()
		if len(tr.got) != 1 || tr.got[0] != "100" {
			t.Errorf("left after the peer came back: %v, want 100", tr.got)
		}
	})
}

// TestSendersAreBounded: more than a queue full is an outcome, at once.
func TestSendersAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tr := &scripted{takes: func() bool { return false }}
		s := newSenders(tr, toPrefill, nil, slog.New(slog.DiscardHandler))
		s.send("peer", numbered(0, nil))
		synctest.Wait() // it is being sent
		for i := range sendQueue {
			s.send("peer", numbered(i+1, nil))
		}
		var got error
		s.send("peer", numbered(-1, func(err error) { got = err }))
		if !errors.Is(got, errSendQueue) {
			t.Errorf("one more than the queue holds: %v, want %v", got, errSendQueue)
		}
		s.close()
	})
}
