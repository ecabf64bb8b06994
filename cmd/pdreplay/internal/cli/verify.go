package cli

import (
	"runtime/debug"

	"github.com/spf13/cobra"

	"github.com/pdlog/pdlog/cmd/internal/command"
	"github.com/pdlog/pdlog/replay"
)

// verifyMemory is what verify's heap stays below (in bytes): it keeps little and
// makes a lot of garbage, so that the collector may come when memory runs short.
const verifyMemory = 460 << 20

func verifyCommand(sys Sys) *cobra.Command {
	c := &cobra.Command{
		Use: "verify SRC…", Short: "chains, gaps, every invariant, mirror against log", Args: sources(),
		Long: `Re-checks hash chains, sequences and clocks of every log, the invariants I1 to I9
and I11 over all of them together, and compares copies of one log (I10), such as
a log and its mirror. Exit 1 if anything does not hold.`,
	}
	out := outputFlag(c.Flags())
	c.RunE = func(c *cobra.Command, args []string) error {
		debug.SetGCPercent(1000)
		debug.SetMemoryLimit(verifyMemory)
		logs, err := replay.Open(c.Context(), args)
		if err != nil {
			return err
		}
		v, err := replay.Verify(c.Context(), logs)
		if err != nil {
			return err
		}
		if out.value == "json" {
			err = writeJSON(sys.Stdout, v)
		} else {
			err = v.Write(sys.Stdout)
		}
		if err == nil && !v.OK {
			return command.ErrBad
		}
		return err
	}
	return c
}
