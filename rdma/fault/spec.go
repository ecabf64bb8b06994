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

// The kinds; those of scenarios.md's result= and delay.
const (
	OK      Kind = iota // nothing: the inner provider does it
	Error               // fails at once, proven: nothing lands
	Hang                // never ends and never lands; Abort makes it uncertain
	Late                // uncertain at once, lands Rule.After later, then drained
	Partial             // as Late, of half of the writes; the others never land
	Delay               // lands Rule.After later and completes then
	kinds
)

// String is the kind's word in a spec.
func (k Kind) String() string {
	switch k {
	case OK:
		return "ok"
	case Error:
		return "error"
	case Hang:
		return "hang"
	case Late:
		return "late"
	case Partial:
		return "partial"
	case Delay:
		return "delay"
	default:
		return "unknown"
	}
}

func (k Kind) timed() bool { return k == Late || k == Partial || k == Delay }

// Rule is one item of a spec.
type Rule struct {
	Kind    Kind
	After   time.Duration // of late, partial and delay
	Percent float64       // of all batches, 0 to 100
}

// Spec says which share of the batches suffers what; the rest is well. The
// zero value breaks nothing.
type Spec struct{ Rules []Rule }

// ErrSpec is what every error of ParseSpec is.
var ErrSpec = errors.New("fault spec")

// ParseSpec reads a comma-separated list of KIND[:DURATION][:PERCENT], such as
// "late:500ms:30%,hang:5%,partial:1s:5%,error:10%". Without a percentage a rule
// is for all batches. The empty string is the empty spec.
func ParseSpec(s string) (Spec, error) {
	var spec Spec
	if strings.TrimSpace(s) == "" {
		return spec, nil
	}
	var sum float64
	for item := range strings.SplitSeq(s, ",") {
		r, err := parseRule(strings.TrimSpace(item))
		if err != nil {
			return Spec{}, fmt.Errorf("%w: %q: %w", ErrSpec, item, err)
		}
		sum += r.Percent
		spec.Rules = append(spec.Rules, r)
	}
	if sum > 100+1e-9 {
		return Spec{}, fmt.Errorf("%w: %q: the shares add up to %g%%, at most 100%%", ErrSpec, s, sum)
	}
	return spec, nil
}

func parseRule(item string) (Rule, error) {
	word, rest, more := strings.Cut(item, ":")
	r := Rule{Kind: kinds, Percent: 100}
	for k := OK; k < kinds; k++ {
		if k.String() == word {
			r.Kind = k
		}
	}
	if r.Kind == kinds {
		return r, fmt.Errorf("unknown kind %q: want ok, error, hang, late, partial or delay", word)
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
	}
	return strings.Join(items, ",")
}

// Draw says what happens to the batch (tag, meta): the same for the same seed,
// in whatever order batches are posted.
func (s Spec) Draw(seed uint64, tag rdma.Tag, meta uint64) Rule {
	var src rand.PCG
	src.Seed(seed, mix(uint64(tag))^mix(meta+0x9e3779b97f4a7c15))
	at := float64(src.Uint64()>>11) / (1 << 53) * 100
	for _, r := range s.Rules {
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
