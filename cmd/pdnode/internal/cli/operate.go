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
	return onNode(sys, c, func(ctx context.Context, n enginepb.EngineClient, _ []string) error {
		if *grace < 0 {
			return command.Usagef("drain: --grace %s is negative", *grace)
		}
		_, err := n.Drain(ctx, connect.NewRequest(&enginepb.DrainRequest{
			GraceMs: uint64(grace.Milliseconds()), Reason: *reason, //nolint:gosec // not negative
		}))
		return err
	})
}

func abortCommand(sys Sys) *cobra.Command {
	c := &cobra.Command{Use: "abort R", Short: "abort a room as its engine would", Args: command.ExactArgs("room number R")}
	reason := c.Flags().String("reason", "operator", "for the log")
	return onNode(sys, c, func(ctx context.Context, n enginepb.EngineClient, args []string) error {
		room, err := roomArg(args[0])
		if err != nil {
			return err
		}
		_, err = n.Abort(ctx, connect.NewRequest(&enginepb.AbortRequest{Room: room, Reason: *reason}))
		return err
	})
}

func releaseCommand(sys Sys) *cobra.Command {
	c := &cobra.Command{
		Use: "release R --force", Args: command.ExactArgs("room number R"),
		Short: "release a room's pages without evidence (unsafe, and marked so in the log)",
	}
	force := c.Flags().Bool("force", false, "yes: late writes may land in pages that others use by then")
	return onNode(sys, c, func(ctx context.Context, n enginepb.EngineClient, args []string) error {
		room, err := roomArg(args[0])
		if err != nil {
			return err
		}
		if !*force {
			return command.Usagef("release: --force is missing: nothing shows that the writers of room %d have stopped", room)
		}
		_, err = n.ForceRelease(ctx, connect.NewRequest(&enginepb.RoomRequest{Room: room}))
		return err
	})
}

func fenceCommand(sys Sys) *cobra.Command {
	c := &cobra.Command{Use: "fence PEER", Short: "fence a node or a rank (p0, p0/1) for every room that waits for it", Args: command.ExactArgs("PEER")}
	return onNode(sys, c, func(ctx context.Context, n enginepb.EngineClient, args []string) error {
		res, err := n.Fence(ctx, connect.NewRequest(&enginepb.FenceRequest{Peer: args[0]}))
		if err != nil {
			return err
		}
		_, err = fmt.Fprintf(sys.Stdout, "fencing %s for %d rooms\n", args[0], res.Msg.GetRooms())
		return err
	})
}

func backupCommand(sys Sys) *cobra.Command {
	c := &cobra.Command{Use: "backup FILE", Short: "a consistent copy of the node's log, on the node's host: one file (.db, or .jsonl), or a folder if FILE is one", Args: command.ExactArgs("FILE")}
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
		_, err = fmt.Fprintf(sys.Stdout, "%s: %d events, %d bytes\n", path, res.Msg.GetDurableSeq(), res.Msg.GetBytes())
		return err
	})
}
