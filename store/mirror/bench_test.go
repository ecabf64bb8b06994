package mirror_test

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"runtime"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/pdlog/pdlog/events"
	"github.com/pdlog/pdlog/store/mirror"
	"github.com/pdlog/pdlog/store/mirror/mirrortest"
)

// BenchmarkMirror shows, in rounds that take turns, what the mirror takes when
// the log is there already (it catches up), what JetStream takes of the very same
// messages from a bare publisher that waits for each, and, for
// PDLOG_BENCH_SECONDS, whether the mirror keeps up with a log that grows by
// 200,000 events a second. Servers sync always. Figures are medians; ratios are
// medians of each round's ratio.
func BenchmarkMirror(b *testing.B) {
	for _, c := range []struct {
		name string
		o    mirrortest.Options
	}{
		{"one server", mirrortest.Options{Count: 1}},
		{"three servers", mirrortest.Options{Count: 3}},
	} {
		b.Run(c.name, func(b *testing.B) {
			s := mirrortest.Start(b, c.o)
			var caughtUp, bare, ratio []float64
			for i := range 7 {
				node := fmt.Sprintf("n%d", i)
				w := mirrortest.OpenNode(b, b.TempDir(), node, 1)
				const batch, batches = 2000, 25
				for range batches {
					w.MustAppend(b, batch)
				}
				began := time.Now()
				r := mirrortest.Run(b, w, mirror.Options{URL: s.URL(), Replicas: c.o.Count})
				waitLog(b, r.Mirror, w.Seq)
				mirrored := float64(w.Seq) / time.Since(began).Seconds()
				r.Stop(b)
				alone := float64(w.Seq) / republish(b, s, node, c.o.Count).Seconds()
				caughtUp, bare, ratio = append(caughtUp, mirrored), append(bare, alone), append(ratio, mirrored/alone)
			}
			b.ReportMetric(median(caughtUp), "events/s")
			b.ReportMetric(median(bare), "bare-events/s")
			b.ReportMetric(median(ratio), "of-bare")
			keepUp(b, s, c.o.Count)
			b.ReportMetric(0, "ns/op")
			b.Logf("%d cores, %s", runtime.NumCPU(), runtime.Version())
		})
	}
}

func median(v []float64) float64 {
	slices.SortFunc(v, cmp.Compare)
	return v[len(v)/2]
}

// waitLog returns when the log stream has everything up to seq.
func waitLog(b *testing.B, m *mirror.Mirror, seq uint64) {
	b.Helper()
	for m.LastMirrored() < seq {
		ctx, cancel := context.WithTimeout(context.Background(), time.Millisecond)
		_ = m.WaitMirrored(ctx, seq)
		cancel()
	}
}

// republish sends the messages of a node again, to a stream beside, as a bare
// publisher that waits for each, and says how long that took.
func republish(b *testing.B, s *mirrortest.Servers, node string, replicas int) time.Duration {
	b.Helper()
	ctx := context.Background()
	js := s.JetStream(s.Connect())
	const name = "BARE"
	if _, err := js.CreateStream(ctx, jetstream.StreamConfig{
		Name: name, Subjects: []string{"bare.>"}, Storage: jetstream.FileStorage, Replicas: replicas, Discard: jetstream.DiscardNew,
	}); err != nil {
		b.Fatal(err)
	}
	defer func() { _ = js.DeleteStream(ctx, name) }()
	c, err := js.OrderedConsumer(ctx, mirror.StreamLog, jetstream.OrderedConsumerConfig{FilterSubjects: []string{mirror.SubjectLog(mirrortest.Cluster, node)}})
	if err != nil {
		b.Fatal(err)
	}
	info, err := c.Info(ctx)
	if err != nil {
		b.Fatal(err)
	}
	var msgs []*nats.Msg
	it, err := c.Messages()
	if err != nil {
		b.Fatal(err)
	}
	defer it.Stop()
	for range info.NumPending {
		m, err := it.Next()
		if err != nil {
			b.Fatal(err)
		}
		h := nats.Header{}
		for k, v := range m.Headers() {
			if k != "Nats-Msg-Id" && k != "Nats-Expected-Last-Subject-Sequence" && k != "Nats-Expected-Last-Subject-Sequence-Subject" {
				h[k] = v
			}
		}
		msgs = append(msgs, &nats.Msg{Subject: "bare." + node, Header: h, Data: m.Data()})
	}
	began := time.Now()
	for _, m := range msgs {
		if _, err := js.PublishMsg(ctx, m); err != nil {
			b.Fatal(err)
		}
	}
	return time.Since(began)
}

// keepUp appends at a steady rate and watches the lag.
func keepUp(b *testing.B, s *mirrortest.Servers, replicas int) {
	b.Helper()
	seconds, err := strconv.Atoi(os.Getenv("PDLOG_BENCH_SECONDS"))
	if err != nil {
		seconds = 5
	}
	if replicas == 1 { // the bar is that of three servers
		seconds = min(seconds, 15)
	}
	const rate, step = 200_000, 10 * time.Millisecond
	w := mirrortest.OpenNode(b, b.TempDir(), "steady", 1)
	r := mirrortest.Run(b, w, mirror.Options{URL: s.URL(), Replicas: replicas})
	var worst time.Duration
	var lags []float64
	began := time.Now()
	tick := time.NewTicker(step)
	defer tick.Stop()
	for range tick.C {
		took := time.Since(began)
		if took > time.Duration(seconds)*time.Second {
			break
		}
		owed := int(took.Seconds()*rate) - int(w.Seq) //nolint:gosec // millions
		if owed > 0 {
			if err := w.Log.Append(w.Make(owed), events.Group); err != nil {
				b.Fatal(err)
			}
		}
		_, age := r.Behind(time.Now())
		worst = max(worst, age)
		lags = append(lags, age.Seconds())
	}
	appended := float64(w.Seq) / time.Since(began).Seconds()
	lag := float64(r.Lag()) / rate
	if err := w.Log.Sync(context.Background()); err != nil {
		b.Fatal(err)
	}
	audited := r.LastAudited() // its lane sends one message a milestone: a burst is mirrored before it is told
	waitLog(b, r.Mirror, w.Seq)
	r.Stop(b)
	benchRow(b, fmt.Sprintf("mirror/r%d-sync-always", replicas), appended, seconds, median(lags), worst.Seconds())
	b.ReportMetric(appended, "steady-events/s")
	b.ReportMetric(median(lags), "lag-p50-s")
	b.ReportMetric(worst.Seconds(), "lag-max-s")
	b.ReportMetric(lag, "lag-end-s")
	b.ReportMetric(float64(w.Seq-audited)/rate, "audit-lag-end-s")
}

// benchRow adds a row to the file of `make bench`, with the keys of cli.md: the
// mirror keeps up when the offered rate was taken and nothing was ever a second
// behind.
func benchRow(b *testing.B, name string, rate float64, seconds int, lag, worst float64) {
	b.Helper()
	path := os.Getenv("PDLOG_BENCH_ROWS")
	if path == "" {
		return
	}
	const offered, keeps = 200_000, 0.99
	row, err := json.Marshal(map[string]any{
		"name": name, "value": rate, "unit": "events/s", "ratio": rate / offered, "bar": keeps, "ok": rate >= keeps*offered && worst < 1,
		"against": fmt.Sprintf("%d offered for %d s; behind %.2f s in the middle, %.2f s at most (1 s)", offered, seconds, lag, worst),
	})
	if err != nil {
		b.Fatal(err)
	}
	f, err := os.OpenFile(path, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o644)
	if err != nil {
		b.Fatal(err)
	}
	defer func() {
		if err := f.Close(); err != nil {
			b.Error(err)
		}
	}()
	if _, err := f.Write(append(row, '\n')); err != nil {
		b.Fatal(err)
	}
}
