// Package browsertest opens pages in a real Chromium, for the tests of those
// that pdnode serves and pdreplay writes.
package browsertest

import (
	"context"
	"os/exec"
	"testing"
	"time"

	"github.com/chromedp/cdproto/runtime"
	"github.com/chromedp/chromedp"
)

// Open starts Chromium with a window of so many pixels and gives the context of
// an empty tab, which ends with the test or after limit. A page that throws
// fails the test; without Chromium it is skipped.
func Open(t *testing.T, width, height int, limit time.Duration) context.Context {
	t.Helper()
	path, err := exec.LookPath("chromium")
	if err != nil {
		t.Skip("needs the browser chromium (Debian's package of that name)")
	}
	opts := append(chromedp.DefaultExecAllocatorOptions[:], chromedp.ExecPath(path), chromedp.NoSandbox, chromedp.DisableGPU,
		chromedp.WindowSize(width, height), chromedp.WSURLReadTimeout(2*time.Minute), chromedp.UserDataDir(t.TempDir()))
	ctx, stop := chromedp.NewExecAllocator(context.Background(), opts...)
	ctx, cancel := context.WithTimeout(ctx, limit)
	// Events of a newer Chromium than chromedp knows are no errors of the page.
	ctx, closeTab := chromedp.NewContext(ctx, chromedp.WithErrorf(func(string, ...any) {}))
	t.Cleanup(func() {
		_ = chromedp.Cancel(ctx)
		closeTab()
		cancel()
		stop()
	})
	chromedp.ListenTarget(ctx, func(ev any) {
		if ex, ok := ev.(*runtime.EventExceptionThrown); ok {
			t.Errorf("the page threw: %s", ex.ExceptionDetails.Error())
		}
	})
	return ctx
}
