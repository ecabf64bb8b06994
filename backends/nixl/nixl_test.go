package nixl_test

import (
	"testing"

	"github.com/pdlog/pdlog/backends/backendtest"
	"github.com/pdlog/pdlog/backends/nixl"
)

func TestDialect(t *testing.T) { backendtest.Run(t, nixl.Dialect{}) }

func FuzzDecode(f *testing.F) { backendtest.Fuzz(f, nixl.Dialect{}) }
