// Package bench is `pdnode bench`: each figure beside its peer or its limit,
// measured in the same run on the same machine, so that a table is true
// wherever it was made (cli.md).
//
// A row is a [Case]. All cases stand in [Cases], one list per file; a new one
// is added there and nowhere else. Cases compare two sides by [Compare], which
// takes turns between them and gives medians, so that whatever else the machine
// does meets both alike.
package bench
