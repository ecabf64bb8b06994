package picture

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
)

// traceEvent is one entry of the Trace Event format. Bars are async events
// ("b", "e") with ids of their own: writes overlap, which slices of a thread
// must not (ecosystem: trap T4).
type traceEvent struct {
	Name string         `json:"name"`
	Cat  string         `json:"cat,omitempty"`
	Ph   string         `json:"ph"`
	ID   string         `json:"id,omitempty"`
	TS   int64          `json:"ts"` // us from the first event
	PID  int            `json:"pid"`
	TID  int            `json:"tid"`
	S    string         `json:"s,omitempty"`
	Args map[string]any `json:"args,omitempty"`
}

// WritePerfetto writes the scene as a trace that ui.perfetto.dev opens.
func (s *Scene) WritePerfetto(w io.Writer) error {
	bw := bufio.NewWriter(w)
	fmt.Fprint(bw, `{"displayTimeUnit":"ms","traceEvents":[`)
	first := true
	put := func(e traceEvent) error {
		b, err := json.Marshal(e)
		if err != nil {
			return err
		}
		if !first {
			fmt.Fprint(bw, ",")
		}
		first = false
		_, err = fmt.Fprintf(bw, "\n%s", b)
		return err
	}
	for i, l := range s.Lanes {
		if err := put(traceEvent{Name: "process_name", Ph: "M", PID: i + 1, TID: 1, Args: map[string]any{"name": l.Kind + " " + l.Name}}); err != nil {
			return err
		}
	}
	for i, b := range s.Bars {
		e := traceEvent{Name: b.Label, Cat: b.Kind, ID: fmt.Sprintf("0x%x", i+1), PID: b.Lane + 1, TID: 1}
		if b.Kind == "busy" {
			if err := put(traceEvent{Name: "at once", Ph: "C", TS: b.From * 1000, PID: b.Lane + 1, TID: 1, Args: map[string]any{"share": b.Weigh}}); err != nil {
				return err
			}
			continue
		}
		start, end := e, e
		start.Ph, start.TS, start.Args = "b", b.From*1000, map[string]any{"what": b.Text, "events": b.Refs}
		end.Ph, end.TS = "e", max(b.To, b.From)*1000
		if err := put(start); err != nil {
			return err
		}
		if err := put(end); err != nil {
			return err
		}
	}
	for _, m := range s.Marks {
		if err := put(traceEvent{Name: m.Kind, Cat: "mark", Ph: "i", S: "p", TS: m.At * 1000, PID: m.Lane + 1, TID: 1, Args: map[string]any{"what": m.Text, "events": m.Refs}}); err != nil {
			return err
		}
	}
	fmt.Fprint(bw, "\n]}\n")
	return bw.Flush()
}
