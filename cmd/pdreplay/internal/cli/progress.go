package cli

import (
	"os"
	"time"

	"github.com/schollz/progressbar/v3"
	"golang.org/x/term"

	"github.com/pdlog/pdlog/replay"
)

// showProgress tells a person at a terminal how long the reads of logs will
// take, each log being read passes times. The function it returns ends it.
func showProgress(sys Sys, logs []*replay.Log, passes int) (stop func()) {
	f, ok := sys.Stderr.(*os.File)
	if !ok || !term.IsTerminal(int(f.Fd())) { //nolint:gosec // a descriptor
		return func() {}
	}
	const parts = 1000
	bar := progressbar.NewOptions(parts,
		progressbar.OptionSetWriter(f), progressbar.OptionSetDescription("reading"),
		progressbar.OptionSetPredictTime(true), progressbar.OptionClearOnFinish(),
		progressbar.OptionEnableColorCodes(os.Getenv("NO_COLOR") == ""))
	quit, done := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		tick := time.NewTicker(250 * time.Millisecond)
		defer tick.Stop()
		for {
			select {
			case <-quit:
				_ = bar.Finish() // it is only a bar
				return
			case <-tick.C:
				if share, ok := replay.Progress(logs, passes); ok {
					_ = bar.Set(int(parts * share))
				}
			}
		}
	}()
	return func() {
		close(quit)
		<-done
	}
}
