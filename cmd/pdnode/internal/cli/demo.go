package cli

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"github.com/schollz/progressbar/v3"
	"github.com/spf13/cobra"

	"github.com/pdlog/pdlog/cmd/internal/command"
	"github.com/pdlog/pdlog/node/demo"
)

func demoCommand(sys Sys) *cobra.Command {
	o := demo.DefaultOptions()
	c := &cobra.Command{
		Use: "demo", Args: command.ExactArgs(),
		Short: "the main job on one machine: real processes, a request trace, every byte checked",
	}
	f := c.Flags()
	out := outputFlag(f)
	f.StringVar(&o.Trace, "trace", o.Trace, "JSONL trace of requests (default: a seeded generator of the same shape)")
	f.IntVar(&o.Requests, "requests", o.Requests, "how many requests")
	f.Float64Var(&o.Speed, "speed", o.Speed, "1 = as recorded, 0 = as fast as it goes")
	f.IntVar(&o.PrefillRanks, "prefill-ranks", o.PrefillRanks, "ranks of the prefill node")
	f.IntVar(&o.DecodeRanks, "decode-ranks", o.DecodeRanks, "ranks of the decode node")
	f.IntVar(&o.BytesPerToken, "bytes-per-token", o.BytesPerToken, "KV bytes of a token, over all prefill ranks")
	f.IntVar(&o.PageTokens, "page-tokens", o.PageTokens, "tokens a page")
	f.IntVar(&o.Pages, "pages", o.Pages, "pages of the decode pool")
	f.IntVar(&o.ChunkTokens, "chunk-tokens", o.ChunkTokens, "tokens that prefill hands over at a time")
	f.Float64Var(&o.AbortPercent, "abort-percent", o.AbortPercent, "share of requests that are aborted")
	f.StringVar(&o.Backend, "backend", o.Backend, "wire dialect: mooncake, nixl or mori")
	f.StringVar(&o.Provider, "provider", o.Provider, "data plane: auto, tcp, shm or verbs")
	f.BoolVar(&o.Checksums, "checksums", o.Checksums, "send pages with checksums, and check them before a success")
	f.StringVar(&o.ReleasePolicy, "release-policy", o.ReleasePolicy, "what happens at the ack timeout: fence, hold or timeout")
	f.DurationVar(&o.AckTimeout, "ack-timeout", o.AckTimeout, "how long drain ACKs are waited for")
	f.DurationVar(&o.TransferTimeout, "transfer-timeout", o.TransferTimeout, "how long one write may take")
	f.StringVar(&o.Fault, "fault", o.Fault, "KIND[:DURATION][:PERCENT],... drawn per chunk, e.g. late:500ms:30%")
	f.Uint64Var(&o.Seed, "seed", o.Seed, "decides everything that is random")
	f.StringVar(&o.DataDir, "data-dir", o.DataDir, "where logs are kept (default: a new temporary directory)")
	f.BoolVar(&o.Keep, "keep", o.Keep, "leave everything up until interrupted")
	c.RunE = func(c *cobra.Command, _ []string) error {
		if err := o.Validate(); err != nil {
			return err
		}
		self, err := os.Executable()
		if err != nil {
			return err
		}
		ctx, stop := signal.NotifyContext(c.Context(), os.Interrupt, syscall.SIGTERM)
		defer stop()
		var bad bool
		err = demo.Run(ctx, o, demo.Env{
			Self:   self,
			Note:   func(format string, args ...any) { _, _ = fmt.Fprintf(sys.Stderr, "pdnode demo: "+format+"\n", args...) },
			Report: progress(sys, o.Requests),
			Result: func(_ context.Context, s *demo.Summary) error {
				bad = !s.OK()
				for _, p := range s.Problems {
					_, _ = fmt.Fprintln(sys.Stderr, "pdnode demo: "+p)
				}
				if out.value == "json" {
					return writeJSON(sys.Stdout, s)
				}
				return s.WriteText(sys.Stdout)
			},
		})
		switch {
		case err != nil && ctx.Err() != nil:
			return &command.Error{Code: command.ExitFault, Text: "demo: interrupted, everything is stopped"}
		case err == nil && bad:
			return command.ErrBad
		}
		return err
	}
	return c
}

// progress draws a bar on a terminal and nothing elsewhere.
func progress(sys Sys, requests int) func(demo.EngineReport) {
	if !sys.Terminal {
		return nil
	}
	bar := progressbar.NewOptions(requests,
		progressbar.OptionSetWriter(sys.Stderr), progressbar.OptionSetDescription("requests"),
		progressbar.OptionShowCount(), progressbar.OptionSetPredictTime(true), progressbar.OptionClearOnFinish(),
		progressbar.OptionEnableColorCodes(lookup(sys.Environ, "NO_COLOR") == ""))
	return func(r demo.EngineReport) {
		_ = bar.Set(r.Ended())
		if r.Ended() >= r.Total {
			_ = bar.Finish()
		}
	}
}

// demoEngineCommand is the stand-in process that demo starts.
func demoEngineCommand(sys Sys) *cobra.Command {
	var cfg demo.EngineConfig
	c := &cobra.Command{
		Use: "demo-engine", Short: "an engine stand-in of pdnode demo", Hidden: true, Args: command.ExactArgs(),
		RunE: func(c *cobra.Command, _ []string) error {
			return demo.RunEngine(c.Context(), cfg, sys.Stdin, sys.Stdout)
		},
	}
	c.Flags().StringVar(&cfg.Role, "role", "", "prefill or decode")
	c.Flags().StringVar(&cfg.Socket, "socket", "", "of its node")
	c.Flags().StringVar(&cfg.Plan, "plan", "", "file written by demo")
	return c
}
