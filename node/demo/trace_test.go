package demo

import (
	"bufio"
	"errors"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestTraceLinesBecomeRequests(t *testing.T) {
	t.Parallel()
	in := `{"timestamp": 0, "input_length": 6758, "output_length": 500, "hash_ids": [0, 1]}

{"timestamp": 3000, "input_length": 1}
{"timestamp": 3000, "input_length": 9, "output_length": 1}
`
	got, err := ParseTrace(strings.NewReader(in), "t.jsonl", 2)
	if err != nil {
		t.Fatal(err)
	}
	want := []Request{{AtMS: 0, Input: 6758, Output: 500}, {AtMS: 3000, Input: 1}}
	if d := cmp.Diff(want, got); d != "" {
		t.Error(d)
	}
}

func TestBadTraceLineIsNamed(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ name, in, want string }{
		{"not JSON", "{\"timestamp\":0,\"input_length\":5}\n\nnonsense\n", "t.jsonl:3: not a trace line: "},
		{"no timestamp", `{"input_length":5}`, "t.jsonl:1: timestamp is missing"},
		{"no length", `{"timestamp":5}`, "t.jsonl:1: input_length is missing"},
		{"zero length", `{"timestamp":5,"input_length":0}`, "t.jsonl:1: input_length 0 is not between"},
		{"a word for a number", `{"timestamp":5,"input_length":"x"}`, "t.jsonl:1: not a trace line: "},
		{"back in time", "{\"timestamp\":5,\"input_length\":5}\n{\"timestamp\":4,\"input_length\":5}", "t.jsonl:2: timestamp goes back"},
		{"negative time", `{"timestamp":-5,"input_length":5}`, "t.jsonl:1: timestamp is negative"},
		{"empty", "\n\n", "t.jsonl:1: no requests"},
	} {
		_, err := ParseTrace(strings.NewReader(c.in), "t.jsonl", 10)
		var le *LineError
		if !errors.As(err, &le) || !strings.HasPrefix(err.Error(), c.want) {
			t.Errorf("%s: have %v, want %s…", c.name, err, c.want)
		}
	}
}

func TestLinesBehindTheLimitAreNotRead(t *testing.T) {
	t.Parallel()
	got, err := ParseTrace(strings.NewReader("{\"timestamp\":0,\"input_length\":5}\nnonsense"), "t", 1)
	if err != nil || len(got) != 1 {
		t.Errorf("have %v, %v", got, err)
	}
}

// FuzzTrace: what is read of a trace can be planned.
func FuzzTrace(f *testing.F) {
	f.Add(`{"timestamp":0,"input_length":5,"output_length":3}` + "\n" + `{"timestamp":3000,"input_length":126195}`)
	f.Add("\n\n{}")
	f.Fuzz(func(t *testing.T, text string) {
		reqs, err := ParseTrace(strings.NewReader(text), "f", 50)
		if err != nil {
			var bad *LineError
			if !errors.As(err, &bad) && !errors.Is(err, bufio.ErrTooLong) {
				t.Fatalf("%v names no line", err)
			}
			return
		}
		o := DefaultOptions()
		o.Speed = 1
		p := MakePlan(o, reqs)
		if len(p.Items) != len(reqs) {
			t.Fatalf("%d requests, %d planned", len(reqs), len(p.Items))
		}
		for i, it := range p.Items {
			if it.Pages < 1 || it.ChunkPages < 1 || it.ArriveMS < 0 || it.ArriveMS != reqs[i].AtMS {
				t.Fatalf("%+v of %+v", it, reqs[i])
			}
		}
	})
}
