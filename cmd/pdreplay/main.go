// Command pdreplay answers questions about the past: it reads the event logs
// that pdnode daemons keep.
package main

import (
	"os"

	"github.com/pdlog/pdlog/cmd/pdreplay/internal/cli"
	"github.com/pdlog/pdlog/store"
)

func main() {
	store.VerifyMain() // in the child that verifies a segment it does not return
	os.Exit(cli.Main(os.Args[1:], cli.System()))
}
