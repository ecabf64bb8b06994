package main

import (
	"context"
	"fmt"
	"log/slog"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/pdlog/pdlog/events"
	"github.com/pdlog/pdlog/node"
	"github.com/pdlog/pdlog/projector"
	"github.com/pdlog/pdlog/store"
)

// reopen is a node's start on a log of total events, from its snapshot: from the
// call until it serves.
func reopen(dir string, rounds, total int) ([]row, error) {
	cfg := node.DefaultConfig()
	cfg.Node, cfg.Role, cfg.DataDir, cfg.Pages = "d0", "decode", filepath.Join(dir, "node"), 4096
	cfg.NATS.Embedded = false
	if err := fillRooms(cfg, total); err != nil {
		return nil, err
	}
	ctx := context.Background()
	first := time.Now()
	h := &heard{text: "snapshot written", done: make(chan struct{})}
	n, err := node.Start(ctx, cfg, slog.New(slog.NewTextHandler(h, nil)))
	if err != nil {
		return nil, err
	}
	whole := time.Since(first)
	<-h.done
	if err := n.Stop(ctx, 0); err != nil {
		return nil, err
	}
	out := row{what: fmt.Sprintf("start on a log of %d events, from its snapshot", total), bar: 1, atMost: true}
	var took []float64
	for range rounds {
		began := time.Now()
		n, err := node.Start(ctx, cfg, nil)
		if err != nil {
			return nil, err
		}
		took = append(took, time.Since(began).Seconds())
		if err := n.Stop(ctx, 0); err != nil {
			return nil, err
		}
		out.ratios = append(out.ratios, took[len(took)-1]/2)
	}
	out.own = fmt.Sprintf("%.2f s; %.1f s without a snapshot", median(took), whole.Seconds())
	out.against = "2 s"
	return []row{out}, nil
}

// fillRooms writes a decode node's log: rooms that are opened and given up, a
// thousand of them open at a time.
func fillRooms(cfg node.Config, total int) error {
	ctx := context.Background()
	l, rec, err := store.Open(ctx, cfg.LogDir(), store.Options{Node: cfg.Node, Boot: 1})
	if err != nil {
		return err
	}
	pc := projector.DefaultConfig()
	pc.Node, pc.Role, pc.Pages = cfg.Node, events.Role_ROLE_DECODE, cfg.Pages
	pc.Ranks = []projector.LocalRank{{Address: "127.0.0.1:1"}}
	m, at, id := projector.New(pc), uint64(time.Now().UnixMilli()), l.LogID()
	var batch []*events.Event
	flush := func() error {
		err := l.Append(batch, events.Group)
		batch = batch[:0]
		if err == nil && l.Pressure() > 0.5 {
			err = l.Sync(ctx)
		}
		return err
	}
	step := func(c projector.Command) error {
		r := m.Step(projector.At(at), c)
		if r.Refused != nil {
			return fmt.Errorf("%T: %s", c, r.Refused.Detail)
		}
		if batch = append(batch, r.Events...); len(batch) < 1000 {
			return nil
		}
		at++
		return flush()
	}
	peer := projector.PeerDiscovered{
		Node: "p0", PDLog: true, Boot: 9, Incarnation: 1, Fence: events.FenceKind_FENCE_KIND_READER_STOPPED,
		Form: events.AckForm_ACK_FORM_V3, PageSize: 64, Ranks: []projector.PeerRank{{Rank: "p0/0", Address: "10.0.0.1:5000"}},
	}
	err = step(projector.Start{Boot: 1, Incarnation: rec.Incarnation, LogID: id[:], GenerationBase: 1})
	if err == nil {
		err = step(peer)
	}
	const open = 1000
	for room := uint64(1); err == nil && m.LastSeq() < uint64(total); room++ { //nolint:gosec // a count
		pages := []uint32{uint32(room % open * 4), uint32(room%open*4 + 1), uint32(room%open*4 + 2)} //nolint:gosec // small
		if room > open {
			err = step(projector.AbortRoom{Room: room - open})
		}
		if err == nil {
			err = step(projector.OpenRoom{Room: room, Pages: pages, Aux: -1, Reserve: true, Pairs: []projector.OpenPair{{Rank: "p0/0", To: "d0/0"}}})
		}
	}
	if err == nil {
		err = flush()
	}
	if e := l.Close(); err == nil {
		err = e
	}
	return err
}

// heard closes done when a line of the log holds text.
type heard struct {
	text string
	once sync.Once
	done chan struct{}
}

func (h *heard) Write(b []byte) (int, error) {
	if strings.Contains(string(b), h.text) {
		h.once.Do(func() { close(h.done) })
	}
	return len(b), nil
}
