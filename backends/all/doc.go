// Package all registers every wire dialect of this repository. Import it for
// its effect, then ask backends.Lookup.
package all

import (
	_ "github.com/pdlog/pdlog/backends/mooncake" // registers "mooncake"
	_ "github.com/pdlog/pdlog/backends/mori"     // registers "mori"
	_ "github.com/pdlog/pdlog/backends/nixl"     // registers "nixl"
)
