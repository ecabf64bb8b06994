// Package crash holds the tests of what is left after power loss: a writer runs
// under strace, its writes and syncs are replayed on a simulated disk that
// keeps what was synced and any part of the rest, and every image is opened.
//
// PDLOG_CRASH_IMAGES sets the number of images (default 2000).
package crash
