package cli

import (
	"context"
	"io"

	"github.com/cockroachdb/errors"
	"github.com/google/renameio/v2"
	"github.com/spf13/cobra"

	"github.com/pdlog/pdlog/cmd/internal/command"
	"github.com/pdlog/pdlog/replay"
	"github.com/pdlog/pdlog/replay/picture"
)

func timelineCommand(sys Sys) *cobra.Command {
	c := &cobra.Command{
		Use: "timeline SRC… --out FILE", Short: "a timeline to look at: an HTML file, or a trace for Perfetto", Args: sources(),
		Long: `Writes one self-contained HTML file (no network): a lane per decode node and
prefill rank, rooms, writes with their pages, releases, late writes and their
victims. --format perfetto writes a trace for ui.perfetto.dev. --out - is stdout.`,
	}
	out := c.Flags().String("out", "", "file to write (required)")
	format := &choice{value: "html", words: []string{"html", "perfetto"}}
	c.Flags().Var(format, "format", "form of the timeline")
	c.RunE = func(c *cobra.Command, args []string) error {
		if *out == "" {
			return command.Usagef("timeline: --out is missing")
		}
		s, _, err := scene(c.Context(), args)
		if err != nil {
			return err
		}
		if format.value == "perfetto" {
			return writeOut(sys, *out, s.WritePerfetto)
		}
		return writeOut(sys, *out, s.WriteTimeline)
	}
	return c
}

func reportCommand(sys Sys) *cobra.Command {
	c := &cobra.Command{
		Use: "report SRC… --out FILE", Short: "the incident report: verdict, blame, lifelines, timeline, evidence", Args: sources(),
		Long: `Writes the incident report as one self-contained HTML file (no network). Every
sentence links to the events it rests on. Exit 1 if the verdict is bad.`,
	}
	out := c.Flags().String("out", "", "file to write (required); - is stdout")
	c.RunE = func(c *cobra.Command, args []string) error {
		if *out == "" {
			return command.Usagef("report: --out is missing")
		}
		s, logs, err := scene(c.Context(), args)
		if err != nil {
			return err
		}
		v, err := replay.Verify(c.Context(), logs)
		if err != nil {
			return err
		}
		if err := writeOut(sys, *out, func(w io.Writer) error { return s.WriteReport(w, v) }); err != nil {
			return err
		}
		if !v.OK || s.Bad() {
			return command.ErrBad
		}
		return nil
	}
	return c
}

func scene(ctx context.Context, srcs []string) (*picture.Scene, []*replay.Log, error) {
	logs, err := replay.Open(ctx, srcs)
	if err != nil {
		return nil, nil, err
	}
	s, err := picture.Build(ctx, logs)
	return s, logs, err
}

// writeOut writes a file whole or not at all; "-" is stdout.
func writeOut(sys Sys, path string, write func(io.Writer) error) error {
	if path == "-" {
		return write(sys.Stdout)
	}
	f, err := renameio.NewPendingFile(path, renameio.WithPermissions(0o644))
	if err != nil {
		return command.Usagef("--out: %v", err)
	}
	defer f.Cleanup() //nolint:errcheck // after CloseAtomicallyReplace it does nothing
	if err := write(f); err != nil {
		return err
	}
	return errors.Wrap(f.CloseAtomicallyReplace(), "write")
}
