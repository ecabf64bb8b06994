package store

import (
	"context"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/pdlog/pdlog/events"
)

// said is what a log wrote, and tells when it has written a text.
type said struct {
	mu   sync.Mutex
	text strings.Builder
	more chan struct{}
}

func (s *said) Write(b []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.text.Write(b)
	select {
	case s.more <- struct{}{}:
	default:
	}
	return len(b), nil
}

func (s *said) await(t *testing.T, text string) {
	t.Helper()
	limit := time.After(time.Minute)
	for {
		s.mu.Lock()
		have := s.text.String()
		s.mu.Unlock()
		if strings.Contains(have, text) {
			return
		}
		select {
		case <-s.more:
		case <-limit:
			t.Fatalf("nothing says %q:\n%s", text, have)
		}
	}
}

// A disk whose sync takes seconds: Append takes events all the same and waits
// for nothing, the queue fills and admission closes, one line says why, nothing is
// acknowledged meanwhile. When the disk answers all of it is durable and admission
// opens again.
func TestSlowDiskClosesAdmissionAndRecovers(t *testing.T) {
	disk, held := make(chan struct{}), make(chan struct{}, 1)
	out := &said{more: make(chan struct{}, 1)}
	l, rec := openLog(t, t.TempDir(), Options{
		QueueBytes: 64 << 10, Logger: slog.New(slog.NewTextHandler(out, nil)),
		hooks: hooks{beforeCommit: func(int) error {
			select {
			case held <- struct{}{}:
			default:
			}
			<-disk
			return nil
		}},
	})
	src := newSource(l, rec, 1)
	mustAppend(t, l, src.next(1), events.Sync)
	<-held
	if l.Full() {
		t.Fatal("one event fills the queue")
	}
	for !l.Full() { // Append itself never blocks: this would not end
		mustAppend(t, l, src.next(50), events.Sync)
	}
	mustAppend(t, l, src.next(50), events.Sync) // what is open may still be ended
	out.await(t, "a commit has been waiting for the log's disk")
	if l.Durable() != 0 || l.Pressure() < 1 || l.Err() != nil {
		t.Errorf("while the disk is silent: durable %d, pressure %v, %v", l.Durable(), l.Pressure(), l.Err())
	}
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Millisecond)
	if err := l.Wait(ctx, 1); err == nil {
		t.Error("an event is durable while the disk is silent")
	}
	cancel()
	close(disk)
	mustSync(t, l)
	out.await(t, "the log's disk has answered")
	if l.Full() || l.Durable() != src.seq || l.Pressure() != 0 {
		t.Errorf("after it: full %v, durable %d of %d, pressure %v", l.Full(), l.Durable(), src.seq, l.Pressure())
	}
}
