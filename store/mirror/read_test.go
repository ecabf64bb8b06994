package mirror

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"pgregory.net/rapid"

	"github.com/pdlog/pdlog/events"
	"github.com/pdlog/pdlog/store"
)

// message makes a mirror message of the frames.
func message(frames []store.Frame, change func(*nats.Msg)) *nats.Msg {
	first, last := frames[0].Info, frames[len(frames)-1].Info
	h := logHead{
		node: "d0", logID: store.LogID{1}, first: first.FirstSeq, last: last.LastSeq,
		chainBefore: first.PrevChain, chain: last.Chain, boot: first.Boot, incarnation: first.Incarnation,
	}
	msg := &nats.Msg{Subject: SubjectLog("c1", "d0"), Header: h.header()}
	for _, f := range frames {
		msg.Data = append(msg.Data, f.Data...)
	}
	if change != nil {
		change(msg)
	}
	return msg
}

// What is wrong with a mirror is named, and the rest of it is still read.
func TestReaderNamesWhatIsWrong(t *testing.T) {
	n := openNode(t, "d0", t.TempDir(), 1)
	n.append(400)
	fr, err := n.log.ReadFrames(1, 1<<20)
	if err != nil || len(fr) < 6 {
		t.Fatal(len(fr), err)
	}
	end := func(i int) uint64 { return fr[i].Info.LastSeq }
	for name, c := range map[string]struct {
		msgs []*nats.Msg
		want []FindingKind
		last uint64
		seen uint64 // events handed on
	}{
		"whole":      {[]*nats.Msg{message(fr[:2], nil), message(fr[2:4], nil)}, nil, end(3), end(3)},
		"gap":        {[]*nats.Msg{message(fr[:2], nil), message(fr[3:4], nil)}, []FindingKind{FindingGap}, end(3), end(1) + end(3) - end(2)},
		"late start": {[]*nats.Msg{message(fr[1:3], nil)}, []FindingKind{FindingGap}, end(2), end(2) - end(0)},
		"duplicate":  {[]*nats.Msg{message(fr[:2], nil), message(fr[1:2], nil), message(fr[2:3], nil)}, []FindingKind{FindingDuplicate}, end(2), end(2)},
		"overlap":    {[]*nats.Msg{message(fr[:2], nil), message(fr[1:4], nil)}, []FindingKind{FindingDuplicate}, end(3), end(3)},
		"chain": {[]*nats.Msg{message(fr[:2], nil), message(fr[2:4], func(m *nats.Msg) { m.Header.Set(HeaderChainBefore, "00000001") })},
			[]FindingKind{FindingChain, FindingMessage}, end(3), end(3)},
		"bytes": {[]*nats.Msg{message(fr[:2], func(m *nats.Msg) { m.Data[len(fr[0].Data)+60] ^= 1 }), message(fr[2:3], nil)},
			[]FindingKind{FindingMessage}, end(2), end(2) - (end(1) - end(0))},
		"headers": {[]*nats.Msg{message(fr[:2], func(m *nats.Msg) { m.Header.Del(HeaderChain) }), message(fr[2:3], nil)},
			[]FindingKind{FindingMessage, FindingGap}, end(2), end(2) - end(1)},
		"wrong sequence": {[]*nats.Msg{message(fr[:2], func(m *nats.Msg) { m.Header.Set(HeaderLastSeq, "9999") })},
			[]FindingKind{FindingMessage}, end(1), end(1)},
	} {
		t.Run(name, func(t *testing.T) {
			srv := startServer(t, t.TempDir(), -1)
			nc := connect(t, srv)
			js, err := jetstream.New(nc)
			if err != nil {
				t.Fatal(err)
			}
			ctx := testCtx(t)
			if _, err := js.CreateStream(ctx, jetstream.StreamConfig{Name: StreamLog, Subjects: []string{prefixLog + ">"}}); err != nil {
				t.Fatal(err)
			}
			for _, m := range c.msgs {
				if _, err := js.PublishMsg(ctx, m); err != nil {
					t.Fatal(err)
				}
			}
			var last, seen uint64
			findings, err := Read(ctx, nc, Filter{Node: "d0"}, func(it Item) error {
				if it.Event.Seq <= last {
					t.Errorf("event %d after %d", it.Event.Seq, last)
				}
				last = it.Event.Seq
				seen++
				return nil
			})
			if err != nil || last != c.last || seen != c.seen {
				t.Errorf("read %d events up to %d, want %d up to %d: %v", seen, last, c.seen, c.last, err)
			}
			var kinds []FindingKind
			for _, f := range findings {
				kinds = append(kinds, f.Kind)
				if f.Node != "d0" || f.Cluster != "c1" || f.StreamSeq == 0 || !strings.Contains(f.String(), string(f.Kind)) {
					t.Errorf("finding %v", f)
				}
			}
			if len(kinds) != len(c.want) {
				t.Fatalf("findings %v, want %v", findings, c.want)
			}
			for i := range kinds {
				if kinds[i] != c.want[i] {
					t.Errorf("findings %v, want %v", findings, c.want)
				}
			}
		})
	}
}

func TestReadEndsWithItsVisitorAndContext(t *testing.T) {
	srv := startServer(t, t.TempDir(), -1)
	nc := connect(t, srv)
	if _, err := Read(testCtx(t), nc, Filter{}, nil); !errors.Is(err, jetstream.ErrStreamNotFound) {
		t.Errorf("no stream: %v", err)
	}
	n := openNode(t, "d0", t.TempDir(), 1)
	n.append(100)
	r := run(t, n, srv.ClientURL())
	r.wait(t, n.seq)
	r.stop(t)
	stop := errors.New("enough")
	if _, err := Read(testCtx(t), nc, Filter{}, func(Item) error { return stop }); !errors.Is(err, stop) {
		t.Errorf("visitor's error: %v", err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	_, err := Read(ctx, nc, Filter{}, func(Item) error { cancel(); return ctx.Err() })
	if !errors.Is(err, context.Canceled) {
		t.Errorf("context: %v", err)
	}
	if f, err := Read(testCtx(t), nc, Filter{Cluster: "elsewhere"}, func(Item) error { return stop }); err != nil || f != nil {
		t.Errorf("nothing matches: %v, %v", f, err)
	}
}

func TestNamesBecomeTokensAndBack(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		name := rapid.StringN(1, 20, -1).Draw(t, "name")
		tok := token(name)
		if strings.ContainsAny(tok, ".*> \t\r\n") || untoken(tok) != name {
			t.Fatalf("%q became %q and %q", name, tok, untoken(tok))
		}
		c, n, ok := SplitLog(SubjectLog(name, "n.1"))
		if c != name || n != "n.1" || !ok {
			t.Fatalf("split: %q %q %v", c, n, ok)
		}
	})
}

func TestURLs(t *testing.T) {
	for in, want := range map[string][2]string{
		"nats://h:4222":                  {"nats://h:4222", ""},
		"nats://h:4222/c1":               {"nats://h:4222", "c1"},
		"nats://u:p@h:1/c1/":             {"nats://u:p@h:1", "c1"},
		"nats://a:1,b:2,nats://c:3/prod": {"nats://a:1,nats://b:2,nats://c:3", "prod"},
		"tls://a:1,b:2":                  {"tls://a:1,tls://b:2", ""},
		"nats://a:1/c,b:2":               {}, "nats://a:1,": {}, "nats://a:b": {},
		"http://h": {}, "nats://": {}, "h:4222": {}, "nats://h/a/b": {}, "": {},
	} {
		s, c, err := ParseURL(in)
		if s != want[0] || c != want[1] || (want[0] == "") != errors.Is(err, ErrURL) {
			t.Errorf("%q: %q %q %v", in, s, c, err)
		}
	}
}

func TestRoomsAreStringsInAuditJSON(t *testing.T) {
	e := &events.Event{Seq: 1, Room: 5009007199254740993, Rank: `p","room":7`, Payload: &events.Event_PeerLost{PeerLost: &events.PeerLost{Peer: `,"room":8`}}}
	have := string(appendAuditJSON(nil, e))
	plain := string(events.AppendJSON(nil, e))
	want := strings.Replace(plain, `,"room":5009007199254740993,`, `,"room":"5009007199254740993",`, 1)
	if have != want || want == plain {
		t.Errorf("have %s\nwant %s", have, want)
	}
}
