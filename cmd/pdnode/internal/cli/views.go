package cli

import (
	"context"
	"fmt"
	"sort"
	"strconv"
	"strings"

	"connectrpc.com/connect"
	"github.com/spf13/cobra"

	"github.com/pdlog/pdlog/cmd/internal/command"
	"github.com/pdlog/pdlog/node/enginepb"
)

func statusCommand(sys Sys) *cobra.Command {
	c := &cobra.Command{Use: "status", Short: "what a live node is and how it does", Args: command.ExactArgs()}
	out := outputFlag(c.Flags())
	return onNode(sys, c, func(ctx context.Context, n enginepb.EngineClient, _ []string) error {
		res, err := n.Status(ctx, connect.NewRequest(&enginepb.StatusRequest{}))
		if err != nil {
			return err
		}
		if out.value == "json" {
			return writeJSON(sys.Stdout, plain(res.Msg))
		}
		return writeTable(sys.Stdout, statusRows(res.Msg))
	})
}

func statusRows(s *enginepb.StatusResponse) [][]string {
	ready := "yes"
	switch {
	case s.GetDraining():
		ready = "no, draining"
	case !s.GetReady():
		ready = "no, " + s.GetNotReady()
	}
	mirror := "none"
	if s.GetMirror() {
		mirror = fmt.Sprintf("%s, %d events behind", s.GetNatsUrl(), s.GetMirrorLag())
		if ms := s.GetMirrorLagMs(); ms > 0 {
			mirror += fmt.Sprintf(" (oldest %.1f s)", float64(ms)/1000)
		}
		if why := s.GetMirrorError(); why != "" {
			mirror += ": " + why
		}
	}
	rows := [][]string{
		{"node", s.GetNode() + " (" + s.GetRole() + ")"},
		{"ready", ready},
		{"life", fmt.Sprintf("incarnation %d, boot %016x, up %.0f s", s.GetIncarnation(), s.GetBoot(), s.GetUptimeSeconds())},
		{"log", fmt.Sprintf("%s, %d events, %d durable, id %s", s.GetLogDir(), s.GetLastSeq(), s.GetDurableSeq(), s.GetLogId())},
		{"mirror", mirror},
		{"wire", s.GetDialect() + " over " + s.GetProvider()},
		{"release policy", s.GetReleasePolicy()},
		{"ranks", strings.Join(s.GetRankAddresses(), " ")},
	}
	if s.GetBootstrap() != "" {
		rows = append(rows, []string{"bootstrap", s.GetBootstrap()})
	}
	if s.GetPages() > 0 {
		rows = append(rows, []string{"pages", fmt.Sprintf("%d: %d free, %d owned, %d held, %d quarantined",
			s.GetPages(), s.GetPagesFree(), s.GetPagesOwned(), s.GetPagesHeld(), s.GetPagesQuarantined())})
	}
	rows = append(rows, []string{"rooms", strconv.FormatUint(s.GetRooms(), 10)}, []string{"version", s.GetVersion()})
	names := make([]string, 0, len(s.GetCounters()))
	for name := range s.GetCounters() {
		names = append(names, name)
	}
	sort.Strings(names)
	for _, name := range names {
		rows = append(rows, []string{name, strconv.FormatUint(s.GetCounters()[name], 10)})
	}
	return rows
}

func roomsCommand(sys Sys) *cobra.Command {
	c := &cobra.Command{Use: "rooms", Short: "rooms that the node keeps state for", Args: command.ExactArgs()}
	out := outputFlag(c.Flags())
	limit := c.Flags().Uint32("limit", 0, "at most this many (0: 1000)")
	return onNode(sys, c, func(ctx context.Context, n enginepb.EngineClient, _ []string) error {
		res, err := n.Rooms(ctx, connect.NewRequest(&enginepb.RoomsRequest{Limit: *limit}))
		if err != nil {
			return err
		}
		if out.value == "json" {
			return writeJSON(sys.Stdout, plain(res.Msg))
		}
		return writeTable(sys.Stdout, roomRows(res.Msg.GetRooms()))
	})
}

func roomRows(rooms []*enginepb.RoomView) [][]string {
	rows := [][]string{{"ROOM", "SEQ", "STATE", "PAGES", "GENERATION", "OUTCOME", "CAUSE", "BASIS", "OPENED"}}
	for _, r := range rooms {
		rows = append(rows, []string{
			strconv.FormatUint(r.GetRoom(), 10), strconv.FormatUint(r.GetRoomSeq(), 10), r.GetState(),
			pageText(r.GetPages()), strconv.FormatUint(r.GetGeneration(), 10), dash(r.GetOutcome()),
			dash(r.GetCause()), dash(r.GetBasis()), dash(timeText(r.GetOpenedMs())),
		})
	}
	return rows
}

func roomCommand(sys Sys) *cobra.Command {
	c := &cobra.Command{Use: "room R", Short: "one room and its pairs of ranks", Args: command.ExactArgs("room number R")}
	out := outputFlag(c.Flags())
	return onNode(sys, c, func(ctx context.Context, n enginepb.EngineClient, args []string) error {
		room, err := roomArg(args[0])
		if err != nil {
			return err
		}
		res, err := n.Room(ctx, connect.NewRequest(&enginepb.RoomViewRequest{Room: room}))
		if err != nil {
			return err
		}
		if rooms := res.Msg.GetRooms(); len(rooms) == 0 || len(rooms) == 1 && rooms[0].GetRoomSeq() == 0 {
			return &command.Error{Code: command.ExitBad, Text: fmt.Sprintf("the node keeps no state for room %d", room)}
		}
		if out.value == "json" {
			return writeJSON(sys.Stdout, plain(res.Msg))
		}
		if err := writeTable(sys.Stdout, roomRows(res.Msg.GetRooms())); err != nil {
			return err
		}
		rows := [][]string{{"", "RANK", "TO", "STATE", "EVIDENCE"}}
		for _, r := range res.Msg.GetRooms() {
			for _, p := range r.GetPairs() {
				state := p.GetState()
				if p.GetDummy() {
					state += " (dummy)"
				}
				rows = append(rows, []string{strconv.FormatUint(r.GetRoomSeq(), 10), p.GetRank(), p.GetTo(), state, dash(p.GetEvidence())})
			}
		}
		return writeTable(sys.Stdout, rows)
	})
}

func peersCommand(sys Sys) *cobra.Command {
	c := &cobra.Command{Use: "peers", Short: "nodes that the node knows", Args: command.ExactArgs()}
	out := outputFlag(c.Flags())
	return onNode(sys, c, func(ctx context.Context, n enginepb.EngineClient, _ []string) error {
		res, err := n.Peers(ctx, connect.NewRequest(&enginepb.PeersRequest{}))
		if err != nil {
			return err
		}
		if out.value == "json" {
			return writeJSON(sys.Stdout, plain(res.Msg))
		}
		rows := [][]string{{"NODE", "STATE", "PDLOG", "INCARNATION", "FENCE", "ACK", "RANKS", "INCOMPATIBLE"}}
		for _, p := range res.Msg.GetPeers() {
			rows = append(rows, []string{
				p.GetNode(), p.GetState(), strconv.FormatBool(p.GetPdlog()), strconv.FormatUint(p.GetIncarnation(), 10),
				dash(p.GetFence()), dash(p.GetAckForm()), strconv.Itoa(len(p.GetRanks())), dash(p.GetIncompatible()),
			})
		}
		return writeTable(sys.Stdout, rows)
	})
}

func pagesCommand(sys Sys) *cobra.Command {
	c := &cobra.Command{Use: "pages", Short: "who has which page", Args: command.ExactArgs()}
	out := outputFlag(c.Flags())
	all := c.Flags().Bool("all", false, "free pages too")
	return onNode(sys, c, func(ctx context.Context, n enginepb.EngineClient, _ []string) error {
		res, err := n.Pages(ctx, connect.NewRequest(&enginepb.PagesRequest{All: *all}))
		if err != nil {
			return err
		}
		if out.value == "json" {
			return writeJSON(sys.Stdout, plain(res.Msg))
		}
		m := res.Msg
		if _, err := fmt.Fprintf(sys.Stdout, "%d free, %d owned, %d held, %d quarantined\n",
			m.GetFree(), m.GetOwned(), m.GetHeld(), m.GetQuarantined()); err != nil {
			return err
		}
		rows := [][]string{{"PAGE", "STATE", "ROOM", "SEQ"}}
		for _, p := range m.GetPages() {
			rows = append(rows, []string{
				strconv.FormatUint(uint64(p.GetPage()), 10), p.GetState(),
				strconv.FormatUint(p.GetRoom(), 10), strconv.FormatUint(p.GetRoomSeq(), 10),
			})
		}
		return writeTable(sys.Stdout, rows)
	})
}

func dash(s string) string {
	if s == "" {
		return "-"
	}
	return s
}

// pageText writes a page list as ranges: 10-19,30.
func pageText(pages []uint32) string {
	var parts []string
	for i := 0; i < len(pages); {
		j := i
		for j+1 < len(pages) && pages[j+1] == pages[j]+1 {
			j++
		}
		if i == j {
			parts = append(parts, strconv.FormatUint(uint64(pages[i]), 10))
		} else {
			parts = append(parts, fmt.Sprintf("%d-%d", pages[i], pages[j]))
		}
		i = j + 1
	}
	if len(parts) > 4 { // a long room is a number, not a list
		return fmt.Sprintf("%d pages", len(pages))
	}
	return dash(strings.Join(parts, ","))
}
