package cli

import (
	"context"
	"strconv"
	"strings"

	"connectrpc.com/connect"
	"github.com/cockroachdb/errors"
	"github.com/spf13/cobra"

	"github.com/pdlog/pdlog/cmd/internal/command"
	"github.com/pdlog/pdlog/node/engineclient"
	"github.com/pdlog/pdlog/node/enginepb"
)

// onNode makes a command that talks to a live node over --socket, or the
// socket of PDNODE_SOCKET.
func onNode(sys Sys, c *cobra.Command, run func(ctx context.Context, n enginepb.EngineClient, args []string) error) *cobra.Command {
	socket := c.Flags().String("socket", "", "the node's engine API socket (environment PDNODE_SOCKET)")
	c.RunE = func(c *cobra.Command, args []string) error {
		path := *socket
		if path == "" {
			path = lookup(sys.Environ, "PDNODE_SOCKET")
		}
		if path == "" {
			return command.Usagef("%s: --socket is missing", command.Name(c))
		}
		err := run(c.Context(), engineclient.Dial(path), args)
		if err != nil && connect.CodeOf(err) == connect.CodeUnavailable {
			why := err
			if c := new(connect.Error); errors.As(err, &c) {
				why = c.Unwrap()
			}
			return errors.Wrapf(why, "no node answers at %s", path)
		}
		return err
	}
	return c
}

func lookup(environ []string, name string) string {
	for _, kv := range environ {
		if v, ok := strings.CutPrefix(kv, name+"="); ok {
			return v
		}
	}
	return ""
}

func roomArg(s string) (uint64, error) {
	n, err := strconv.ParseUint(s, 10, 64)
	if err != nil || n == 0 {
		return 0, command.Usagef("room %q is not a room number", s)
	}
	return n, nil
}
