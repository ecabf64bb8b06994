package conformance_test

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

var (
	faultLine    = regexp.MustCompile(`^\| F(\d+) \|`)
	quoted       = regexp.MustCompile("`([^`]+)`")
	scenarioName = regexp.MustCompile(`^\d{3}-[a-z0-9-]+$`)
	testName     = regexp.MustCompile(`^(Test|Fuzz)[A-Z]\w+$`)
	testFunc     = regexp.MustCompile(`(?m)^func ((?:Test|Fuzz)\w+)\(`)
)

// docs/faults.md has a line for each of the fifty faults, in order, no cell of
// it is empty, and every file, scenario and test it names is there.
func TestFaultTableIsWhole(t *testing.T) {
	root := filepath.Join("..", "..")
	text, err := os.ReadFile(filepath.Join(root, "docs", "faults.md"))
	if err != nil {
		t.Fatal(err)
	}
	tests := testNames(t, root)
	if len(tests) < 50 {
		t.Fatalf("%d tests found: the search is broken", len(tests))
	}
	next := 1
	for line := range strings.Lines(string(text)) {
		line = strings.TrimSpace(line)
		m := faultLine.FindStringSubmatch(line)
		if m == nil {
			continue
		}
		if m[1] != fmt.Sprint(next) {
			t.Fatalf("F%s stands where F%d should", m[1], next)
		}
		cells := strings.Split(strings.Trim(line, "|"), "|")
		if len(cells) != 5 {
			t.Errorf("F%d has %d cells, want 5", next, len(cells))
			next++
			continue
		}
		for i, c := range cells {
			if strings.TrimSpace(c) == "" {
				t.Errorf("F%d: cell %d is empty", next, i+1)
			}
		}
		where, shown := quoted.FindAllStringSubmatch(cells[3], -1), quoted.FindAllStringSubmatch(cells[4], -1)
		if len(where) == 0 || len(shown) == 0 {
			t.Errorf("F%d names no file, or nothing that shows it", next)
		}
		for _, q := range where {
			if _, err := os.Stat(filepath.Join(root, filepath.FromSlash(q[1]))); err != nil {
				t.Errorf("F%d: no file %s", next, q[1])
			}
		}
		for _, q := range shown {
			switch name := q[1]; {
			case scenarioName.MatchString(name):
				if _, err := os.Stat(filepath.Join(root, "test", "scenarios", name+".txt")); err != nil {
					t.Errorf("F%d: no scenario %s", next, name)
				}
			case testName.MatchString(name):
				if !tests[name] {
					t.Errorf("F%d: no test %s", next, name)
				}
			default:
				t.Errorf("F%d: %q is neither a scenario nor a test", next, name)
			}
		}
		next++
	}
	if next != 51 {
		t.Errorf("the table ends at F%d, want F50", next-1)
	}
}

// testNames lists the test and fuzz functions of the tree.
func testNames(t *testing.T, root string) map[string]bool {
	t.Helper()
	names := map[string]bool{}
	err := filepath.WalkDir(root, func(p string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && strings.HasPrefix(d.Name(), ".") && p != root:
			return fs.SkipDir
		case d.IsDir() || !strings.HasSuffix(p, "_test.go"):
			return nil
		}
		src, err := os.ReadFile(p)
		for _, m := range testFunc.FindAllSubmatch(src, -1) {
			names[string(m[1])] = true
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return names
}
