package picture_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/cdproto/runtime"
	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"

	"github.com/pdlog/pdlog/replay"
	"github.com/pdlog/pdlog/test/browsertest"
)

// browser starts Chromium, where there is one; its pages must not throw.
func browser(t *testing.T) context.Context {
	t.Helper()
	if testing.Short() {
		t.Skip("takes some seconds")
	}
	return browsertest.Open(t, 1366, 900, 3*time.Minute)
}

// visit opens a page from disk, as a reader would, in light or dark.
func visit(t *testing.T, ctx context.Context, html, scheme string) {
	t.Helper()
	file := filepath.Join(t.TempDir(), "page.html")
	if err := os.WriteFile(file, []byte(html), 0o600); err != nil {
		t.Fatal(err)
	}
	media := emulation.SetEmulatedMedia().WithFeatures([]*emulation.MediaFeature{{Name: "prefers-color-scheme", Value: scheme}})
	do(t, ctx, media, chromedp.Navigate("file://"+file), chromedp.WaitReady("#chart svg"))
}

func TestInABrowser(t *testing.T) {
	ctx := browser(t)
	report, timeline := reportOf(t, scenarioLogs(t, incident)), timelineOf(t, scenarioLogs(t, incident))
	t.Run("a reader finds the late write", func(t *testing.T) { findsTheLateWrite(t, ctx, report) })
	t.Run("the keyboard is enough", func(t *testing.T) { keyboardIsEnough(t, ctx, timeline) })
	t.Run("it is readable in the dark", func(t *testing.T) { readableInTheDark(t, ctx, timeline) })
	t.Run("a large page opens", func(t *testing.T) { largePageOpens(t, ctx) })
}

func do(t *testing.T, ctx context.Context, actions ...chromedp.Action) {
	t.Helper()
	if err := chromedp.Run(ctx, actions...); err != nil {
		t.Fatal(err)
	}
}

func text(t *testing.T, ctx context.Context, sel string) string {
	t.Helper()
	var s string
	do(t, ctx, chromedp.Text(sel, &s))
	return s
}

func count(t *testing.T, ctx context.Context, sel string) int {
	t.Helper()
	var n int
	do(t, ctx, chromedp.Evaluate(fmt.Sprintf("document.querySelectorAll(%q).length", sel), &n))
	return n
}

// settled waits until the page has drawn what was asked of it.
var settled = chromedp.Evaluate("new Promise(r => requestAnimationFrame(() => requestAnimationFrame(() => r(true))))", nil,
	func(p *runtime.EvaluateParams) *runtime.EvaluateParams { return p.WithAwaitPromise(true) })

func findsTheLateWrite(t *testing.T, ctx context.Context, html string) {
	visit(t, ctx, html, "light")
	if s := text(t, ctx, "#verdict"); !strings.Contains(s, "4 pages were written") || !strings.Contains(s, "p/0") {
		t.Errorf("the verdict reads %q", s)
	}
	for sel, want := range map[string]int{"rect.late": 1, "rect.victim": 1, "path.unsafe": 1, "path.latewrite": 1} {
		if n := count(t, ctx, "#chart "+sel); n != want {
			t.Errorf("%d %s are drawn, want %d", n, sel, want)
		}
	}

	// A click on the late write says what it is and links to its events.
	do(t, ctx, chromedp.Click("#chart rect.late"), settled)
	if s := text(t, ctx, "#detail"); !strings.Contains(s, "room 7 chunk 2: p/0 writes pages 20-23 of d/0") || !strings.Contains(s, "after the pages had been released") {
		t.Errorf("the detail reads %q", s)
	}
	if n := count(t, ctx, "#chart .chosen"); n != 1 {
		t.Errorf("%d bars are chosen, want 1", n)
	}
	var target string
	do(t, ctx, chromedp.Click("#detail a.ref"), chromedp.Evaluate("document.querySelector('tr:target').textContent", &target))
	if !strings.Contains(target, "ChunkPosted") {
		t.Errorf("the link leads to %q", target)
	}

	// Every sentence of the verdict and of the blame leads to an event that is there.
	var dead []string
	do(t, ctx, chromedp.Evaluate("[...document.querySelectorAll('a.ref')].filter(a => !document.getElementById(a.hash.slice(1))).map(a => a.hash)", &dead))
	if len(dead) > 0 {
		t.Errorf("links without an event: %v", dead)
	}
}

func keyboardIsEnough(t *testing.T, ctx context.Context, html string) {
	visit(t, ctx, html, "light")
	span := func() float64 {
		var x []float64
		do(t, ctx, settled, chromedp.Evaluate("[...document.querySelectorAll('#chart rect.late')].map(r => +r.getAttribute('width'))", &x))
		if len(x) != 1 {
			t.Fatalf("the late write is drawn %d times", len(x))
		}
		return x[0]
	}
	do(t, ctx, chromedp.Focus("#chart"))
	whole := span()
	do(t, ctx, chromedp.KeyEvent("+"), chromedp.KeyEvent("+"))
	if near := span(); near <= whole {
		t.Errorf("+ made the late write %.0f wide, it was %.0f", near, whole)
	}
	do(t, ctx, chromedp.KeyEvent(kb.ArrowRight), chromedp.KeyEvent("-"), chromedp.KeyEvent(kb.Home))
	if again := span(); again != whole {
		t.Errorf("after Home it is %.0f wide, want %.0f", again, whole)
	}
	do(t, ctx, chromedp.KeyEvent("n"), settled)
	if s := text(t, ctx, "#detail"); !strings.Contains(s, "room 7") {
		t.Errorf("n chose %q", s)
	}
}

func readableInTheDark(t *testing.T, ctx context.Context, html string) {
	colors := map[string]string{}
	for _, scheme := range []string{"light", "dark"} {
		visit(t, ctx, html, scheme)
		var c string
		do(t, ctx, chromedp.Evaluate("getComputedStyle(document.body).backgroundColor", &c))
		colors[scheme] = c
	}
	if colors["light"] != "rgb(255, 255, 255)" || colors["dark"] == colors["light"] {
		t.Errorf("have %v", colors)
	}
}

// More events than are shown one by one: the lanes are drawn, and n goes to the
// late write. PDLOG_PICTURE_EVENTS=1000000 makes it as many.
func largePageOpens(t *testing.T, ctx context.Context) {
	html := timelineOf(t, logsOf(t, fleet(t, 800)))
	if os.Getenv("PDLOG_PICTURE_EVENTS") != "" {
		html, _ = largeTimeline(t)
	}
	start := time.Now()
	visit(t, ctx, html, "dark")
	t.Logf("a page of %d KiB opened in %v", len(html)>>10, time.Since(start).Round(time.Millisecond))
	if n := count(t, ctx, "#chart rect.busy"); n < 100 {
		t.Errorf("%d bars show how busy the lanes were", n)
	}
	do(t, ctx, chromedp.Focus("#chart"), chromedp.KeyEvent("n"), settled)
	if s := text(t, ctx, "#detail"); !strings.Contains(s, "after the pages had been released") {
		t.Errorf("n chose %q", s)
	}
}

// TestScreenshots takes pictures for the documents (make screenshots): of the report
// on the logs in PDLOG_SCREENSHOT_LOGS, into the folder PDLOG_SCREENSHOTS.
func TestScreenshots(t *testing.T) {
	dir, src := os.Getenv("PDLOG_SCREENSHOTS"), os.Getenv("PDLOG_SCREENSHOT_LOGS")
	if dir == "" || src == "" {
		t.Skip("needs PDLOG_SCREENSHOTS=DIR and PDLOG_SCREENSHOT_LOGS=SRC")
	}
	ctx := browser(t)
	logs, err := replay.Open(t.Context(), []string{src})
	if err != nil {
		t.Fatal(err)
	}
	html := reportOf(t, logs)
	for name, top := range map[string]string{"incident-report": "body", "incident-timeline": "#timeline"} {
		scheme := map[string]string{"incident-report": "light", "incident-timeline": "dark"}[name]
		var png []byte
		visit(t, ctx, html, scheme)
		do(t, ctx, chromedp.EmulateViewport(1100, 560), chromedp.Focus("#chart"), chromedp.KeyEvent("n"), settled,
			chromedp.Evaluate(fmt.Sprintf("document.querySelector(%q).scrollIntoView()", top), nil), settled, chromedp.CaptureScreenshot(&png))
		if err := os.WriteFile(filepath.Join(dir, name+".png"), png, 0o600); err != nil {
			t.Fatal(err)
		}
	}
}
