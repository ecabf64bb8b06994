package callserver

import (
	"bytes"
)

// bodyMax is the largest body of a plain request, bytes: what net/http reads to
// its end for a handler that did not, before it closes the connection instead.
const bodyMax = 256 << 10

// verdict says who serves a request.
type verdict int

const (
	more  verdict = iota // the head has not come to its end
	plain                // the loop
	other                // net/http
)

// plainTypes are the content types of a call with one message each way.
var plainTypes = map[string]bool{"application/proto": true, "application/json": true}

// head reads the head of one request as it comes in. It takes what it knows to
// be well formed and to mean the same to every parser; whatever it does not
// know is net/http's to judge, from the line on where that shows.
//
// A plain request is a POST in HTTP/1.1 of a path that is a call's, with one
// Host, one Content-Type of plainTypes and one Content-Length up to bodyMax; its
// lines end in CR LF, none goes on over two, and none of its fields says that
// the body, the connection or the protocol is anything but usual.
type head struct {
	calls func(path []byte) bool

	at                   int // bytes that were read: whole lines
	began                bool
	host, length, typing bool
}

// read goes on in buf, which holds the request from its first byte on.
func (h *head) read(buf []byte) verdict {
	for {
		n := bytes.IndexByte(buf[h.at:], '\n')
		if n < 0 {
			return more
		}
		line := buf[h.at : h.at+n]
		h.at += n + 1
		if len(line) == 0 || line[len(line)-1] != '\r' {
			return other
		}
		line = line[:len(line)-1]
		switch {
		case !h.began:
			h.began = true
			if !h.request(line) {
				return other
			}
		case len(line) > 0:
			if !h.field(line) {
				return other
			}
		case h.host && h.length && h.typing:
			return plain
		default:
			return other
		}
	}
}

// request takes the first line.
func (h *head) request(line []byte) bool {
	path, ok := bytes.CutPrefix(line, []byte("POST "))
	if !ok {
		return false
	}
	path, ok = bytes.CutSuffix(path, []byte(" HTTP/1.1"))
	return ok && h.calls(path)
}

// field takes a header line.
func (h *head) field(line []byte) bool {
	name, value, ok := bytes.Cut(line, []byte(":"))
	if !ok || len(name) == 0 {
		return false
	}
	for _, c := range name {
		if !isToken(c) {
			return false
		}
	}
	for _, c := range value {
		if c < ' ' && c != '\t' || c == 0x7f {
			return false
		}
	}
	value = bytes.Trim(value, " \t")
	switch {
	case isField(name, "host"):
		return once(&h.host) && isHost(value)
	case isField(name, "content-length"):
		return once(&h.length) && isLength(value)
	case isField(name, "content-type"):
		return once(&h.typing) && plainTypes[string(value)]
	case isField(name, "connection"):
		return isField(value, "keep-alive")
	case isField(name, "transfer-encoding"), isField(name, "trailer"), isField(name, "expect"), isField(name, "upgrade"):
		return false
	}
	return true
}

// once is whether something is seen for the first time.
func once(seen *bool) bool {
	first := !*seen
	*seen = true
	return first
}

func isField(name []byte, lower string) bool {
	if len(name) != len(lower) {
		return false
	}
	for i, c := range name {
		if 'A' <= c && c <= 'Z' {
			c += 'a' - 'A'
		}
		if c != lower[i] {
			return false
		}
	}
	return true
}

// isToken: RFC 9110, 5.6.2.
func isToken(c byte) bool {
	return isAlnum(c) || bytes.IndexByte([]byte("!#$%&'*+-.^_`|~"), c) >= 0
}

func isAlnum(c byte) bool {
	return '0' <= c && c <= '9' || 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z'
}

// isHost takes names and addresses with a port; there is more that net/http
// takes.
func isHost(v []byte) bool {
	for _, c := range v {
		if !isAlnum(c) && bytes.IndexByte([]byte("-._:[]"), c) < 0 {
			return false
		}
	}
	return len(v) > 0
}

// isLength takes the length of a body up to bodyMax.
func isLength(v []byte) bool {
	n := 0
	for _, c := range v {
		if c < '0' || c > '9' {
			return false
		}
		if n = n*10 + int(c-'0'); n > bodyMax {
			return false
		}
	}
	return len(v) > 0
}
