// Package built gives tests of whole processes the commands of this tree.
package built

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"

	"github.com/cockroachdb/errors"
)

// BinEnv names a folder that holds the commands as this tree has them; make
// sets it for the tests that it runs behind its build.
const BinEnv = "PDLOG_BIN"

// Into puts commands (pdnode, pdreplay) into dir: links to those of BinEnv, or,
// where it is not set, newly built ones.
func Into(ctx context.Context, dir string, names ...string) error {
	from := os.Getenv(BinEnv)
	for _, name := range names {
		to := filepath.Join(dir, name)
		if from != "" {
			if _, err := os.Stat(filepath.Join(from, name)); err != nil {
				return errors.Wrap(err, BinEnv)
			}
			if err := os.Symlink(filepath.Join(from, name), to); err != nil {
				return errors.Wrap(err, BinEnv)
			}
			continue
		}
		out, err := exec.CommandContext(ctx, "go", "build", "-buildvcs=false", "-o", to, "github.com/pdlog/pdlog/cmd/"+name).CombinedOutput() //nolint:gosec // a command of ours
		if err != nil {
			return errors.Wrapf(err, "build %s: %s", name, out)
		}
	}
	return nil
}
