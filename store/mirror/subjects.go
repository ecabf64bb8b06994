package mirror

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/cockroachdb/errors"
	"github.com/nats-io/nats.go"

	"github.com/pdlog/pdlog/store"
)

// Names on the wire (store.md 6.5).
const (
	StreamLog   = "PDLOG"
	StreamAudit = "PDLOG_AUDIT"

	prefixLog   = "pdlog.log."
	prefixAudit = "pdlog.audit."

	// ContentType of a log message: frames of package events, one behind the other.
	ContentType = "application/vnd.pdlog.frames"
	// AuditContentType of an audit message: one event as JSON.
	AuditContentType = "application/json"
)

// Headers of log and audit messages.
const (
	HeaderNode        = "Pdlog-Node"
	HeaderLogID       = "Pdlog-Log-Id"       // 32 hex digits
	HeaderBoot        = "Pdlog-Boot"         // 16 hex digits
	HeaderIncarnation = "Pdlog-Incarnation"  // decimal
	HeaderFirstSeq    = "Pdlog-First-Seq"    // decimal
	HeaderLastSeq     = "Pdlog-Last-Seq"     // decimal
	HeaderChainBefore = "Pdlog-Chain-Before" // 8 hex digits, before the first record
	HeaderChain       = "Pdlog-Chain"        // 8 hex digits, after the last record
	HeaderSeq         = "Pdlog-Seq"          // audit: the event's sequence, decimal
	headerContentType = "Content-Type"
)

// SubjectLog is where a node's log is mirrored.
func SubjectLog(cluster, node string) string { return prefixLog + token(cluster) + "." + token(node) }

// SubjectAudit is where a node's milestones of one type go.
func SubjectAudit(cluster, node, eventType string) string {
	return prefixAudit + token(cluster) + "." + token(node) + "." + eventType
}

// token makes any name one token of a subject: letters, digits, - and _ stay,
// every other byte becomes =XX.
func token(name string) string {
	var sb strings.Builder
	for i := range len(name) {
		c := name[i]
		switch {
		case c >= 'a' && c <= 'z', c >= 'A' && c <= 'Z', c >= '0' && c <= '9', c == '-', c == '_':
			sb.WriteByte(c)
		default:
			fmt.Fprintf(&sb, "=%02X", c)
		}
	}
	return sb.String()
}

// untoken is token's inverse; what token never makes comes back as it is.
func untoken(tok string) string {
	var sb strings.Builder
	for i := 0; i < len(tok); i++ {
		if tok[i] == '=' && i+2 < len(tok) {
			if v, err := strconv.ParseUint(tok[i+1:i+3], 16, 8); err == nil {
				sb.WriteByte(byte(v))
				i += 2
				continue
			}
		}
		sb.WriteByte(tok[i])
	}
	return sb.String()
}

// filterLog matches the logs of a cluster and node; "" is any.
func filterLog(cluster, node string) string { return prefixLog + orAny(cluster) + "." + orAny(node) }

func orAny(name string) string {
	if name == "" {
		return "*"
	}
	return token(name)
}

// SplitLog takes a log subject apart.
func SplitLog(subject string) (cluster, node string, ok bool) {
	rest, ok := strings.CutPrefix(subject, prefixLog)
	c, n, ok2 := strings.Cut(rest, ".")
	return untoken(c), untoken(n), ok && ok2 && !strings.Contains(n, ".")
}

// logHead is what the headers of a log message say.
type logHead struct {
	node        string
	logID       store.LogID
	first, last uint64
	chainBefore uint32
	chain       uint32
	boot        uint64
	incarnation uint64
}

func (h logHead) header() nats.Header {
	return nats.Header{
		HeaderNode:        {h.node},
		HeaderLogID:       {h.logID.String()},
		HeaderBoot:        {fmt.Sprintf("%016x", h.boot)},
		HeaderIncarnation: {strconv.FormatUint(h.incarnation, 10)},
		HeaderFirstSeq:    {strconv.FormatUint(h.first, 10)},
		HeaderLastSeq:     {strconv.FormatUint(h.last, 10)},
		HeaderChainBefore: {fmt.Sprintf("%08x", h.chainBefore)},
		HeaderChain:       {fmt.Sprintf("%08x", h.chain)},
		headerContentType: {ContentType},
	}
}

// parseLogHead reads the headers of a log message. The error is
// ErrMirrorDiverged: such a message is not a mirror's.
func parseLogHead(h nats.Header) (logHead, error) {
	p := headParser{h: h}
	out := logHead{
		node:        h.Get(HeaderNode),
		logID:       p.logID(),
		first:       p.uint(HeaderFirstSeq, 10, 64),
		last:        p.uint(HeaderLastSeq, 10, 64),
		chainBefore: uint32(p.uint(HeaderChainBefore, 16, 32)), //nolint:gosec // 32 bits
		chain:       uint32(p.uint(HeaderChain, 16, 32)),       //nolint:gosec // 32 bits
		boot:        p.uint(HeaderBoot, 16, 64),
		incarnation: p.uint(HeaderIncarnation, 10, 64),
	}
	if p.err == nil && (out.first == 0 || out.last < out.first) {
		p.err = errors.Newf("sequences %d to %d", out.first, out.last)
	}
	if p.err != nil {
		return logHead{}, errors.Wrapf(ErrMirrorDiverged, "headers: %v", p.err)
	}
	return out, nil
}

type headParser struct {
	h   nats.Header
	err error
}

func (p *headParser) uint(key string, base, bits int) uint64 {
	v, err := strconv.ParseUint(p.h.Get(key), base, bits)
	if err != nil && p.err == nil {
		p.err = errors.Newf("%s is %q", key, p.h.Get(key))
	}
	return v
}

func (p *headParser) logID() store.LogID {
	id, err := store.ParseLogID(p.h.Get(HeaderLogID))
	if err != nil && p.err == nil {
		p.err = err
	}
	return id
}
