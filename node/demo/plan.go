package demo

import (
	"encoding/json"
	"math"
	"math/rand/v2"
	"os"
	"slices"
	"time"

	"github.com/cockroachdb/errors"
)

// AbortKind says when the stand-ins abort a request.
type AbortKind string

// The kinds. An in-flight abort is fired by the prefill stand-in's word, while
// chunks of the room are being written, and the last chunk is held back until
// the abort was told; an early one comes right behind the open; a timed one
// after AbortAfterMS, wherever the request stands by then.
const (
	AbortNever    AbortKind = ""
	AbortInFlight AbortKind = "inflight"
	AbortEarly    AbortKind = "early"
	AbortTimed    AbortKind = "timed"
)

// Item is one request with all that will happen to it.
type Item struct {
	Index        int       `json:"index"`
	Room         uint64    `json:"room"`
	Use          uint32    `json:"use"`      // 0 = the number's first use
	Previous     int       `json:"previous"` // index of the number's use before, -1 if none
	ArriveMS     int64     `json:"arrive_ms"`
	Tokens       int       `json:"tokens"`
	Pages        int       `json:"pages"`
	ChunkPages   int       `json:"chunk_pages"`
	DecodeMS     int64     `json:"decode_ms"` // how long the answer takes
	Abort        AbortKind `json:"abort,omitempty"`
	AbortAfterMS int64     `json:"abort_after_ms,omitempty"`
	TooLarge     bool      `json:"too_large,omitempty"`
}

// Chunks is the number of chunks the request is sent in.
func (it Item) Chunks() int { return ceilDiv(it.Pages, it.ChunkPages) }

// Plan is what both stand-ins agree on before they start.
type Plan struct {
	PrefillNode string `json:"prefill_node"`
	DecodeNode  string `json:"decode_node"`

	PageBytes    int           `json:"page_bytes"` // of a page over all ranks of a side
	Pages        int           `json:"pages"`
	SourcePages  int           `json:"source_pages"`
	AuxRows      int           `json:"aux_rows"`
	PrefillRanks int           `json:"prefill_ranks"`
	DecodeRanks  int           `json:"decode_ranks"`
	Settle       time.Duration `json:"settle"` // wait for pages at the end
	Items        []Item        `json:"items"`
}

const (
	// reusePercent of the requests take a room number that was used before.
	reusePercent = 5
	// reuseDistance: how far back at least the earlier use lies, so that it has
	// ended by then in most runs.
	reuseDistance = 40
	// The decoding phase: with it the second check of a page comes after a late
	// write has had its time (--fault late:500ms).
	decodeMinMS, decodeMaxMS = 20, 1000
	// auxBytes of an aux row.
	auxBytes = 64
	// settle: cli.md, "waits up to 10 s for pages to come free".
	settle = 10 * time.Second
)

// MakePlan decides everything that the seed decides. Equal options and requests
// give equal plans.
func MakePlan(o Options, reqs []Request) Plan {
	p := Plan{
		PrefillNode: "p0", DecodeNode: "d0",
		PageBytes: o.PageTokens * o.BytesPerToken, Pages: o.Pages,
		// Source pages of an uncertain write stay taken after the decode side was
		// released by a fence; the prefill pool must not be what stops the demo.
		SourcePages:  2 * o.Pages,
		AuxRows:      max(o.Pages, 64),
		PrefillRanks: o.PrefillRanks, DecodeRanks: o.DecodeRanks,
		Settle: settle,
	}
	rng := rand.New(rand.NewPCG(o.Seed, 0x706c616e)) //nolint:gosec // not for secrets
	rooms := map[uint64]bool{}
	for i, r := range reqs {
		it := Item{
			Index: i, Previous: -1, Tokens: r.Input, Pages: ceilDiv(r.Input, o.PageTokens),
			ChunkPages: max(o.ChunkTokens/o.PageTokens, 1),
			// Skewed to the short side: most answers are short.
			DecodeMS: decodeMinMS + int64(math.Pow(rng.Float64(), 2)*(decodeMaxMS-decodeMinMS)),
		}
		if o.Speed > 0 {
			it.ArriveMS = int64(float64(r.AtMS) / o.Speed)
		}
		it.TooLarge = it.Pages > o.Pages
		for it.Room == 0 || rooms[it.Room] {
			it.Room = rng.Uint64() >> 1 // 63 bits: SGLang's rooms are random and below 2^63
		}
		rooms[it.Room] = true
		p.Items = append(p.Items, it)
	}
	p.planReuse(rng)
	p.planAborts(rng, o.AbortPercent)
	return p
}

// author finds the request and the place in its page list whose content has this
// word at a byte offset of the whole page; nil if there is none.
func (p *Plan) author(have uint64, offset int) (*Item, int) {
	for i := range p.Items {
		it := &p.Items[i]
		for k := range it.Pages {
			st := Stamp{Room: it.Room, Use: it.Use, Position: uint32(k)} //nolint:gosec // few pages
			if word(st.base(), uint64(offset)/8) == have {               //nolint:gosec // not negative
				return it, k
			}
		}
	}
	return nil, 0
}

// planReuse lets some requests take the room number of an earlier one. A number
// is used at most twice more, never by two requests at once.
func (p *Plan) planReuse(rng *rand.Rand) {
	n := len(p.Items)
	want := int(math.Round(float64(n) * reusePercent / 100))
	taken := map[int]bool{} // items whose number already has a next use
	for tries := 0; want > 0 && tries < 20*n && n > reuseDistance; tries++ {
		i := reuseDistance + rng.IntN(n-reuseDistance)
		j := rng.IntN(i - reuseDistance + 1)
		it, old := &p.Items[i], p.Items[j]
		// Only chains in order: neither end may be linked yet on that side, and
		// the later one must not already be the head of a chain.
		if it.Previous >= 0 || taken[i] || taken[j] || it.TooLarge || old.TooLarge {
			continue
		}
		it.Room, it.Use, it.Previous = old.Room, old.Use+1, j
		taken[j] = true
		want--
	}
}

// planAborts chooses which requests are aborted, exactly the asked share of
// those that fit, and when. Nine of ten are in flight: the larger ones, since
// they have bytes to be in flight.
func (p *Plan) planAborts(rng *rand.Rand, percent float64) {
	var fit []int
	for i, it := range p.Items {
		if !it.TooLarge {
			fit = append(fit, i)
		}
	}
	rng.Shuffle(len(fit), func(i, j int) { fit[i], fit[j] = fit[j], fit[i] })
	chosen := fit[:min(len(fit), int(math.Round(float64(len(p.Items))*percent/100)))]
	slices.SortFunc(chosen, func(a, b int) int {
		if d := p.Items[b].Pages - p.Items[a].Pages; d != 0 {
			return d
		}
		return a - b
	})
	inflight := ceilDiv(9*len(chosen), 10)
	for k, i := range chosen {
		it := &p.Items[i]
		switch {
		case k < inflight:
			it.Abort = AbortInFlight
			// At least eight chunks where the pages allow it: a burst, and some to hold back.
			it.ChunkPages = max(1, min(it.ChunkPages, it.Pages/8))
		case rng.IntN(2) == 0:
			it.Abort = AbortEarly
		default:
			it.Abort, it.AbortAfterMS = AbortTimed, rng.Int64N(60)
		}
	}
}

// Save writes the plan for the stand-ins.
func (p *Plan) Save(path string) error {
	b, err := json.Marshal(p)
	if err != nil {
		return errors.Wrap(err, "encode plan")
	}
	return errors.Wrap(os.WriteFile(path, b, 0o600), "write plan")
}

// LoadPlan reads what Save wrote.
func LoadPlan(path string) (*Plan, error) {
	b, err := os.ReadFile(path) //nolint:gosec // given by our own supervisor
	if err != nil {
		return nil, errors.Wrap(err, "read plan")
	}
	p := new(Plan)
	if err := json.Unmarshal(b, p); err != nil {
		return nil, errors.Wrapf(err, "read plan %s", path)
	}
	return p, nil
}

func ceilDiv(a, b int) int { return (a + b - 1) / b }
