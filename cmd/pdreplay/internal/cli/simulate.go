package cli

import (
	"bufio"
	"fmt"
	"io"

	"github.com/cockroachdb/errors"
	"github.com/spf13/cobra"

	"github.com/pdlog/pdlog/cmd/internal/command"
	"github.com/pdlog/pdlog/replay"
	"github.com/pdlog/pdlog/replay/scenario"
)

// simulation is cli.md's form of a scenario's outcome.
type simulation struct {
	File       string           `json:"file"`
	OK         bool             `json:"ok"`
	FailedLine *int             `json:"failed_line"`
	Detail     string           `json:"detail"`
	Events     int              `json:"events"`
	Violations []replay.Finding `json:"violations"`
}

func simulateCommand(sys Sys) *cobra.Command {
	c := &cobra.Command{
		Use: "simulate FILE…", Short: "run scenario files", Args: sourcesNamed("FILE"),
		Long: "Runs scenario files on a virtual clock. Exit 1 if an expectation fails, 2 if a file is none.",
	}
	out := outputFlag(c.Flags())
	c.RunE = func(c *cobra.Command, args []string) error {
		w := bufio.NewWriter(sys.Stdout)
		failed := false
		for _, path := range args {
			rep, err := scenario.RunFile(path)
			if err != nil {
				return errors.CombineErrors(scenarioError(err), w.Flush())
			}
			failed = failed || !rep.OK
			if out.value == "json" {
				err = writeJSON(w, simulationOf(rep))
			} else {
				err = writeSimulation(w, rep)
			}
			if err != nil {
				return err
			}
		}
		if err := w.Flush(); err != nil {
			return err
		}
		if failed {
			return command.ErrBad
		}
		return nil
	}
	return c
}

// scenarioError: a file that cannot be read is bad input as well.
func scenarioError(err error) error {
	var syntax *scenario.SyntaxError
	if errors.As(err, &syntax) {
		return err
	}
	return command.Usagef("%v", err)
}

func simulationOf(rep scenario.Report) simulation {
	s := simulation{File: rep.File, OK: rep.OK, Detail: rep.Detail, Events: rep.Events, Violations: replay.Findings(rep.Violations)}
	if rep.FailedLine != 0 {
		s.FailedLine = &rep.FailedLine
	}
	return s
}

func writeSimulation(w io.Writer, rep scenario.Report) error {
	if rep.OK {
		_, err := fmt.Fprintf(w, "ok    %s (%d events)\n", rep.File, rep.Events)
		return err
	}
	where := rep.File
	if rep.FailedLine != 0 {
		where = fmt.Sprintf("%s:%d", rep.File, rep.FailedLine)
	}
	if _, err := fmt.Fprintf(w, "FAIL  %s: %s\n", where, rep.Detail); err != nil {
		return err
	}
	for _, f := range replay.Findings(rep.Violations) {
		if _, err := fmt.Fprintf(w, "      %s\n", f.Text()); err != nil {
			return err
		}
	}
	return nil
}

// sourcesNamed is sources for other things than logs.
func sourcesNamed(name string) cobra.PositionalArgs {
	return func(c *cobra.Command, args []string) error {
		if len(args) == 0 {
			return command.Usagef("%s: %s is missing", c.Name(), name)
		}
		return nil
	}
}
