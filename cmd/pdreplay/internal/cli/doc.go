// Package cli is the command line of pdreplay: flags, exit codes and forms of
// output. cli.md of the design is its contract; every answer comes from package
// replay. One command a file.
package cli
