// Package deps holds the import rules of ARCHITECTURE.md to account: a package
// imports only from rows below its own, never a neighbour, and the pure
// packages import nothing that does I/O, tells time or waits.
package deps

import (
	"go/parser"
	"go/token"
	"io/fs"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
)

const module = "github.com/pdlog/pdlog/"

// rows, bottom first. A top folder may import folders of rows below its own,
// and whatever stands in itself.
var rows = [][]string{
	{"events"},
	{"projector"},
	{"store", "backends", "rdma"},
	{"node", "replay"},
	{"cmd"},
}

// allowed are the exceptions, each with its reason.
var allowed = map[string]string{
	"replay -> node/enginepb": "the schema by which a live node's log is read; generated code only",
}

func rowOf(pkg string) int {
	top, _, _ := strings.Cut(pkg, "/")
	for i, r := range rows {
		if slices.Contains(r, top) {
			return i
		}
	}
	return -1
}

type file struct {
	pkg, name string
	imports   []string
}

// sources lists the files of the product that are not generated and no tests.
func sources(t *testing.T) []file {
	t.Helper()
	var out []file
	root := filepath.Join("..", "..")
	err := filepath.WalkDir(root, func(p string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		rel, _ := filepath.Rel(root, p)
		rel = filepath.ToSlash(rel)
		if d.IsDir() {
			if strings.HasPrefix(d.Name(), ".") && rel != "." || d.Name() == "testdata" || rel == "bin" {
				return fs.SkipDir
			}
			return nil
		}
		if !strings.HasSuffix(rel, ".go") || strings.HasSuffix(rel, "_test.go") || strings.HasSuffix(rel, ".pb.go") || strings.HasSuffix(rel, ".connect.go") {
			return nil
		}
		f, err := parser.ParseFile(token.NewFileSet(), p, nil, parser.ImportsOnly)
		if err != nil {
			return err
		}
		x := file{pkg: path.Dir(rel), name: rel}
		for _, i := range f.Imports {
			s, _ := strconv.Unquote(i.Path.Value)
			x.imports = append(x.imports, s)
		}
		out = append(out, x)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if len(out) < 50 {
		t.Fatalf("found %d source files: looking in the wrong place", len(out))
	}
	return out
}

func TestPackagesImportOnlyFromBelow(t *testing.T) {
	for _, f := range sources(t) {
		row := rowOf(f.pkg)
		if row < 0 {
			continue // internal, test
		}
		top, _, _ := strings.Cut(f.pkg, "/")
		for _, imp := range f.imports {
			pkg, ours := strings.CutPrefix(imp, module)
			if !ours || rowOf(pkg) < 0 {
				continue
			}
			other, _, _ := strings.Cut(pkg, "/")
			if other == top || rowOf(pkg) < row {
				continue
			}
			if allowed[top+" -> "+pkg] == "" {
				t.Errorf("%s imports %s: only rows below %s may be imported", f.name, pkg, top)
			}
		}
	}
}

func TestPurePackagesStayPure(t *testing.T) {
	impure := []string{"net", "os", "io/fs", "sync", "context", "log", "log/slog", "math/rand", "math/rand/v2", "time/tzdata", "unsafe", "syscall", "runtime"}
	for _, f := range sources(t) {
		top, _, _ := strings.Cut(f.pkg, "/")
		if top != "events" && top != "projector" || strings.HasSuffix(f.pkg, "historytest") {
			continue
		}
		for _, imp := range f.imports {
			for _, bad := range impure {
				if imp == bad || strings.HasPrefix(imp, bad+"/") {
					t.Errorf("%s imports %s: the pure packages do no I/O, tell no time and do not wait", f.name, imp)
				}
			}
			third := strings.Contains(strings.Split(imp, "/")[0], ".") && !strings.HasPrefix(imp, module) && !strings.HasPrefix(imp, "google.golang.org/protobuf/")
			if third {
				t.Errorf("%s imports %s: the pure packages use the standard library and protobuf", f.name, imp)
			}
		}
	}
}
