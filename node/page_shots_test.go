package node

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"connectrpc.com/connect"
	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"

	"github.com/pdlog/pdlog/node/enginepb"
)

// TestPageScreenshots makes the pictures of the page in docs/ (make
// page-screenshots): a busy host whose prefill node has gone, in the middle of
// many aborts.
func TestPageScreenshots(t *testing.T) {
	if os.Getenv("PDLOG_SCREENSHOTS") == "" {
		t.Skip("needs PDLOG_SCREENSHOTS=1: make page-screenshots")
	}
	b := tab{t, openBrowser(t)}
	const rooms = 2400
	s, p := crowdWith(t, rooms, func(i uint64) uint32 { return uint32(8 + i*7919%50) }, func(p, d *Config) { //nolint:gosec // small
		p.RDMA.Fault = "hang"
		d.AckTimeout, d.AbortRetry = time.Hour, time.Minute
		p.EngineTimeout, d.EngineTimeout = 0, 0
	})
	go func() { // nobody else reads what it is told
		for {
			select {
			case <-p.notes:
			case <-p.ended:
				return
			}
		}
	}()
	do := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	for i := uint64(1); i <= rooms; i += 3 {
		_, err := s.client.Publish(testContext(t), connect.NewRequest(&enginepb.RoomRequest{Room: i}))
		do(err)
	}
	for i := uint64(1); i <= rooms; i += 15 { // the write of each hangs, and holds the room
		_, err := p.client.OpenSend(testContext(t), connect.NewRequest(&enginepb.OpenSendRequest{Room: i}))
		do(err)
		p.eventually("its metadata is there", func() bool {
			r, err := p.client.Poll(testContext(t), connect.NewRequest(&enginepb.PollRequest{Rooms: []uint64{i}}))
			return err == nil && r.Msg.Rooms[0].Poll == enginepb.RoomState_POLL_WAITING_FOR_INPUT
		})
		_, err = p.client.SendChunk(testContext(t), connect.NewRequest(&enginepb.SendChunkRequest{Room: i, Count: 1, SourcePages: []uint32{0}}))
		do(err)
		_, err = s.client.Abort(testContext(t), connect.NewRequest(&enginepb.AbortRequest{Room: i, Reason: "the client went away"}))
		do(err)
	}
	for i := uint64(2); i <= rooms; i += 21 {
		_, err := s.client.Abort(testContext(t), connect.NewRequest(&enginepb.AbortRequest{Room: i, Reason: "the client went away"}))
		do(err)
	}
	shot := func(name string) {
		var png []byte
		b.do(chromedp.FullScreenshot(&png, 100))
		do(os.WriteFile(filepath.Join("..", "docs", name), png, 0o644)) //nolint:gosec // a picture for everybody
	}
	b.do(chromedp.Navigate("http://" + s.node.httpAddr + "/"))
	b.until(`model.counts[2] > 1000 && $("stream").childElementCount > 20`)
	shot("page.png")
	b.do(emulation.SetEmulatedMedia().WithFeatures([]*emulation.MediaFeature{{Name: "prefers-color-scheme", Value: "dark"}}))
	b.until(`map.colors[0] === "#2b3137"`)
	b.do(chromedp.Evaluate(`document.dispatchEvent(new KeyboardEvent("keydown", { key: "/", bubbles: true }))`, nil), chromedp.KeyEvent("held"))
	b.until(`[...document.querySelectorAll(".row:not([hidden])")].every(r => /held/.test(r.textContent))`)
	b.do(chromedp.Evaluate(`document.activeElement.blur()`, nil), chromedp.KeyEvent("r"), chromedp.KeyEvent(kb.Enter))
	b.until(`!$("room").hidden && $("room").querySelectorAll(".life circle").length >= 4`)
	shot("page-dark.png")
}
