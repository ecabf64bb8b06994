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
		n, err := in.feedOne(b)
		if err != nil {
			return err
		}
		b = b[n:]
	}
	return in.err
}

// feedOne takes a header, or a piece of a payload, or the rest of what b has of
// one of them. A frame whose bytes are in a pool is copied at once.
func (in *inbound) feedOne(b []byte) (n int, err error) {
	switch {
	case in.rest == 0:
		n = copy(in.hbuf[in.hlen:], b)
	case in.dst == nil:
		n = min(in.rest, len(b))
	case !in.lease.enter():
		in.refuse(rdma.RefusedRevoked)
		return 0, nil
	default:
		n = min(in.rest, len(b), maxCopy)
		ok := guarded(copyCached, in.dst, b[:n])
		if ok {
			in.landed(n)
		}
		in.lease.leave()
		if !ok {
			in.refuse(rdma.RefusedMemory)
			return 0, nil
		}
	}
	return n, in.advance(n)
}

// readAhead reads once where headers are expected: of frames whose bytes are in
// pools nothing but headers comes, and one call gets several.
func (in *inbound) readAhead(fd int) (int, error) {
	n, err := in.recvmsg(fd, in.ahead[:cap(in.ahead)], nil)
	in.ahead = in.ahead[:max(n, 0)]
	in.fed = 0
	return n, err
}

// feedAhead takes the next of what was read ahead.
func (in *inbound) feedAhead() error {
	n, err := in.feedOne(in.ahead[in.fed:])
	if in.fed += n; in.fed == len(in.ahead) {
		in.ahead, in.fed = in.ahead[:0], 0
	}
	return err
}
