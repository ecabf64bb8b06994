// Package e2e runs the product as its users do: the built pdnode binary, real
// processes, real sockets, real files.
package e2e
