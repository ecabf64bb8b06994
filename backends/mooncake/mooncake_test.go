package mooncake_test

import (
	"testing"

	"github.com/pdlog/pdlog/backends/backendtest"
	"github.com/pdlog/pdlog/backends/mooncake"
)

func TestDialect(t *testing.T) { backendtest.Run(t, mooncake.Dialect{}) }

func FuzzDecode(f *testing.F) { backendtest.Fuzz(f, mooncake.Dialect{}) }
