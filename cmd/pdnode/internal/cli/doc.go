// Package cli holds the commands of pdnode, one a file: flags in, one call into
// node, node/demo or backends, an exit code out. Nothing here decides anything.
//
// Exit codes (cli.md): 0 done; 1 the question was answered and the answer is
// bad; 2 bad usage or bad input, named in one line on stderr; 3 it could not
// run.
package cli
