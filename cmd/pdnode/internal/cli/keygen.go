package cli

import (
	"fmt"
	"os"
	"time"

	"github.com/cockroachdb/errors"
	"github.com/spf13/cobra"

	"github.com/pdlog/pdlog/cmd/internal/command"
	"github.com/pdlog/pdlog/node"
)

func keygenCommand(sys Sys) *cobra.Command {
	c := &cobra.Command{
		Use: "keygen FILE", Short: "draw a CURVE key for a node's control sockets", Args: command.ExactArgs("FILE"),
		Long: `Writes a secret key to FILE (mode 0600; a file that is there is left alone) for
curve.secret_file, and prints the line that belongs into curve.peers_file of the
node's peers. With --public it prints that line of a file that is there.`,
	}
	name := c.Flags().String("node", "", "the node's name, for the line that is printed")
	public := c.Flags().Bool("public", false, "draw no key: print the line of FILE")
	c.RunE = func(_ *cobra.Command, args []string) error {
		if *name == "" {
			return command.Usagef("keygen: --node is missing")
		}
		if *public {
			key, err := node.CurvePublicKey(args[0])
			if err != nil {
				return command.Usagef("keygen: %v", err)
			}
			_, err = fmt.Fprintln(sys.Stdout, *name, key)
			return err
		}
		key, secret, err := node.NewCurveKey()
		if err != nil {
			return err
		}
		f, err := os.OpenFile(args[0], os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
		if errors.Is(err, os.ErrExist) {
			return command.Usagef("keygen: %s is there already: a key is never written over", args[0])
		}
		if err != nil {
			return errors.Wrap(err, "keygen")
		}
		_, err = fmt.Fprintf(f, "# CURVE secret key of pdnode %s, drawn %s: keep it to this host\n%s\n", *name, time.Now().UTC().Format(time.DateOnly), secret)
		if err = errors.CombineErrors(err, errors.CombineErrors(f.Sync(), f.Close())); err != nil {
			return errors.Wrapf(err, "keygen: write %s", args[0])
		}
		_, err = fmt.Fprintln(sys.Stdout, *name, key)
		return err
	}
	return c
}
