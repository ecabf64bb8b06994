package mori_test

import (
	"testing"

	"github.com/pdlog/pdlog/backends/backendtest"
	"github.com/pdlog/pdlog/backends/mori"
)

func TestDialect(t *testing.T) { backendtest.Run(t, mori.Dialect{}) }

func FuzzDecode(f *testing.F) { backendtest.Fuzz(f, mori.Dialect{}) }
