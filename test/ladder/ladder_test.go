package ladder_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/pdlog/pdlog/test/ladder"
)

// TestRowsOfARungAreAdded: many tests report to one file; the table has a line
// for each rung, with sums.
func TestRowsOfARungAreAdded(t *testing.T) {
	path := filepath.Join(t.TempDir(), "rows")
	t.Setenv(ladder.File, path)
	ladder.Report(t, ladder.Row{Rung: "simulation", What: "small", Runs: 100, Faults: 7, Took: time.Second})
	ladder.Report(t, ladder.Row{Rung: "crash images", Runs: 3000, Took: 2 * time.Second})
	ladder.Report(t, ladder.Row{Rung: "simulation", What: "large", Runs: 6, Faults: 5, Found: 1, Took: 500 * time.Millisecond})
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = f.Close() }()
	rows, err := ladder.Read(f)
	if err != nil || len(rows) != 3 {
		t.Fatalf("%d rows, %v", len(rows), err)
	}
	var b strings.Builder
	if err := ladder.Table(&b, ladder.Sum(rows)); err != nil {
		t.Fatal(err)
	}
	want := "rung          runs  faults injected  found  time\ncrash images  3000  0                0      2.0 s\nsimulation    106   12               1      1.5 s\n"
	if b.String() != want {
		t.Errorf("have:\n%swant:\n%s", b.String(), want)
	}
}
