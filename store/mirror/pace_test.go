package mirror_test

import (
	"context"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/pdlog/pdlog/events"
	"github.com/pdlog/pdlog/store/mirror"
	"github.com/pdlog/pdlog/store/mirror/mirrortest"
)

// TestBusyLogGoesInFewMessages: commits that follow each other faster than
// Options.Pace share messages; nothing is left waiting.
func TestBusyLogGoesInFewMessages(t *testing.T) {
	s := mirrortest.Start(t, mirrortest.Options{Count: 1})
	w := mirrortest.OpenNode(t, t.TempDir(), "n", 1)
	r := mirrortest.Run(t, w, mirror.Options{URL: s.URL(), Pace: 500 * time.Millisecond})
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	began := time.Now()
	const commits = 60
	for range commits {
		w.MustAppend(t, 1)
	}
	if err := r.Mirror.WaitMirrored(ctx, w.Seq); err != nil {
		t.Fatal(err)
	}
	most := 2 + uint64(time.Since(began)/(500*time.Millisecond))
	r.Stop(t)
	js, err := jetstream.New(s.Connect())
	if err != nil {
		t.Fatal(err)
	}
	stream, err := js.Stream(ctx, mirror.StreamLog)
	if err != nil {
		t.Fatal(err)
	}
	if n := stream.CachedInfo().State.Msgs; n > most {
		t.Errorf("%d commits in %v made %d messages, want at most %d", commits, time.Since(began), n, most)
	}
}

func TestMilestonesAreFewTypes(t *testing.T) {
	if n := len(events.TypesOf(mirror.IsMilestone)); n != 11 {
		t.Errorf("%d types, want 11", n)
	}
}
