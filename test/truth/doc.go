// Package truth holds blame to account: what it finds in the logs alone must be
// what was injected, page by page, no more and no less. The truth comes from
// elsewhere: from the simulation's own memory, or from the bytes that the demo's
// engine found in its pages.
package truth
