package node

import (
	"context"
	"fmt"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"connectrpc.com/connect"
	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"
	"golang.org/x/sync/errgroup"

	"github.com/pdlog/pdlog/node/enginepb"
	"github.com/pdlog/pdlog/rdma"
	"github.com/pdlog/pdlog/test/browsertest"
)

const manyPages = 100_000

// full: with as many rooms as a fleet's busiest host, and a bound on every
// interaction, which means something on a quiet machine alone.
func full() bool { return os.Getenv("PDLOG_BROWSER") != "" }

// crowd is a decode node with a large pool and many rooms, none of them
// published.
func crowd(t *testing.T, manyRooms int) *side {
	t.Helper()
	s, _ := crowdWith(t, manyRooms, func(uint64) uint32 { return 8 }, func(*Config, *Config) {})
	return s
}

// crowdWith is a crowd whose i-th room (0 is the first) has as many pages as
// size says, and its prefill node.
func crowdWith(t *testing.T, manyRooms int, size func(i uint64) uint32, with func(prefill, decode *Config)) (s, p *side) {
	t.Helper()
	pc, cfg := testConfig(t, "prefill", "p0"), withToken(t, testConfig(t, "decode", "d0"))
	with(&pc, &cfg)
	p = startSide(t, pc, 64)
	cfg.Pages, cfg.AuxRows = manyPages, manyRooms
	cfg.BootstrapTimeout = time.Hour
	cfg.Peers = []string{p.node.Bootstrap()}
	s = &side{t: t, page: 64}
	s.start(cfg)
	t.Cleanup(s.close)
	m, err := rdma.AllocMemfd("crowd", manyPages*64+manyRooms*auxBytes)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = m.Close() })
	if _, err := s.client.RegisterMemory(testContext(t), connect.NewRequest(&enginepb.RegisterMemoryRequest{
		Path: fmt.Sprintf("/proc/self/fd/%d", m.FD()), PageBytes: 64, Pages: manyPages, AuxBytes: auxBytes, AuxRows: uint64(manyRooms), //nolint:gosec // positive
	})); err != nil {
		t.Fatal(err)
	}
	s.awaitEvent("PeerRegistered", 0, 0)
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	var g errgroup.Group
	g.SetLimit(64)
	for i := range uint64(manyRooms) { //nolint:gosec // positive
		g.Go(func() error {
			_, err := s.client.OpenReceive(ctx, connect.NewRequest(&enginepb.OpenReceiveRequest{
				Room: i + 1, Count: size(i), Prefill: "p0", ReserveOnly: true, RequestId: fmt.Sprintf("req-%d", i+1),
			}))
			return err
		})
	}
	if err := g.Wait(); err != nil {
		t.Fatal(err)
	}
	return s, p
}

func openBrowser(t *testing.T) context.Context {
	t.Helper()
	if testing.Short() {
		t.Skip("takes some seconds")
	}
	return browsertest.Open(t, 1440, 900, 4*time.Minute)
}

// tab drives the page.
type tab struct {
	t   *testing.T
	ctx context.Context //nolint:containedctx // chromedp's way
}

func (b tab) do(actions ...chromedp.Action) {
	b.t.Helper()
	if err := chromedp.Run(b.ctx, actions...); err != nil {
		b.t.Fatal(err)
	}
}

// until waits for an expression to be true.
func (b tab) until(expr string) {
	b.t.Helper()
	var ok bool
	if err := chromedp.Run(b.ctx, chromedp.Poll(expr, &ok, chromedp.WithPollingTimeout(time.Minute))); err != nil {
		var text string
		_ = chromedp.Run(b.ctx, chromedp.Text("body", &text))
		b.t.Fatalf("%s: %v\n%.2000s", expr, err, text)
	}
}

func (b tab) number(expr string) float64 {
	b.t.Helper()
	var n float64
	b.do(chromedp.Evaluate(expr, &n))
	return n
}

func TestPageInABrowser(t *testing.T) {
	b := tab{t, openBrowser(t)}
	manyRooms, some := 400, "242" // make test-browser has 10,000
	if full() {
		manyRooms, some = 10_000, "4242"
	}
	s := crowd(t, manyRooms)
	b.do(chromedp.Navigate("http://" + s.node.httpAddr + "/"))
	b.until(fmt.Sprintf(`$("list").dataset.shown === "%d" && model.counts[1] === %d`, manyRooms, manyRooms*8))
	t.Run("the page stays small, however many rooms there are", func(t *testing.T) {
		if n := b.number(`document.querySelectorAll("*").length`); n > 2000 {
			t.Errorf("%v elements for %d pages and %d rooms", n, manyPages, manyRooms)
		}
		if n := b.number(`document.querySelectorAll(".row:not([hidden])").length`); n < 10 || n > 100 {
			t.Errorf("%v rows in the document", n)
		}
		if n := b.number(`map.cols * Math.ceil(model.pages / map.cols)`); n < manyPages {
			t.Errorf("%v cells on the map", n)
		}
	})
	t.Run("a change repaints the cells it touches alone", func(t *testing.T) {
		n := b.number(`(() => {
			let cells = 0, all = 0;
			const one = map.one, whole = map.all;
			map.one = function (p) { cells++; one.call(map, p); };
			map.all = function () { all++; whole.call(map); };
			const room = model.rooms.values().next().value;
			take({ rooms: [{ ...room, state: "held" }] });
			screen.show();
			take({ rooms: [room] });
			screen.show();
			map.one = one; map.all = whole;
			return all * 1e6 + cells;
		})()`)
		if n < 16 || n > 64 {
			t.Errorf("%v cells were painted for two changes of a room of 8 pages", n)
		}
	})
	t.Run("every interaction is answered, with PDLOG_BROWSER=1 within 100 ms", func(t *testing.T) { measureInteractions(t, b) })
	t.Run("the keyboard is enough", func(t *testing.T) {
		b.do(chromedp.KeyEvent("m"), chromedp.KeyEvent(kb.Home), chromedp.KeyEvent(kb.ArrowRight), chromedp.KeyEvent(kb.ArrowDown))
		b.until(`/^page \d+: owned, room \d+/.test($("cell").textContent) && map.cursor === 1 + map.cols`)
		b.do(chromedp.KeyEvent(kb.Enter))
		b.until(`!$("room").hidden && $("room").querySelectorAll(".life circle").length >= 2`)
		b.do(chromedp.KeyEvent(kb.Escape))
		b.until(`$("room").hidden`)
		// Not by KeyEvent: it would also type the character into the field.
		b.do(chromedp.Evaluate(`document.dispatchEvent(new KeyboardEvent("keydown", { key: "/", bubbles: true }))`, nil), chromedp.KeyEvent("req-"+some))
		b.until(`$("list").dataset.shown === "1"`)
		b.do(chromedp.Evaluate(`document.activeElement.blur()`, nil), chromedp.KeyEvent("r"), chromedp.KeyEvent(kb.Enter))
		b.until(`!$("room").hidden && /req-` + some + `/.test($("room").textContent)`)
	})
	t.Run("an abort is confirmed, and its pages come free", func(t *testing.T) {
		b.do(chromedp.Click(`button[data-action=abort]`), chromedp.WaitVisible("#confirm"))
		b.until(`$("go").disabled && $("want").textContent === "` + some + `"`)
		b.do(chromedp.SendKeys("#typed", some), chromedp.SendKeys("#token", "open"), chromedp.Click("#go"))
		b.until(`/token/.test($("answer").textContent)`)
		b.do(chromedp.SetValue("#token", "sesame"), chromedp.Click("#go"))
		b.until(fmt.Sprintf(`!$("confirm").open && model.counts[0] === %d`, manyPages-(manyRooms-1)*8))
		b.until(`/never_published/.test($("room").textContent) && /cause=client/.test($("room").textContent) && /Released/.test($("room").textContent)`)
		s.awaitEvent("Released", number(t, some), 0)
	})
	t.Run("the event stream is filtered", func(t *testing.T) {
		b.do(chromedp.SendKeys("#eventfilter", "room="+some))
		b.until(`$("stream").childElementCount >= 4 && [...$("stream").children].every(r => /room ` + some + `/.test(r.textContent)) && /RoomFailed/.test($("stream").textContent)`)
	})
	t.Run("it is there in light and dark", func(t *testing.T) {
		colour := func() string {
			var c string
			b.do(chromedp.Evaluate(`getComputedStyle(document.body).backgroundColor + map.colors.join()`, &c))
			return c
		}
		light := colour()
		b.do(emulation.SetEmulatedMedia().WithFeatures([]*emulation.MediaFeature{{Name: "prefers-color-scheme", Value: "dark"}}))
		b.until(`matchMedia("(prefers-color-scheme: dark)").matches`)
		b.until(`map.colors[0] === "#2b3137"`)
		if dark := colour(); dark == light {
			t.Errorf("dark looks as light: %s", dark)
		}
		b.do(chromedp.Evaluate(`document.activeElement.blur()`, nil), chromedp.KeyEvent("t"))
		b.until(`document.documentElement.dataset.theme === "light"`)
		if again := colour(); !strings.HasPrefix(again, light[:20]) {
			t.Errorf("light by hand is %s, was %s", again, light)
		}
	})
}

func number(t *testing.T, text string) uint64 {
	t.Helper()
	n, err := strconv.ParseUint(text, 10, 64)
	if err != nil {
		t.Fatal(err)
	}
	return n
}
