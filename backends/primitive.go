package backends

import (
	"net/netip"
	"strconv"
	"unsafe"
)

// Bounds of the numbers on the wire.
const (
	MaxRoom = 1<<63 - 1 // rooms, generations, byte counts
	maxI31  = 1<<31 - 1 // ranks, indices, sizes
)

// Endpoint is the address of a peer's PULL socket. The zero Endpoint is none.
type Endpoint struct {
	IP   string // IPv4 or bare IPv6 text, as received
	Port uint16 // 1 … 65535
}

// IsZero reports that there is no endpoint.
func (e Endpoint) IsZero() bool { return e.IP == "" && e.Port == 0 }

// AddrPort parses the endpoint. Two endpoints are the same peer if these are
// equal; their text may differ. The zero value if IP is no address.
func (e Endpoint) AddrPort() netip.AddrPort {
	a, ok := parseIP(e.IP)
	if !ok {
		return netip.AddrPort{}
	}
	return netip.AddrPortFrom(a, e.Port)
}

// URL is the ZeroMQ endpoint to connect to, "tcp://10.0.0.1:5000" or
// "tcp://[fe80::1]:5000" (wire.md 1.0).
func (e Endpoint) URL() string {
	port := strconv.Itoa(int(e.Port))
	for i := range len(e.IP) {
		if e.IP[i] == ':' {
			return "tcp://[" + e.IP + "]:" + port
		}
	}
	return "tcp://" + e.IP + ":" + port
}

func (e Endpoint) valid() bool {
	_, ok := parseIP(e.IP)
	return ok && e.Port != 0
}

// parseDec reads the strict decimal form `0` or `-?[1-9][0-9]*`. Python's
// int() takes more (wire.md section 0, dec); we never send that and refuse it.
func parseDec(b []byte) (mag uint64, neg, ok bool) {
	if len(b) > 1 && b[0] == '-' {
		neg, b = true, b[1:]
		if b[0] == '0' {
			return 0, false, false
		}
	}
	if len(b) == 0 || len(b) > 20 || b[0] == '0' && len(b) > 1 {
		return 0, false, false
	}
	for _, c := range b {
		d := uint64(c - '0')
		if d > 9 {
			return 0, false, false
		}
		// 20 digits may pass 2^64-1.
		if mag > (1<<64-1-d)/10 {
			return 0, false, false
		}
		mag = mag*10 + d
	}
	return mag, neg, true
}

// parseUint reads a dec in 0 … limit.
func parseUint(b []byte, limit uint64) (uint64, bool) {
	v, neg, ok := parseDec(b)
	if !ok || neg || v > limit {
		return 0, false
	}
	return v, true
}

// parsePort reads a port.
func parsePort(b []byte) (uint16, bool) {
	v, ok := parseUint(b, 65535)
	return uint16(v), ok && v != 0
}

// parseIP reads IPv4 with four parts or IPv6 text without brackets, zone or
// prefix length.
func parseIP(s string) (netip.Addr, bool) {
	a, err := netip.ParseAddr(s)
	if err != nil || a.Zone() != "" {
		return netip.Addr{}, false
	}
	return a, true
}

// maxIPText is the longest text of an IPv6 address, in bytes.
const maxIPText = 45

// readIP copies the text of an address.
func readIP(b []byte) (string, bool) {
	if len(b) > maxIPText {
		return "", false
	}
	s := string(b)
	_, ok := parseIP(s)
	return s, ok
}

// ipText is the memory of an address's text, for messages that hold it
// themselves. It is written once, by read.
type ipText [maxIPText]byte

// read is readIP into t: the string is t's memory and keeps it alive.
func (t *ipText) read(b []byte) (string, bool) {
	if len(b) == 0 || len(b) > maxIPText {
		return "", false
	}
	n := copy(t[:], b)
	s := unsafe.String(&t[0], n) //nolint:gosec // t does not change any more
	_, ok := parseIP(s)
	return s, ok
}

// isName reports one or more bytes 0x21-0x7e.
func isName[T string | []byte](b T) bool {
	for i := range len(b) {
		if b[i] < 0x21 || b[i] > 0x7e {
			return false
		}
	}
	return len(b) > 0
}

// isSession reports a Mooncake session id: a name `host:port`; the last colon
// counts, and P shards by the number behind it (wire.md 1.2).
func isSession[T string | []byte](b T) bool {
	if !isName(b) {
		return false
	}
	for i := len(b) - 1; i > 0; i-- {
		if b[i] == ':' {
			_, ok := parsePort([]byte(b[i+1:]))
			return ok
		}
	}
	return false
}

// LooksNumeric reports at least one ASCII digit and nothing but digits, signs,
// underscores and ASCII blanks. Mooncake's untagged messages are told from
// foreign traffic by it; whether the number is good is decided by the strict
// form afterwards.
func LooksNumeric(b []byte) bool {
	digit := false
	for _, c := range b {
		switch {
		case c >= '0' && c <= '9':
			digit = true
		case c == '+', c == '-', c == '_', c == ' ', c >= 0x09 && c <= 0x0d:
		default:
			return false
		}
	}
	return digit
}
