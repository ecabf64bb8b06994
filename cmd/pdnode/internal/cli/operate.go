package cli

import (
	"context"
	"fmt"
	"path/filepath"
	"strings"
	"time"

	"connectrpc.com/connect"
	"github.com/spf13/cobra"

	"github.com/pdlog/pdlog/cmd/internal/command"
	"github.com/pdlog/pdlog/node/enginepb"
)

func drainCommand(sys Sys) *cobra.Command {
	c := &cobra.Command{Use: "drain", Short: "no new rooms; open ones may end; then the node stops", Args: command.ExactArgs()}
	grace := c.Flags().Duration("grace", 10*time.Second, "how long open rooms may still end")
	reason := c.Flags().String("reason", "operator", "for the log")
	out := outputFlag(c.Flags())
	return onNode(sys, c, func(ctx context.Context, n enginepb.EngineClient, _ []string) error {
		if *grace < 0 {
			return command.Usagef("drain: --grace %s is negative", *grace)
		}
		_, err := n.Drain(ctx, connect.NewRequest(&enginepb.DrainRequest{
			GraceMs: uint64(grace.Milliseconds()), Reason: *reason, //nolint:gosec // not negative
		}))
		if err != nil {
			return err
		}
		return out.done(sys, map[string]any{"draining": true, "grace_ms": grace.Milliseconds()},
			"draining: no new rooms, open ones have %s, then the node stops\n", *grace)
	})
}

func abortCommand(sys Sys) *cobra.Command {
	c := &cobra.Command{Use: "abort R", Short: "abort a room as its engine would", Args: command.ExactArgs("room number R")}
	reason := c.Flags().String("reason", "operator", "for the log")
	out := outputFlag(c.Flags())
	return onNode(sys, c, func(ctx context.Context, n enginepb.EngineClient, args []string) error {
		room, err := roomArg(args[0])
		if err != nil {
			return err
		}
		res, err := n.Abort(ctx, connect.NewRequest(&enginepb.AbortRequest{Room: room, Reason: *reason}))
		if err != nil {
			return err
		}
		return out.done(sys, map[string]any{"room": room, "room_seq": res.Msg.GetRoomSeq()}, "room %d/%d is aborted\n", room, res.Msg.GetRoomSeq())
	})
}

func releaseCommand(sys Sys) *cobra.Command {
	c := &cobra.Command{
		Use: "release R --force", Args: command.ExactArgs("room number R"),
		Short: "release a room's pages without evidence (unsafe, and marked so in the log)",
	}
	force := c.Flags().Bool("force", false, "yes: late writes may land in pages that others use by then")
	out := outputFlag(c.Flags())
	return onNode(sys, c, func(ctx context.Context, n enginepb.EngineClient, args []string) error {
		room, err := roomArg(args[0])
		if err != nil {
			return err
		}
		if !*force {
			return command.Usagef("release: --force is missing: nothing shows that the writers of room %d have stopped", room)
		}
		res, err := n.ForceRelease(ctx, connect.NewRequest(&enginepb.RoomRequest{Room: room}))
		if err != nil {
			return err
		}
		return out.done(sys, map[string]any{"room": room, "room_seq": res.Msg.GetRoomSeq(), "unsafe": true},
			"room %d/%d is released without evidence\n", room, res.Msg.GetRoomSeq())
	})
}

func fenceCommand(sys Sys) *cobra.Command {
	c := &cobra.Command{Use: "fence PEER", Short: "fence a node or a rank (p0, p0/1) for every room that waits for it", Args: command.ExactArgs("PEER")}
	out := outputFlag(c.Flags())
	return onNode(sys, c, func(ctx context.Context, n enginepb.EngineClient, args []string) error {
		res, err := n.Fence(ctx, connect.NewRequest(&enginepb.FenceRequest{Peer: args[0]}))
		if err != nil {
			return err
		}
		return out.done(sys, map[string]any{"peer": args[0], "rooms": res.Msg.GetRooms()}, "fencing %s for %d rooms\n", args[0], res.Msg.GetRooms())
	})
}

func backupCommand(sys Sys) *cobra.Command {
	c := &cobra.Command{Use: "backup FILE", Short: "a consistent copy of the node's log, on the node's host: one file (.db, or .jsonl), or a folder if FILE is one", Args: command.ExactArgs("FILE")}
	out := outputFlag(c.Flags())
	return onNode(sys, c, func(ctx context.Context, n enginepb.EngineClient, args []string) error {
		path, err := filepath.Abs(args[0]) // the node has another working directory
		if err != nil {
			return err
		}
		if strings.HasSuffix(args[0], "/") {
			path += "/"
		}
		res, err := n.Backup(ctx, connect.NewRequest(&enginepb.BackupRequest{Path: path}))
		if err != nil {
			return err
		}
		return out.done(sys, map[string]any{"file": path, "events": res.Msg.GetDurableSeq(), "bytes": res.Msg.GetBytes()},
			"%s: %d events, %d bytes\n", path, res.Msg.GetDurableSeq(), res.Msg.GetBytes())
	})
}

// done says what an action did: one JSON document, or a line for people.
func (c *choice) done(sys Sys, doc map[string]any, format string, args ...any) error {
	if c.value == "json" {
		return writeJSON(sys.Stdout, doc)
	}
	_, err := fmt.Fprintf(sys.Stdout, format, args...)
	return err
}
