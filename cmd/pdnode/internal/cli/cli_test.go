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
	testscript.Run(t, testscript.Params{Dir: "testdata/script", Setup: func(e *testscript.Env) error {
		e.Setenv("PDNODE_LOG_SEGMENT_BYTES", "1048576") // they are filled with zeroes at each start
		return nil
	}})
}
