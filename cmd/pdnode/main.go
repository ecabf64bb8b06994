// Command pdnode is pdlog's daemon and the commands that act on it.
package main

import (
	"os"

	"github.com/pdlog/pdlog/cmd/pdnode/internal/cli"
	"github.com/pdlog/pdlog/store"
)

func main() {
	store.VerifyMain() // in the child that verifies a segment it does not return
	os.Exit(cli.Main(os.Args[1:], cli.System()))
}
