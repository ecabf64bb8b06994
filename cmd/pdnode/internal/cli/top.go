package cli

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"os/signal"
	"strconv"
	"strings"
	"syscall"
	"time"

	"connectrpc.com/connect"
	"github.com/spf13/cobra"

	"github.com/pdlog/pdlog/cmd/internal/command"
	"github.com/pdlog/pdlog/node/enginepb"
)

// topRooms is how many rooms a picture shows: those that need attention first.
const topRooms = 15

func topCommand(sys Sys) *cobra.Command {
	c := &cobra.Command{
		Use: "top", Short: "a live node in the terminal, again and again; once if stdout is no terminal", Args: command.ExactArgs(),
	}
	every := c.Flags().Duration("interval", time.Second, "between two pictures")
	once := c.Flags().Bool("once", false, "one picture, and end")
	return onNode(sys, c, func(ctx context.Context, n enginepb.EngineClient, _ []string) error {
		if *every < 100*time.Millisecond {
			return command.Usagef("top: --interval %s: want at least 100ms", *every)
		}
		var before *topPicture
		if *once || !sys.Screen {
			p, err := takeTop(ctx, n)
			if err != nil {
				return err
			}
			return p.write(sys.Stdout, nil)
		}
		ctx, stop := signal.NotifyContext(ctx, syscall.SIGINT, syscall.SIGTERM)
		defer stop()
		const enter, leave, home = "\x1b[?1049h\x1b[?25l", "\x1b[?25h\x1b[?1049l", "\x1b[H\x1b[2J"
		if _, err := io.WriteString(sys.Stdout, enter); err != nil {
			return err
		}
		defer func() { _, _ = io.WriteString(sys.Stdout, leave) }()
		tick := time.NewTicker(*every)
		defer tick.Stop()
		for {
			p, err := takeTop(ctx, n)
			if ctx.Err() != nil {
				return nil
			}
			if err != nil {
				return err
			}
			var b bytes.Buffer
			b.WriteString(home)
			if err := p.write(&b, before); err != nil {
				return err
			}
			b.WriteString("\n^C ends\n")
			if _, err := sys.Stdout.Write(b.Bytes()); err != nil {
				return err
			}
			before = p
			select {
			case <-tick.C:
			case <-ctx.Done():
				return nil
			}
		}
	})
}

// topPicture is what one look at a node gave.
type topPicture struct {
	at     time.Time
	status *enginepb.StatusResponse
	rooms  []*enginepb.RoomView
	peers  []*enginepb.PeerView
}

func takeTop(ctx context.Context, n enginepb.EngineClient) (*topPicture, error) {
	s, err := n.Status(ctx, connect.NewRequest(&enginepb.StatusRequest{}))
	if err != nil {
		return nil, err
	}
	r, err := n.Rooms(ctx, connect.NewRequest(&enginepb.RoomsRequest{Limit: 10000}))
	if err != nil {
		return nil, err
	}
	p, err := n.Peers(ctx, connect.NewRequest(&enginepb.PeersRequest{}))
	if err != nil {
		return nil, err
	}
	return &topPicture{at: time.Now(), status: s.Msg, rooms: r.Msg.GetRooms(), peers: p.Msg.GetPeers()}, nil
}

// write draws the picture; before is the one that rates are taken from.
func (p *topPicture) write(w io.Writer, before *topPicture) error {
	s := p.status
	head := [][]string{
		{s.GetNode() + " (" + s.GetRole() + ")", p.readiness(), fmt.Sprintf("up %s", (time.Duration(s.GetUptimeSeconds()) * time.Second).String()), s.GetReleasePolicy(), s.GetDialect() + " over " + s.GetProvider()},
		{"log", fmt.Sprintf("%d events", s.GetLastSeq()), fmt.Sprintf("%d not on disk", s.GetLastSeq()-s.GetDurableSeq()), p.rate(before) + " events/s", p.mirror()},
	}
	if s.GetPages() > 0 {
		head = append(head, []string{"pages", bar(s), fmt.Sprintf("%d free", s.GetPagesFree()), fmt.Sprintf("%d owned", s.GetPagesOwned()), fmt.Sprintf("%d held, %d quarantined", s.GetPagesHeld(), s.GetPagesQuarantined())})
	}
	if err := writeTable(w, head); err != nil {
		return err
	}
	states := map[string]int{}
	for _, r := range p.rooms {
		states[r.GetState()]++
	}
	var counts []string
	for _, st := range roomOrder {
		if states[st] > 0 {
			counts = append(counts, fmt.Sprintf("%d %s", states[st], st))
		}
	}
	rows := [][]string{{"ROOM", "SEQ", "STATE", "PAGES", "AGE", "CAUSE", "WAITS FOR"}}
	for _, st := range roomOrder {
		for _, r := range p.rooms {
			if r.GetState() == st && len(rows) <= topRooms {
				rows = append(rows, []string{
					strconv.FormatUint(r.GetRoom(), 10), strconv.FormatUint(r.GetRoomSeq(), 10), st, strconv.Itoa(len(r.GetPages())),
					p.age(r), dash(r.GetCause()), dash(strings.Join(r.GetMissing(), " ")),
				})
			}
		}
	}
	if _, err := fmt.Fprintf(w, "\nrooms: %d%s\n", s.GetRooms(), prefixed(": ", strings.Join(counts, ", "))); err != nil {
		return err
	}
	if err := writeTable(w, rows); err != nil {
		return err
	}
	peers := [][]string{{"\nPEER", "STATE", "FENCE", "ACK"}}
	for _, x := range p.peers {
		peers = append(peers, []string{x.GetNode(), x.GetState(), dash(x.GetFence()), dash(x.GetAckForm())})
	}
	return writeTable(w, peers)
}

// roomOrder: what somebody looks for comes first.
var roomOrder = []string{"quarantined", "held", "failed", "transferring", "waiting", "bootstrapping", "succeeded"}

func (p *topPicture) readiness() string {
	switch {
	case p.status.GetDraining():
		return "draining"
	case !p.status.GetReady():
		return "not ready: " + p.status.GetNotReady()
	}
	return "ready"
}

func (p *topPicture) mirror() string {
	s := p.status
	switch {
	case !s.GetMirror():
		return "no mirror"
	case s.GetMirrorError() != "":
		return "mirror: " + s.GetMirrorError()
	}
	return fmt.Sprintf("mirror %d behind", s.GetMirrorLag())
}

// rate is events a second since the picture before; "-" without one, or across
// a restart of the node.
func (p *topPicture) rate(before *topPicture) string {
	if before == nil || before.status.GetBoot() != p.status.GetBoot() {
		return "-"
	}
	return fmt.Sprintf("%.0f", float64(p.status.GetLastSeq()-before.status.GetLastSeq())/p.at.Sub(before.at).Seconds())
}

func (p *topPicture) age(r *enginepb.RoomView) string {
	if r.GetOpenedMs() == 0 {
		return "-"
	}
	return max(p.at.Sub(time.UnixMilli(int64(r.GetOpenedMs()))), 0).Round(time.Second).String() //nolint:gosec // ms fit
}

// bar is the pool in thirty cells: owned, held, quarantined, free. A page that is
// held or quarantined never rounds to nothing.
func bar(s *enginepb.StatusResponse) string {
	const cells = 30
	part := func(n uint64, least int) int {
		if n == 0 {
			return 0
		}
		return max(int(n*cells/max(s.GetPages(), 1)), least) //nolint:gosec // at most cells
	}
	bad := strings.Repeat("!", part(s.GetPagesQuarantined(), 1)) + strings.Repeat("h", part(s.GetPagesHeld(), 1))
	out := strings.Repeat("#", part(s.GetPagesOwned(), 0)) + bad
	if len(out) > cells {
		out = out[len(out)-cells:]
	}
	return "[" + out + strings.Repeat(".", cells-len(out)) + "]"
}

func prefixed(prefix, s string) string {
	if s == "" {
		return ""
	}
	return prefix + s
}
