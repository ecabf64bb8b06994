package cli

import (
	"context"
	"fmt"
	"os/signal"
	"syscall"

	"github.com/cockroachdb/errors"
	"github.com/spf13/cobra"

	"github.com/pdlog/pdlog/cmd/internal/command"
	"github.com/pdlog/pdlog/node/bench"
)

func benchCommand(sys Sys) *cobra.Command {
	var o bench.Options
	c := &cobra.Command{
		Use: "bench [NAME...]", Args: cobra.ArbitraryArgs,
		Short: "figures beside their peer or limit, measured in the same run; NAME is a group or a row",
	}
	out := outputFlag(c.Flags())
	c.Flags().BoolVar(&o.Quick, "quick", false, "end within 50 s")
	c.RunE = func(c *cobra.Command, names []string) error {
		o.Names = names
		ctx, stop := signal.NotifyContext(c.Context(), syscall.SIGINT, syscall.SIGTERM)
		defer stop()
		ok, err := runBench(ctx, sys, o, out.value == "json")
		switch {
		case errors.Is(err, bench.ErrName):
			return command.Usagef("bench: %v", err)
		case err != nil && ctx.Err() != nil:
			return &command.Error{Code: command.ExitFault, Text: "bench: interrupted"}
		case err == nil && !ok:
			return command.ErrBad
		}
		return err
	}
	return c
}

// runBench prints JSON rows as they come, and text as one table: its columns
// are as wide as the widest row.
func runBench(ctx context.Context, sys Sys, o bench.Options, json bool) (bool, error) {
	table := [][]string{{"row", "value", "against", "ratio", "bar", ""}}
	ok, err := bench.Run(ctx, o, bench.Report{
		Row: func(r bench.Result) error {
			if json {
				return writeJSON(sys.Stdout, r)
			}
			if sys.Terminal {
				_, _ = fmt.Fprintf(sys.Stderr, "pdnode bench: %s\n", r.Name)
			}
			table = append(table, benchRow(r))
			return nil
		},
		Missing: func(name string, why error) {
			_, _ = fmt.Fprintf(sys.Stderr, "pdnode bench: %s: not measured: %v\n", name, why)
		},
	})
	if json || len(table) == 1 {
		return ok, err
	}
	return ok, errors.CombineErrors(err, writeTable(sys.Stdout, table)) // what was measured before an error, too
}

func benchRow(r bench.Result) []string {
	verdict := "ok"
	if !r.OK {
		verdict = "SHORT"
	}
	return []string{r.Name, fmt.Sprintf("%.4g %s", r.Value, r.Unit), r.Against, fmt.Sprintf("%.2f", r.Ratio), r.Limit(), verdict}
}
