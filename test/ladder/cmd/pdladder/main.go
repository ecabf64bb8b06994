// Command pdladder prints the table of a file of rows (test/ladder).
package main

import (
	"fmt"
	"os"

	"github.com/pdlog/pdlog/test/ladder"
)

func main() {
	if err := run(); err != nil {
		fmt.Fprintf(os.Stderr, "pdladder: %v\n", err)
		os.Exit(1)
	}
}

func run() error {
	if len(os.Args) != 2 {
		return fmt.Errorf("usage: pdladder FILE, where FILE is what tests have written to $%s", ladder.File)
	}
	f, err := os.Open(os.Args[1])
	if err != nil {
		return err
	}
	defer func() { _ = f.Close() }() // read only
	rows, err := ladder.Read(f)
	if err != nil {
		return fmt.Errorf("%s: %w", os.Args[1], err)
	}
	return ladder.Table(os.Stdout, ladder.Sum(rows))
}
