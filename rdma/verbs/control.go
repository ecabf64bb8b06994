//go:build verbs

package verbs

import (
	"bufio"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"

	"github.com/pdlog/pdlog/rdma"
)

const (
	controlVersion = 1
	maxMessage     = 64 << 20 // bytes: a transfer of a million pieces
	maxPeerLen     = 255
	keyLen         = 16
)

// key is the secret of a lease. It opens nothing by itself: on each connection
// the writer asks for it to be opened, and gets the windows of that connection.
type key [keyLen]byte

// Messages of the control connection. The writer sends hello, repair, open and
// told; the target the others.
const (
	opHello   = "hello"   // Peer, QP → welcome or the end
	opWelcome = "welcome" // QP, Flush
	opRepair  = "repair"  // QP: the old one broke → welcome
	opOpen    = "open"    // Key → opened
	opOpened  = "opened"  // Key, Windows; or Reason
	opClosed  = "closed"  // Key: revoked, no answer
	opTold    = "told"    // a transfer has ended, as far as the device knows → noted
	opNoted   = "noted"   // Seq, Reason if some of it was refused
)

// message is one of all kinds; those that a kind has not are left out.
type message struct {
	Op      string       `json:"op"`
	Version int          `json:"version,omitempty"`
	Peer    rdma.PeerID  `json:"peer,omitempty"`
	QP      []byte       `json:"qp,omitempty"` // Addr
	Flush   *window      `json:"flush,omitempty"`
	Key     []byte       `json:"key,omitempty"`
	Windows []window     `json:"windows,omitempty"`
	Reason  rdma.Refusal `json:"reason,omitempty"`

	Seq     uint64  `json:"seq,omitempty"`
	Tag     uint64  `json:"tag,omitempty"`
	Meta    uint64  `json:"meta,omitempty"`
	Flags   uint32  `json:"flags,omitempty"`
	Partial bool    `json:"partial,omitempty"`
	Pieces  []piece `json:"pieces,omitempty"`
}

// window is a run of the target's region that may be written.
type window struct {
	Off  uint64 `json:"off"`
	Len  uint64 `json:"len"`
	Addr uint64 `json:"addr"`
	Key  uint32 `json:"key"`
}

// piece is a write as its end is told.
type piece struct {
	Key     []byte  `json:"key"`
	Off     uint64  `json:"off"`
	Len     uint64  `json:"len"`
	Sum     *uint32 `json:"sum,omitempty"`     // CRC32C of the source
	Refused bool    `json:"refused,omitempty"` // by the device, or before it was posted
}

// control is the TCP connection beside a queue pair: it joins queue pairs, opens
// keys, and carries the news of what was written. Messages are JSON behind
// their length.
type control struct {
	conn net.Conn
	r    *bufio.Reader

	mu sync.Mutex // writes
}

func newControl(c net.Conn) *control { return &control{conn: c, r: bufio.NewReader(c)} }

func (c *control) close() { _ = c.conn.Close() } // its reader hears of it

func (c *control) send(m *message) error {
	b, err := json.Marshal(m)
	if err != nil {
		return err
	}
	out := make([]byte, 4, 4+len(b))
	binary.BigEndian.PutUint32(out, uint32(len(b)))
	c.mu.Lock()
	defer c.mu.Unlock()
	_, err = c.conn.Write(append(out, b...))
	return err
}

var errMessage = errors.New("malformed control message")

func (c *control) receive() (*message, error) {
	var n [4]byte
	if _, err := io.ReadFull(c.r, n[:]); err != nil {
		return nil, err
	}
	size := binary.BigEndian.Uint32(n[:])
	if size > maxMessage {
		return nil, fmt.Errorf("%w: %d bytes", errMessage, size)
	}
	b := make([]byte, size)
	if _, err := io.ReadFull(c.r, b); err != nil {
		return nil, err
	}
	m := new(message)
	if err := json.Unmarshal(b, m); err != nil {
		return nil, fmt.Errorf("%w: %w", errMessage, err)
	}
	return m, nil
}

func parseKey(b []byte) (k key, ok bool) { return k, copy(k[:], b) == keyLen && len(b) == keyLen }
