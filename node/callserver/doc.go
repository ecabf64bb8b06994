// Package callserver serves HTTP on a local socket for callers that wait for
// every microsecond: a plain call is read, answered and written by the goroutine
// of its connection.
//
// net/http starts a goroutine for each request, to hear the caller leave while
// the handler runs, and wakes it again to end it. On one host that costs a small
// call as much as its handler does. A Server reads the head of each request and
// looks at its bytes before net/http does. What is plain (head.go says what that
// is) goes to the same handler from the connection's own loop, and its answer
// leaves in one write. With the first request that is not, the connection and
// every byte read of it go to net/http for good: streams, HTTP/2, GET, chunked
// bodies, large heads, requests that are wrong.
//
// A caller cannot tell which of the two has answered, but for the order of
// header lines and the form of a long body (its length is said; net/http may
// send chunks). Where net/http takes over after calls it looks for HTTP/2 as on
// a new connection: that may begin there, and junk shorter than its preface is
// answered when more of it comes. A caller that has closed its writing side is
// answered, while net/http takes it to have left.
//
// The handler's context ends when the caller leaves, as in net/http, but the
// connection is watched for that only once somebody waits on the context, and a
// millisecond later: a call that is answered at once costs no watch. The
// handler's answer is kept until it returns, so a plain request is none of a
// handler that streams, upgrades or sends trailers.
package callserver
