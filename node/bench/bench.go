package bench

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/cockroachdb/errors"
)

// Cases are all rows, in the order of the table.
func Cases() []Case {
	return slices.Concat(transferCases(), controlCases(), roomCases(), rdmaCases())
}

// Case measures one row.
type Case struct {
	Name  string  // GROUP/WHAT
	Share float64 // of the time that a run may take, relative to the others'; 0 is 1
	Run   func(context.Context, Timing) (Result, error)
}

// Result is a row, with the keys of cli.md.
type Result struct {
	Name    string  `json:"name"`
	Value   float64 `json:"value"`
	Unit    string  `json:"unit"`
	Against string  `json:"against"` // the peer or limit
	Ratio   float64 `json:"ratio"`   // of the value to it
	Bar     float64 `json:"bar"`     // what the ratio must reach; 0: the row has none
	OK      bool    `json:"ok"`

	AtMost bool `json:"-"` // the bar is a ceiling: latency, cost, late bytes
}

// judge fills in OK.
func (r *Result) judge() {
	r.OK = r.Ratio >= r.Bar
	if r.AtMost {
		r.OK = r.Bar == 0 && r.Value == 0 || r.Ratio <= r.Bar
	}
}

// Timing is how long a case may measure.
type Timing struct {
	Rounds int           // of each side, in turn
	Budget time.Duration // for the whole case
}

// Slice is the time for one side of one round when a round has so many sides.
// What a case does besides measuring takes a fifth.
func (t Timing) Slice(sides int) time.Duration {
	return t.Budget * 4 / 5 / time.Duration(t.Rounds*sides)
}

const (
	quickTotal  = 40 * time.Second // --quick ends within 50 s; the rest is setting up
	quickRounds = 7
	caseBudget  = 8 * time.Second // of a case with a share of 1, without --quick
	fullRounds  = 15
)

// Options choose what is run.
type Options struct {
	Names []string // a case, or a group: all that begin with NAME/; none: all
	Quick bool     // all in all within 50 s
}

// ErrName is a name that no case or group has.
var ErrName = errors.New("no such benchmark")

// ErrUnavailable marks a case that can not be measured here; its text says what
// is missing.
var ErrUnavailable = errors.New("not measured")

// Unavailablef is an ErrUnavailable with a reason.
func Unavailablef(format string, args ...any) error {
	return errors.Mark(errors.Newf(format, args...), ErrUnavailable)
}

// Select gives the cases that the names stand for, in the table's order.
// Errors: ErrName, which lists the groups there are.
func Select(all []Case, names []string) ([]Case, error) {
	if len(names) == 0 {
		return all, nil
	}
	want := make([]bool, len(all))
	for _, n := range names {
		found := false
		for i, c := range all {
			if c.Name == n || strings.HasPrefix(c.Name, n+"/") {
				want[i], found = true, true
			}
		}
		if !found {
			return nil, errors.Mark(errors.Newf("no benchmark is called %q: want one of %s, or a row of theirs", n, strings.Join(groups(all), ", ")), ErrName)
		}
	}
	var out []Case
	for i, c := range all {
		if want[i] {
			out = append(out, c)
		}
	}
	return out, nil
}

func groups(all []Case) []string {
	var out []string
	for _, c := range all {
		g, _, _ := strings.Cut(c.Name, "/")
		if !slices.Contains(out, g) {
			out = append(out, g)
		}
	}
	return out
}

// Report hears of the rows as they come: a result, or why there is none.
type Report struct {
	Row     func(Result) error
	Missing func(name string, why error) // ErrUnavailable
}

// Run measures the cases one after the other and says whether no row is short.
func Run(ctx context.Context, o Options, to Report) (ok bool, err error) {
	return run(ctx, Cases(), o, to)
}

func run(ctx context.Context, all []Case, o Options, to Report) (ok bool, err error) {
	cases, err := Select(all, o.Names)
	if err != nil {
		return false, err
	}
	total := 0.0
	for _, c := range cases {
		total += c.share()
	}
	ok = true
	for _, c := range cases {
		t := Timing{Rounds: fullRounds, Budget: time.Duration(float64(caseBudget) * c.share())}
		if o.Quick {
			t = Timing{Rounds: quickRounds, Budget: min(t.Budget, time.Duration(float64(quickTotal)*c.share()/total))}
		}
		r, err := c.Run(ctx, t)
		switch {
		case errors.Is(err, ErrUnavailable):
			to.Missing(c.Name, err)
			continue
		case err != nil:
			return false, errors.Wrap(err, c.Name)
		}
		r.Name = c.Name
		r.judge()
		ok = ok && r.OK
		if err := to.Row(r); err != nil {
			return false, err
		}
	}
	return ok, nil
}

func (c *Case) share() float64 {
	if c.Share == 0 {
		return 1
	}
	return c.Share
}

// Limit is the bar as text: ">= 0.9", "<= 1", or "-".
func (r Result) Limit() string {
	switch {
	case r.AtMost:
		return fmt.Sprintf("<= %.3g", r.Bar)
	case r.Bar == 0:
		return "-"
	}
	return fmt.Sprintf(">= %.3g", r.Bar)
}
