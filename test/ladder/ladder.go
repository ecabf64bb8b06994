// Package ladder collects what the rungs of docs/reliability.md came to: tests
// report rows, and `make test` and `make night` print them as one table. It may
// be used by any test; nothing else imports it.
package ladder

import (
	"bufio"
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"slices"
	"testing"
	"text/tabwriter"
	"time"
)

// File is the environment variable that names the file of rows; without it,
// rows go to the test's log alone.
const File = "PDLOG_LADDER"

// Row is what one part of a rung came to.
type Row struct {
	Rung   string
	What   string        // the part, within the rung
	Runs   uint64        // seeds, images, files, stories: what the rung counts
	Faults uint64        // how many were injected
	Found  uint64        // breaches; in a rung of controls, the planted faults that were found
	Took   time.Duration // wall clock
}

// Report adds a row. Lines are short and appended by one write, so that the
// processes of `go test ./...` can share the file.
func Report(t testing.TB, r Row) {
	t.Helper()
	t.Logf("%s, %s: %d runs, %d faults injected, %d found, %s", r.Rung, r.What, r.Runs, r.Faults, r.Found, r.Took.Round(time.Millisecond))
	path := os.Getenv(File)
	if path == "" {
		return
	}
	if err := Add(path, r); err != nil {
		t.Errorf("report to %s=%s: %v", File, path, err)
	}
}

// Add appends a row to a file.
func Add(path string, r Row) error {
	b, err := json.Marshal(r)
	if err != nil {
		return err
	}
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_APPEND|os.O_CREATE, 0o600) //nolint:gosec // the path is the caller's
	if err != nil {
		return err
	}
	_, err = f.Write(append(b, '\n'))
	return cmp.Or(err, f.Close())
}

// Read takes the rows of a file.
func Read(r io.Reader) ([]Row, error) {
	var rows []Row
	sc := bufio.NewScanner(r)
	for line := 1; sc.Scan(); line++ {
		var row Row
		if err := json.Unmarshal(sc.Bytes(), &row); err != nil {
			return nil, fmt.Errorf("line %d: %w", line, err)
		}
		rows = append(rows, row)
	}
	return rows, sc.Err()
}

// Sum adds up the rows of each rung, in the order of their names.
func Sum(rows []Row) []Row {
	at := map[string]int{}
	var out []Row
	for _, r := range rows {
		i, ok := at[r.Rung]
		if !ok {
			i = len(out)
			at[r.Rung] = i
			out = append(out, Row{Rung: r.Rung})
		}
		s := &out[i]
		s.Runs, s.Faults, s.Found, s.Took = s.Runs+r.Runs, s.Faults+r.Faults, s.Found+r.Found, s.Took+r.Took
	}
	slices.SortFunc(out, func(a, b Row) int { return cmp.Compare(a.Rung, b.Rung) })
	return out
}

// Table prints rungs. Their times overlap where packages ran side by side.
func Table(w io.Writer, rows []Row) error {
	tw := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	_, err := fmt.Fprintln(tw, "rung\truns\tfaults injected\tfound\ttime")
	for _, r := range rows {
		_, e := fmt.Fprintf(tw, "%s\t%d\t%d\t%d\t%.1f s\n", r.Rung, r.Runs, r.Faults, r.Found, r.Took.Seconds())
		err = cmp.Or(err, e)
	}
	return cmp.Or(err, tw.Flush())
}
