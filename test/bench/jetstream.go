package main

import (
	"context"
	"path/filepath"
	"sync"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/pdlog/pdlog/events"
	"github.com/pdlog/pdlog/store/mirror"
)

// jetStream is a server that syncs each message before it acknowledges it, and
// gets an event a message: what a log kept in JetStream itself would cost.
type jetStream struct {
	numbered
	server *mirror.Embedded
	nc     *nats.Conn
	js     jetstream.JetStream
	frames *events.FrameWriter
	b      events.FrameBatch
	data   sync.Map // seq -> its frame
}

func newJetStream(dir string) (*jetStream, error) {
	j := &jetStream{frames: events.NewFrameWriter(events.Position{})}
	var err error
	if j.server, err = mirror.StartEmbedded(mirror.EmbeddedOptions{StoreDir: filepath.Join(dir, "nats"), Port: -1}); err != nil {
		return nil, err
	}
	if j.nc, err = nats.Connect(j.server.ClientURL()); err == nil {
		if j.js, err = jetstream.New(j.nc); err == nil {
			_, err = j.js.CreateStream(context.Background(), jetstream.StreamConfig{Name: "LOG", Subjects: []string{"log"}, Storage: jetstream.FileStorage})
		}
	}
	if err != nil {
		return nil, err
	}
	return j, nil
}

func (j *jetStream) put(e *events.Event, _ events.Class) (uint64, error) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.stamp(e, 1, 1)
	if err := j.frames.Append(e); err != nil {
		return 0, err
	}
	j.frames.Swap(&j.b)
	_, f := j.b.Frame(0)
	j.data.Store(e.Seq, append([]byte(nil), f...))
	return e.Seq, nil
}

func (j *jetStream) wait(seq uint64) error {
	data, _ := j.data.LoadAndDelete(seq)
	_, err := j.js.Publish(context.Background(), "log", data.([]byte))
	return err
}

func (j *jetStream) close() error {
	j.nc.Close()
	j.server.Shutdown()
	return nil
}
