// Package engineclient is the engine API from Go: an engine, a tool or a test on
// the node's host calls the node at its unix socket.
//
// Calls with one request go as HTTP/1.1 over connections that are kept, and are
// written and read by the goroutine that calls: net/http's client hands each
// call to two goroutines of its own, which costs a call on one host more than
// the node does. Calls with a stream of requests (SendChunks) go as HTTP/2.
//
// A Client may be used from anywhere. It starts no goroutine of its own for a
// call with one request.
package engineclient

import (
	"context"
	"net"
	"net/http"

	"connectrpc.com/connect"

	"github.com/pdlog/pdlog/node/enginepb"
)

// maxConns to one node; more calls at once wait for one. Streams of notices
// (Watch) hold theirs.
const maxConns = 64

// Client calls one node.
type Client struct {
	enginepb.EngineClient
	path  string
	calls *transport
	flows *http.Transport
}

// Dial is a client of the node whose engine API is on the unix socket at path.
// Nothing is connected before the first call, and a node that was restarted is
// connected to again.
func Dial(path string) *Client {
	c := &Client{path: path, calls: newTransport(path, -1), flows: streams(path)}
	c.EngineClient = enginepb.NewEngineClient(doer{c.calls, c.flows}, "http://pdnode")
	return c
}

// Passing is the same node for one call that passes a descriptor: a memfd that
// nobody else can open, for RegisterMemory.
func (c *Client) Passing(fd int) enginepb.EngineClient {
	return enginepb.NewEngineClient(newTransport(c.path, fd), "http://pdnode")
}

// CloseIdle closes the connections that no call uses.
func (c *Client) CloseIdle() {
	c.calls.closeIdle()
	c.flows.CloseIdleConnections()
}

// doer chooses the transport by what the request is.
type doer struct {
	calls *transport
	flows *http.Transport
}

var _ connect.HTTPClient = doer{}

// Do implements connect.HTTPClient.
func (d doer) Do(req *http.Request) (*http.Response, error) {
	if req.ContentLength < 0 {
		return d.flows.RoundTrip(req)
	}
	return d.calls.Do(req)
}

// streams is HTTP/2 without TLS over the socket.
func streams(path string) *http.Transport {
	var h2 http.Protocols
	h2.SetUnencryptedHTTP2(true)
	return &http.Transport{Protocols: &h2, DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "unix", path)
	}}
}
