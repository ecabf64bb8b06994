// Package enginepb is the engine API of a node: messages, and the Connect
// client and handler of service pdlog.engine.v1.Engine. It is generated from
// engine.proto; `go generate` makes it anew.
package enginepb

//go:generate protoc -I . --go_out=. --go_opt=paths=source_relative --connect-go_out=. --connect-go_opt=paths=source_relative --connect-go_opt=package_suffix= engine.proto
