package cli

import (
	"os"
	"testing"

	"github.com/rogpeppe/go-internal/testscript"
)

func TestMain(m *testing.M) {
	testscript.Main(m, map[string]func(){
		"pdnode": func() { os.Exit(Main(os.Args[1:], System())) },
		// exit CODE CMD… runs CMD and succeeds if it ends with that code.
		"exit": exitWith,
	})
}

func TestScripts(t *testing.T) {
	testscript.Run(t, testscript.Params{Dir: "testdata/script"})
}
