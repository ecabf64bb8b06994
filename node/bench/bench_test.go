package bench

import (
	"context"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/errors"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func fixed(name string, r Result, err error) Case {
	return Case{Name: name, Run: func(context.Context, Timing) (Result, error) { return r, err }}
}

func TestSelectTakesGroupsAndRowsInTheTablesOrder(t *testing.T) {
	all := []Case{fixed("a/x", Result{}, nil), fixed("a/y", Result{}, nil), fixed("ab/x", Result{}, nil)}
	for _, c := range []struct {
		names []string
		want  string
	}{
		{nil, "a/x a/y ab/x"},
		{[]string{"a"}, "a/x a/y"},
		{[]string{"ab", "a/x"}, "a/x ab/x"},
		{[]string{"a", "a/y"}, "a/x a/y"},
	} {
		got, err := Select(all, c.names)
		var names []string
		for _, g := range got {
			names = append(names, g.Name)
		}
		if err != nil || strings.Join(names, " ") != c.want {
			t.Errorf("%v: %v, %v; want %s", c.names, names, err, c.want)
		}
	}
	if _, err := Select(all, []string{"a", "b"}); !errors.Is(err, ErrName) || !strings.Contains(err.Error(), `"b"`) || !strings.Contains(err.Error(), "a, ab") {
		t.Errorf("an unknown name: %v", err)
	}
}

func TestRunJudgesRows(t *testing.T) {
	all := []Case{
		fixed("g/fast", Result{Ratio: 0.9, Bar: 0.9}, nil),
		fixed("g/short", Result{Ratio: 0.89, Bar: 0.9}, nil),
		fixed("g/nobar", Result{Ratio: 0.1}, nil),
		fixed("g/quick", Result{Ratio: 1, Bar: 1, AtMost: true}, nil),
		fixed("g/slow", Result{Ratio: 1.1, Bar: 1, AtMost: true}, nil),
		fixed("g/none", Result{Value: 0, AtMost: true}, nil),
		fixed("g/some", Result{Value: 1, Ratio: 1, AtMost: true}, nil),
		fixed("g/elsewhere", Result{}, Unavailablef("no card")),
	}
	var short, missing []string
	ok, err := run(t.Context(), all, Options{}, Report{
		Row: func(r Result) error {
			if !r.OK {
				short = append(short, r.Name)
			}
			return nil
		},
		Missing: func(name string, why error) { missing = append(missing, name+": "+why.Error()) },
	})
	if want := []string{"g/short", "g/slow", "g/some"}; ok || err != nil || !slices.Equal(short, want) {
		t.Errorf("ok %v, %v; short %v, want %v", ok, err, short, want)
	}
	if want := []string{"g/elsewhere: no card"}; !slices.Equal(missing, want) {
		t.Errorf("missing %v, want %v", missing, want)
	}
	ok, err = run(t.Context(), all, Options{Names: []string{"g/fast", "g/elsewhere"}}, Report{
		Row: func(Result) error { return nil }, Missing: func(string, error) {},
	})
	if !ok || err != nil {
		t.Errorf("no row short: %v, %v", ok, err)
	}
}

// TestQuickSharesTheTime: whatever is chosen, the budgets fit.
func TestQuickSharesTheTime(t *testing.T) {
	for _, o := range []Options{{Quick: true}, {Quick: true, Names: []string{"rdma"}}} {
		cases, err := Select(Cases(), o.Names)
		if err != nil {
			t.Fatal(err)
		}
		var total time.Duration
		for i := range cases {
			cases[i].Run = func(_ context.Context, b Timing) (Result, error) {
				total += b.Budget
				if b.Rounds < 7 {
					t.Errorf("%s: %d rounds, at least 7 are the rule", cases[i].Name, b.Rounds)
				}
				if all := time.Duration(2*b.Rounds) * b.Slice(2); all > b.Budget {
					t.Errorf("%s: the sides take %s of %s", cases[i].Name, all, b.Budget)
				}
				return Result{}, nil
			}
		}
		if _, err := run(t.Context(), cases, Options{Quick: true}, Report{Row: func(Result) error { return nil }}); err != nil {
			t.Fatal(err)
		}
		if total > quickTotal+time.Millisecond {
			t.Errorf("%v: budgets of %s, at most %s", o.Names, total, quickTotal)
		}
	}
}

func TestCompareTakesTurnsAndMedians(t *testing.T) {
	var order strings.Builder
	ours := []float64{99, 1, 2, 30} // the first does not count
	theirs := []float64{1, 2, 2, 10}
	side := func(name string, of *[]float64) Side {
		return func(context.Context, time.Duration) (float64, error) {
			order.WriteString(name)
			v := (*of)[0]
			*of = (*of)[1:]
			return v, nil
		}
	}
	v, a, q, err := Compare(t.Context(), Timing{Rounds: 3}, side("a", &ours), side("b", &theirs))
	if err != nil || v != 2 || a != 2 || q != 1 || order.String() != "abababab" {
		t.Errorf("%g against %g, ratio %g, order %s, %v", v, a, q, order.String(), err)
	}
}

func TestMedian(t *testing.T) {
	for _, c := range []struct {
		in   []float64
		want float64
	}{{nil, 0}, {[]float64{3}, 3}, {[]float64{9, 1, 3}, 3}, {[]float64{4, 1, 3, 2}, 2.5}} {
		if got := Median(c.in); got != c.want {
			t.Errorf("median of %v is %g, want %g", c.in, got, c.want)
		}
	}
}

// TestRDMARowsMeasure runs a case of each kind as briefly as it can: it gives a
// value and what that stands against.
func TestRDMARowsMeasure(t *testing.T) {
	cases, err := Select(rdmaCases(), []string{"rdma/shm-256KiB", "rdma/tcp-latency-4KiB", "rdma/shm-revoke-p50", "rdma/tcp-late-bytes"})
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range cases {
		t.Run(c.Name, func(t *testing.T) {
			if testing.Short() {
				t.Skip("moves some hundred megabytes")
			}
			r, err := c.Run(t.Context(), Timing{Rounds: 1, Budget: time.Millisecond})
			if errors.Is(err, ErrUnavailable) {
				t.Skip(err)
			}
			if err != nil {
				t.Fatal(err)
			}
			if late := strings.HasSuffix(c.Name, "late-bytes"); late && r.Value != 0 || !late && !(r.Value > 0 && r.Ratio > 0) || r.Unit == "" || r.Against == "" {
				t.Errorf("%+v", r)
			}
		})
	}
}
