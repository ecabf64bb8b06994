package logformat

import (
	"bytes"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"testing"
)

// Each test that the table of faults in docs/log-format.md names is there.
func TestFaultsOfTheLogAreShown(t *testing.T) {
	root := filepath.Join("..", "..")
	text, err := os.ReadFile(filepath.Join(root, "docs", "log-format.md"))
	if err != nil {
		t.Fatal(err)
	}
	_, table, ok := bytes.Cut(text, []byte("## Faults of disk"))
	if !ok {
		t.Fatal("the table is gone")
	}
	missing := map[string]bool{}
	for _, m := range regexp.MustCompile("`(Test[A-Za-z0-9]+)`").FindAllSubmatch(table, -1) {
		missing[string(m[1])] = true
	}
	if len(missing) < 20 {
		t.Fatalf("%d tests are named", len(missing))
	}
	for _, dir := range []string{"store", "node", "test/crash"} {
		err := filepath.WalkDir(filepath.Join(root, dir), func(path string, d fs.DirEntry, err error) error {
			if err != nil || d.IsDir() || !bytes.HasSuffix([]byte(path), []byte("_test.go")) {
				return err
			}
			b, err := os.ReadFile(path)
			for name := range missing {
				if bytes.Contains(b, []byte("\nfunc "+name+"(t *testing.T)")) {
					delete(missing, name)
				}
			}
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	for name := range missing {
		t.Errorf("%s is nowhere", name)
	}
}
