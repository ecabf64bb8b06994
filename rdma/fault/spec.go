package fault

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"strconv"
	"strings"
	"time"

	"github.com/pdlog/pdlog/rdma"
)

// Kind is what happens to a batch.
type Kind uint8

// The kinds: those of scenarios.md's result=, and more. The last two befall the
// target's revocations, all others the writer's batches.
const (
	OK      Kind = iota // nothing: the inner provider does it
	Error               // fails at once, proven: nothing lands
	Hang                // never ends and never lands; Abort makes it uncertain
	Late                // uncertain at once, lands Rule.After later, then drained
	Partial             // as Late, of half of the writes; the others never land
	Delay               // lands Rule.After later and completes then
	Lost                // lands, and its completion never comes; Abort makes it uncertain
	Early               // completes at once, lands Rule.After later
	Twice               // lands, and completes twice
	Short               // half of the writes are accepted (rdma.PartialError)
	Reset               // is posted, and the connection breaks

	SlowFence // Revoke takes Rule.After longer
	BadFence  // Revoke proves nothing, however often it is called
	kinds
)

var kindNames = [kinds]string{
	OK: "ok", Error: "error", Hang: "hang", Late: "late", Partial: "partial", Delay: "delay", Lost: "lost", Early: "early",
	Twice: "twice", Short: "short", Reset: "reset", SlowFence: "slowfence", BadFence: "badfence",
}

// String is the kind's word in a spec.
func (k Kind) String() string {
	if k < kinds {
		return kindNames[k]
	}
	return "unknown"
}

// timed: a rule of this kind has a duration.
func (k Kind) timed() bool {
	return k == Late || k == Partial || k == Delay || k == Early || k == SlowFence
}

// held: a batch of this kind is posted to the inner provider after a while.
func (k Kind) held() bool { return k == Late || k == Partial || k == Delay || k == Early }

func (k Kind) fence() bool { return k == SlowFence || k == BadFence }

// Rule is one item of a spec.
type Rule struct {
	Kind    Kind
	After   time.Duration // of those that are timed
	Percent float64       // of all that it is for, 0 to 100
	Only    Only
}

// Only narrows a rule down. The zero value is for everything.
type Only struct {
	Tag   *uint64 // rdma.Batch.Tag; of a fence rdma.Grant.Tag
	Chunk *uint64 // rdma.Batch.Meta
	Peer  string  // how the peer's name begins, or the endpoint's
}

func (o Only) matches(tag rdma.Tag, chunk uint64, peer rdma.PeerID) bool {
	return (o.Tag == nil || *o.Tag == uint64(tag)) && (o.Chunk == nil || *o.Chunk == chunk) && strings.HasPrefix(string(peer), o.Peer)
}

// Spec says which share of the batches and revocations suffers what; the rest is
// well. The zero value breaks nothing.
type Spec struct{ Rules []Rule }

// Writer is the part of a spec that befalls batches.
func (s Spec) Writer() Spec { return s.part(false) }

// Target is the part of a spec that befalls revocations.
func (s Spec) Target() Spec { return s.part(true) }

func (s Spec) part(fence bool) Spec {
	var out Spec
	for _, r := range s.Rules {
		if r.Kind.fence() == fence {
			out.Rules = append(out.Rules, r)
		}
	}
	return out
}

// ErrSpec is what every error of ParseSpec is.
var ErrSpec = errors.New("fault spec")

// ParseSpec reads a comma-separated list of KIND[:DURATION][:PERCENT][@ONLY],
// such as "late:500ms:30%,hang:5%,partial:1s:5%,error:10%". Without a percentage
// a rule is for all batches. ONLY narrows it down: "@chunk=0", "@tag=12",
// "@peer=d0", or several joined by "&". The empty string is the empty spec.
func ParseSpec(s string) (Spec, error) {
	var spec Spec
	if strings.TrimSpace(s) == "" {
		return spec, nil
	}
	sum := map[bool]float64{}
	for item := range strings.SplitSeq(s, ",") {
		r, err := parseRule(strings.TrimSpace(item))
		if err != nil {
			return Spec{}, fmt.Errorf("%w: %q: %w", ErrSpec, item, err)
		}
		if r.Only == (Only{}) {
			sum[r.Kind.fence()] += r.Percent
		}
		spec.Rules = append(spec.Rules, r)
	}
	if most := max(sum[false], sum[true]); most > 100+1e-9 {
		return Spec{}, fmt.Errorf("%w: %q: the shares add up to %g%%, at most 100%%", ErrSpec, s, most)
	}
	return spec, nil
}

func parseOnly(s string) (o Only, err error) {
	for field := range strings.SplitSeq(s, "&") {
		name, value, _ := strings.Cut(field, "=")
		switch name {
		case "tag", "chunk":
			n, err := strconv.ParseUint(value, 10, 64)
			if err != nil {
				return o, fmt.Errorf("bad %s %q: want a number", name, value)
			}
			if name == "tag" {
				o.Tag = &n
			} else {
				o.Chunk = &n
			}
		case "peer":
			if value == "" {
				return o, errors.New("peer is empty")
			}
			o.Peer = value
		default:
			return o, fmt.Errorf("bad selector %q: want chunk=, tag= or peer=", field)
		}
	}
	return o, nil
}

func (o Only) String() string {
	var parts []string
	if o.Tag != nil {
		parts = append(parts, fmt.Sprintf("tag=%d", *o.Tag))
	}
	if o.Chunk != nil {
		parts = append(parts, fmt.Sprintf("chunk=%d", *o.Chunk))
	}
	if o.Peer != "" {
		parts = append(parts, "peer="+o.Peer)
	}
	if len(parts) == 0 {
		return ""
	}
	return "@" + strings.Join(parts, "&")
}

func parseRule(item string) (Rule, error) {
	item, only, narrow := strings.Cut(item, "@")
	word, rest, more := strings.Cut(item, ":")
	r := Rule{Kind: kinds, Percent: 100}
	if narrow {
		var err error
		if r.Only, err = parseOnly(only); err != nil {
			return r, err
		}
	}
	for k := OK; k < kinds; k++ {
		if k.String() == word {
			r.Kind = k
		}
	}
	if r.Kind == kinds {
		return r, fmt.Errorf("unknown kind %q: want one of %s", word, strings.Join(kindNames[:], ", "))
	}
	var fields []string
	if more {
		fields = strings.Split(rest, ":")
	}
	if r.Kind.timed() {
		if len(fields) == 0 || strings.HasSuffix(fields[0], "%") {
			return r, fmt.Errorf("%s needs a duration, as in %s:500ms:30%%", word, word)
		}
		d, err := time.ParseDuration(fields[0])
		if err != nil || d < 0 {
			return r, fmt.Errorf("bad duration %q: want one such as 500ms", fields[0])
		}
		r.After, fields = d, fields[1:]
	}
	if len(fields) == 0 {
		return r, nil
	}
	number, ok := strings.CutSuffix(fields[0], "%")
	p, err := strconv.ParseFloat(number, 64)
	if !ok || err != nil || !(p >= 0 && p <= 100) {
		return r, fmt.Errorf("bad share %q: want 0%% to 100%%", fields[0])
	}
	if len(fields) > 1 {
		return r, fmt.Errorf("too much: %q", strings.Join(fields[1:], ":"))
	}
	r.Percent = p
	return r, nil
}

// String is a spec that ParseSpec reads as s.
func (s Spec) String() string {
	items := make([]string, len(s.Rules))
	for i, r := range s.Rules {
		share := strconv.FormatFloat(r.Percent, 'g', -1, 64) + "%"
		if r.Kind.timed() {
			items[i] = fmt.Sprintf("%s:%s:%s", r.Kind, r.After, share)
		} else {
			items[i] = fmt.Sprintf("%s:%s", r.Kind, share)
		}
		items[i] += r.Only.String()
	}
	return strings.Join(items, ",")
}

// Draw says what happens to the batch (tag, meta) to a peer: the same for the
// same seed, in whatever order batches are posted.
func (s Spec) Draw(seed uint64, tag rdma.Tag, meta uint64, peer rdma.PeerID) Rule {
	var src rand.PCG
	src.Seed(seed, mix(uint64(tag))^mix(meta+0x9e3779b97f4a7c15))
	at := float64(src.Uint64()>>11) / (1 << 53) * 100
	for _, r := range s.Rules {
		if !r.Only.matches(tag, meta, peer) {
			continue
		}
		if at < r.Percent {
			return r
		}
		at -= r.Percent
	}
	return Rule{Kind: OK}
}

// mix is splitmix64's finalizer: neighbouring tags and chunks must not draw
// alike.
func mix(x uint64) uint64 {
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return x ^ x>>31
}
