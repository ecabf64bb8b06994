package rdmabench

import (
	"errors"
	"io"
	"net"

	"github.com/pdlog/pdlog/rdma"
)

// RawTCP copies pages over a loopback connection by Write and ReadFull: no
// frames, no keys, and no acknowledgements but one at the end of a run.
type RawTCP struct {
	src, dst *rdma.Memfd
	conn     net.Conn
	jobs     chan rawJob
	ended    chan error
	at       int
}

type rawJob struct{ n, size, at int }

// OpenRawTCP connects the two ends.
func OpenRawTCP() (*RawTCP, error) {
	r := &RawTCP{jobs: make(chan rawJob), ended: make(chan error, 1)}
	var err error
	if r.src, err = Memory(); err != nil {
		return nil, err
	}
	if r.dst, err = Memory(); err != nil {
		return nil, errors.Join(err, r.src.Close())
	}
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, errors.Join(err, r.src.Close(), r.dst.Close())
	}
	defer func() { _ = ln.Close() }() // one connection is all it is for
	accepted := make(chan net.Conn, 1)
	go func() {
		c, err := ln.Accept()
		if err == nil {
			accepted <- c
		}
		close(accepted)
	}()
	if r.conn, err = net.Dial("tcp", ln.Addr().String()); err != nil {
		return nil, errors.Join(err, r.src.Close(), r.dst.Close())
	}
	to, ok := <-accepted
	if !ok {
		return nil, errors.Join(errors.New("accept failed"), r.conn.Close(), r.src.Close(), r.dst.Close())
	}
	go func() { r.ended <- r.receive(to) }()
	return r, nil
}

func (r *RawTCP) receive(c net.Conn) error {
	defer func() { _ = c.Close() }() // everything was acknowledged
	for j := range r.jobs {
		for range j.n {
			if j.at+j.size > MemBytes {
				j.at = 0
			}
			if _, err := io.ReadFull(c, r.dst.Bytes()[j.at:j.at+j.size]); err != nil {
				return err
			}
			j.at += j.size
		}
		if _, err := c.Write([]byte{1}); err != nil {
			return err
		}
	}
	return nil
}

// Copy sends n pages of size bytes and returns when the other end has them.
func (r *RawTCP) Copy(n, size int) error {
	r.jobs <- rawJob{n: n, size: size, at: r.at}
	for range n {
		if r.at+size > MemBytes {
			r.at = 0
		}
		if _, err := r.conn.Write(r.src.Bytes()[r.at : r.at+size]); err != nil {
			return err
		}
		r.at += size
	}
	_, err := io.ReadFull(r.conn, make([]byte, 1))
	return err
}

// Close ends both ends.
func (r *RawTCP) Close() error {
	close(r.jobs)
	err := errors.Join(<-r.ended, r.conn.Close())
	return errors.Join(err, r.src.Close(), r.dst.Close())
}

// Memcpy copies pages from one region to another, in one goroutine.
type Memcpy struct {
	src, dst *rdma.Memfd
	at       int
}

// OpenMemcpy allocates the two regions.
func OpenMemcpy() (*Memcpy, error) {
	src, err := Memory()
	if err != nil {
		return nil, err
	}
	dst, err := Memory()
	if err != nil {
		return nil, errors.Join(err, src.Close())
	}
	return &Memcpy{src: src, dst: dst}, nil
}

// Copy copies n pages of size bytes.
func (m *Memcpy) Copy(n, size int) {
	for range n {
		if m.at+size > MemBytes {
			m.at = 0
		}
		copy(m.dst.Bytes()[m.at:m.at+size], m.src.Bytes()[m.at:m.at+size])
		m.at += size
	}
}

// Close frees the regions.
func (m *Memcpy) Close() error { return errors.Join(m.src.Close(), m.dst.Close()) }
