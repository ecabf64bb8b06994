// Command pdfuzz runs every fuzz target of the module for a while each, or those
// whose names match, and reports them as rows of the ladder. One that fails does not
// keep the others from running; then the exit code is 1.
package main

import (
	"bytes"
	"cmp"
	"flag"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/pdlog/pdlog/test/ladder"
)

func main() {
	each := flag.Duration("time", 10*time.Second, "how long each target runs")
	only := flag.String("only", "", "targets whose `DIR Name` matches this expression; empty = all")
	flag.Parse()
	failed, err := run(*each, *only)
	if err != nil {
		fmt.Fprintf(os.Stderr, "pdfuzz: %v\n", err)
		os.Exit(3)
	}
	if len(failed) > 0 {
		fmt.Fprintf(os.Stderr, "pdfuzz: failed: %s\n", strings.Join(failed, ", "))
		os.Exit(1)
	}
}

func run(each time.Duration, only string) (failed []string, err error) {
	match, err := regexp.Compile(only)
	if err != nil {
		return nil, err
	}
	all, err := targets(".")
	if err != nil {
		return nil, err
	}
	ran := 0
	for _, t := range all {
		if !match.MatchString(t.dir + " " + t.name) {
			continue
		}
		ran++
		start := time.Now()
		execs, err := t.run(each)
		row := ladder.Row{Rung: "fuzz", What: t.dir + " " + t.name, Runs: execs, Took: time.Since(start)}
		if err != nil {
			row.Found = 1
			failed = append(failed, t.dir+" "+t.name)
		}
		fmt.Printf("%-60s %12d runs %8.1f s %s\n", row.What, row.Runs, row.Took.Seconds(), cmp.Or(map[bool]string{true: "FAILED"}[err != nil], "ok"))
		if path := os.Getenv(ladder.File); path != "" {
			if err := ladder.Add(path, row); err != nil {
				return nil, err
			}
		}
	}
	if ran == 0 {
		return nil, fmt.Errorf("no target matches %q", only)
	}
	return failed, nil
}

// target is a fuzz function of a package.
type target struct{ dir, name string }

var declared = regexp.MustCompile(`(?m)^func (Fuzz\w*)\(`)

// targets lists the fuzz functions below root, in order.
func targets(root string) (out []target, err error) {
	err = filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() && path != root && strings.HasPrefix(d.Name(), ".") {
			return fs.SkipDir
		}
		if d.IsDir() || !strings.HasSuffix(path, "_test.go") {
			return nil
		}
		b, err := os.ReadFile(path) //nolint:gosec // of this module
		for _, m := range declared.FindAllSubmatch(b, -1) {
			out = append(out, target{"./" + filepath.ToSlash(filepath.Dir(path)), string(m[1])})
		}
		return err
	})
	slices.SortFunc(out, func(a, b target) int { return cmp.Or(cmp.Compare(a.dir, b.dir), cmp.Compare(a.name, b.name)) })
	return out, err
}

var executed = regexp.MustCompile(`execs: (\d+)`)

func (t target) run(each time.Duration) (execs uint64, err error) {
	cmd := exec.Command("go", "test", "-run", "^$", "-fuzz", "^"+t.name+"$", "-fuzztime", each.String(), //nolint:gosec // of this module
		"-fuzzminimizetime", "5x", t.dir) // a minute is the default, and two live nodes never cover the same twice
	out, err := cmd.CombinedOutput()
	if found := executed.FindAllSubmatch(out, -1); len(found) > 0 {
		execs, _ = strconv.ParseUint(string(found[len(found)-1][1]), 10, 64) //nolint:errcheck // digits
	}
	if timedOut := bytes.Contains(out, []byte("context deadline exceeded")) && !bytes.Contains(out, []byte("Failing input")) && !bytes.Contains(out, []byte("panic")); timedOut {
		err = nil // the time was over while a worker was busy: go test calls that a failure
	}
	if err != nil {
		fmt.Fprintf(os.Stderr, "%s\n", out)
	}
	return execs, err
}
