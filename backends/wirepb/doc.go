// Package wirepb holds the protobuf schema of the extension frame
// (wire.md 9.3) and the Go code generated from it. Package backends is its
// only reader and writer; everything else uses backends.Extension.
package wirepb

//go:generate protoc --go_out=. --go_opt=paths=source_relative --go-vtproto_out=. --go-vtproto_opt=paths=source_relative,features=marshal+unmarshal+size extension.proto
