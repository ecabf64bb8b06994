package stream

import (
	"fmt"
	"io"

	"github.com/pdlog/pdlog/rdma"
)

// decryptedLen is one TLS record.
const decryptedLen = 16 << 10

// readDecrypted reads once from a connection that has no file of its own to
// read from into pages: TLS. The wait is outside every lease's bracket.
func (in *inbound) readDecrypted() error {
	if in.scrap == nil {
		in.scrap = make([]byte, scrapLen)
	}
	buf := in.scrap[:decryptedLen]
	n, err := in.conn.Read(buf)
	if ferr := in.feed(buf[:n]); ferr != nil {
		return ferr
	}
	switch {
	case err == io.EOF: //nolint:errorlint // as Read gives it
		return io.EOF
	case err != nil:
		return fmt.Errorf("%w: %w", rdma.ErrConnLost, err)
	default:
		return nil
	}
}

// feed takes bytes of the stream out of a buffer.
func (in *inbound) feed(b []byte) error {
	for len(b) > 0 && in.err == nil {
		var n int
		switch {
		case in.rest == 0:
			n = copy(in.hbuf[in.hlen:], b)
		case in.dst == nil:
			n = min(in.rest, len(b))
		case !in.lease.enter():
			in.refuse(rdma.RefusedRevoked)
			continue
		default:
			n = min(in.rest, len(b), maxCopy)
			ok := copyGuarded(in.dst, b[:n])
			if ok {
				in.landed(n)
			}
			in.lease.leave()
			if !ok {
				in.refuse(rdma.RefusedMemory)
				continue
			}
		}
		b = b[n:]
		if err := in.advance(n); err != nil {
			return err
		}
	}
	return in.err
}
