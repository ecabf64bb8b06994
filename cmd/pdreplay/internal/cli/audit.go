package cli

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"regexp"
	"time"

	"github.com/cockroachdb/errors"
	"github.com/nats-io/nats.go"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"github.com/spf13/cobra"

	"github.com/pdlog/pdlog/cmd/internal/command"
	"github.com/pdlog/pdlog/events"
	"github.com/pdlog/pdlog/replay"
	"github.com/pdlog/pdlog/replay/audit"
	"github.com/pdlog/pdlog/store/mirror"
)

var groupWord = regexp.MustCompile(`^[A-Za-z0-9_-]*$`)

func auditCommand(sys Sys) *cobra.Command {
	c := &cobra.Command{
		Use: "audit nats://HOST:PORT[/CLUSTER]", Short: "follows the fleet live and prints violations as they happen", Args: command.ExactArgs("nats://HOST:PORT"),
		Long: `Follows the mirror of a fleet and prints a line (a JSON object with -o json) per
violation, as it happens, until it is interrupted. Exit 1 if there was one.

Auditors of one --group share the nodes, each node one auditor's at a time; the
nodes of one that ends, or is cut off, go to the others. How far each node was
judged is kept on the server, so that an auditor that starts again goes on where
the group was: what was reported is not reported again. --group "" follows all
nodes from their beginning and keeps nothing; --once checks what is there now,
whole, and ends.

--milestones follows the rare events of the audit stream instead (AbortArmed,
Released, Quarantined, Fenced, NodeStarted …), a line each, from now on; --once
prints those that are there. They are news: nothing is judged.`,
	}
	out := outputFlag(c.Flags())
	metrics := c.Flags().String("metrics", "", "address for Prometheus metrics, e.g. :9464")
	group := c.Flags().String("group", "default", "name under which auditors share the nodes and go on where they were; letters, digits, - and _")
	once := c.Flags().Bool("once", false, "check what is there now, then end")
	milestones := c.Flags().Bool("milestones", false, "print the milestones of the audit stream, judge nothing")
	filters := []string{"node", "room", "type"}
	ff := addFilter(c.Flags(), filters...)
	c.RunE = func(c *cobra.Command, args []string) error {
		if *milestones {
			if *metrics != "" {
				return command.Usagef("audit: --metrics counts violations, --milestones judges nothing")
			}
			f, err := ff.filter()
			if err != nil {
				return err
			}
			return auditMilestones(c.Context(), args[0], f, *once, sys.Stdout, out.value == "json")
		}
		for _, name := range filters {
			if c.Flags().Changed(name) {
				return command.Usagef("audit: --%s belongs to --milestones: violations are judged over the whole fleet", name)
			}
		}
		found := 0
		report := func(f replay.Finding) error {
			found++
			if out.value == "json" {
				return writeJSON(sys.Stdout, f)
			}
			_, err := fmt.Fprintln(sys.Stdout, f.Text())
			return err
		}
		var err error
		switch {
		case *once && *metrics != "":
			return command.Usagef("audit: --metrics needs an auditor that stays, --once ends at once")
		case *once:
			err = auditOnce(c.Context(), args[0], report)
		default:
			if !groupWord.MatchString(*group) {
				return command.Usagef("audit: --group: want letters, digits, - and _, have %q", *group)
			}
			err = auditLive(c.Context(), audit.Options{URL: args[0], Report: report, Group: *group, Note: func(text string) {
				_, _ = fmt.Fprintln(sys.Stderr, text)
			}}, *metrics)
		}
		if err == nil && found > 0 {
			return command.ErrBad
		}
		return err
	}
	return c
}

func auditOnce(ctx context.Context, url string, report func(replay.Finding) error) error {
	logs, err := replay.Open(ctx, []string{url})
	if err != nil {
		return err
	}
	for _, l := range logs {
		if l.Kind != replay.FromMirror {
			return command.Usagef("audit: %s is no mirror (want nats://HOST:PORT)", url)
		}
	}
	v, err := replay.Verify(ctx, logs)
	if err != nil {
		return err
	}
	for _, f := range v.Violations {
		if err := report(f); err != nil {
			return err
		}
	}
	return nil
}

// auditMilestones prints what the filter selects of the audit stream.
func auditMilestones(ctx context.Context, url string, f *replay.Filter, once bool, w io.Writer, raw bool) error {
	server, cluster, err := mirror.ParseURL(url)
	if err != nil {
		return replay.WithKind(err, replay.ErrBadSource)
	}
	nc, err := mirror.Dial(server, mirror.AccessFromEnv(os.Getenv), nats.Name("pdreplay audit"), nats.MaxReconnects(-1))
	switch {
	case errors.Is(err, mirror.ErrAccess):
		return replay.WithKind(err, replay.ErrBadSource)
	case err != nil:
		return replay.WithKind(err, replay.ErrUnavailable)
	}
	defer nc.Close()
	o := mirror.AuditOptions{Cluster: cluster, FromStart: once, Once: once}
	if len(f.Types) == 1 {
		o.Type = f.Types[0]
	}
	if len(f.Nodes) == 1 {
		o.Node = f.Nodes[0]
	}
	var bad error // of our own, not of the server's
	err = mirror.FollowAudit(ctx, nc, o, func(m mirror.Milestone) error {
		var e *events.Event
		if e, bad = replay.ParseJSON(m.JSON); bad != nil {
			bad = replay.WithKind(errors.Wrapf(bad, "milestone %d of %s", m.Seq, m.Node), replay.ErrBadSource)
			return bad
		}
		if !f.Match(e) {
			return nil
		}
		if raw {
			_, bad = fmt.Fprintf(w, "%s\n", m.JSON)
		} else {
			bad = replay.TextLine(w, e)
		}
		return bad
	})
	if err == nil || bad != nil {
		return bad
	}
	return replay.WithKind(errors.Wrapf(err, "follow %s", mirror.Redact(url)), replay.ErrUnavailable)
}

// closeWait is how long a scrape under way may take when the auditor ends.
const closeWait = 5 * time.Second

func auditLive(ctx context.Context, o audit.Options, metrics string) error {
	if metrics == "" {
		return audit.Follow(ctx, o)
	}
	reg := prometheus.NewRegistry()
	m, err := audit.NewMetrics(reg)
	if err != nil {
		return err
	}
	o.Metrics = m
	ln, err := net.Listen("tcp", metrics)
	if err != nil {
		return errors.Wrap(err, "--metrics")
	}
	mux := http.NewServeMux()
	mux.Handle("/metrics", promhttp.HandlerFor(reg, promhttp.HandlerOpts{}))
	srv := &http.Server{Handler: mux, ReadHeaderTimeout: closeWait}
	served := make(chan error, 1)
	go func() { served <- srv.Serve(ln) }()
	err = audit.Follow(ctx, o)
	end, cancel := context.WithTimeout(context.WithoutCancel(ctx), closeWait)
	defer cancel()
	err = errors.CombineErrors(err, srv.Shutdown(end))
	if serr := <-served; !errors.Is(serr, http.ErrServerClosed) {
		err = errors.CombineErrors(err, serr)
	}
	return err
}
