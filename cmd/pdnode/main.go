// Command pdnode is pdlog's daemon and the commands that act on it.
package main

import (
	"os"

	"github.com/pdlog/pdlog/cmd/pdnode/internal/cli"
)

func main() {
	os.Exit(cli.Main(os.Args[1:], cli.System()))
}
