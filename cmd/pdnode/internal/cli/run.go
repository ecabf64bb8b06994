package cli

import (
	"context"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"github.com/coreos/go-systemd/v22/daemon"
	"github.com/lmittmann/tint"
	"github.com/spf13/cobra"

	"github.com/pdlog/pdlog/cmd/internal/command"
	"github.com/pdlog/pdlog/node"
)

// stopSlack: beyond the grace, for the rest to be aborted and the log closed.
const stopSlack = 10 * time.Second

func runCommand(sys Sys) *cobra.Command {
	keys, _ := node.LiveKeys()
	c := &cobra.Command{
		Use: "run", Args: command.ExactArgs(), Short: "the daemon",
		Long: `Runs a node until SIGTERM or SIGINT, which drain it: no new rooms, open ones end or
are aborted, the log is closed. A second signal ends it at once. SIGHUP reads the
configuration again and takes what can change live (docs/configuration.md): ` + strings.Join(keys, ", ") + `.`,
	}
	file := c.Flags().String("config", "", "YAML file (environment PDNODE_CONFIG)")
	validate := c.Flags().Bool("validate", false, "check the configuration and its files, and end")
	node.BindFlags(c.Flags())
	c.RunE = func(c *cobra.Command, _ []string) error {
		load := func() (*node.Loaded, error) {
			return node.Load(configPath(sys, *file), sys.Environ, c.Flags())
		}
		l, err := load()
		if err != nil {
			return err
		}
		if *validate {
			return l.CheckFiles()
		}
		var level slog.LevelVar
		level.Set(levelOf(l.Log.Level))
		log := newLogger(sys, l.Log.Format, &level)

		signals := make(chan os.Signal, 4)
		signal.Notify(signals, syscall.SIGTERM, os.Interrupt, syscall.SIGHUP)
		defer signal.Stop(signals)
		n, err := node.Start(c.Context(), l.Config, log)
		if err != nil {
			return err
		}
		s := supervisor{log: log}
		s.tell(daemon.SdNotifyReady)
		go s.watch(c.Context(), n)
		return serve(n, l, s, &level, signals, load)
	}
	return c
}

// serve waits for the node's end and turns signals into calls.
func serve(n *node.Node, l *node.Loaded, sup supervisor, level *slog.LevelVar, signals <-chan os.Signal, load func() (*node.Loaded, error)) error {
	log := sup.log
	stopping := false
	for {
		select {
		case <-n.Done():
			return n.Err()
		case s := <-signals:
			switch {
			case s == syscall.SIGHUP:
				sup.tell(daemon.SdNotifyReloading + "\n" + daemon.SdNotifyMonotonicUsec())
				fresh, err := load()
				if err != nil {
					log.Error("the configuration was not taken", "err", err)
					sup.tell(daemon.SdNotifyReady)
					continue
				}
				taken, later := n.Reload(l, fresh)
				log.Info("the configuration was read again", "taken", taken, "takes_a_restart", later)
				level.Set(levelOf(fresh.Log.Level))
				l = fresh
				sup.tell(daemon.SdNotifyReady)
			case stopping:
				log.Warn("a second signal: the node is closed as it is")
				return n.Close()
			default:
				stopping = true
				sup.tell(daemon.SdNotifyStopping)
				log.Info("draining", "signal", s.String(), "grace", l.StopGrace)
				go func() {
					ctx, cancel := context.WithTimeout(context.Background(), l.StopGrace+stopSlack)
					defer cancel()
					if err := n.Stop(ctx, l.StopGrace); err != nil {
						log.Error("stop", "err", err)
					}
				}()
			}
		}
	}
}

func levelOf(word string) slog.Level {
	var l slog.Level
	if l.UnmarshalText([]byte(word)) != nil {
		return slog.LevelInfo
	}
	return l
}

func newLogger(sys Sys, format string, level slog.Leveler) *slog.Logger {
	if format == "json" {
		return slog.New(slog.NewJSONHandler(sys.Stderr, &slog.HandlerOptions{Level: level}))
	}
	return slog.New(textHandler(sys.Stderr, level, sys.Terminal && lookup(sys.Environ, "NO_COLOR") == ""))
}

func textHandler(w io.Writer, level slog.Leveler, color bool) slog.Handler {
	return tint.NewTextHandler(w, &tint.Options{
		Level: level, NoColor: !color, TimeFormat: "2006-01-02T15:04:05.000Z07:00", ReplaceAttr: plainError,
	})
}

// plainError keeps an error's one line and leaves out its stack trace, which
// %+v, the text handler's way to print values, would add.
func plainError(_ []string, a slog.Attr) slog.Attr {
	if err, ok := a.Value.Any().(error); ok {
		return slog.String(a.Key, err.Error())
	}
	return a
}
