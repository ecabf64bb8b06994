package picture_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"slices"
	"testing"
)

// traced is an event as the Trace Event format has it.
type traced struct {
	Name string         `json:"name"`
	Cat  string         `json:"cat"`
	Ph   string         `json:"ph"`
	ID   string         `json:"id"`
	TS   *float64       `json:"ts"`
	PID  *int           `json:"pid"`
	TID  *int           `json:"tid"`
	S    string         `json:"s"`
	Args map[string]any `json:"args"`
}

// broken is the first rule of the format that an event breaks, "" if none:
// metadata names a process; a begin and its end share category, id, name and
// process, in this order; an instant has a scope; a counter has numbers.
func (e traced) broken(open map[string]float64) string {
	span := fmt.Sprint(e.Cat, " ", e.ID, " ", e.Name)
	from, begun := open[span]
	switch {
	case e.PID == nil || e.TID == nil:
		return "no process"
	case e.Ph == "M":
		if name, ok := e.Args["name"].(string); e.Name != "process_name" || !ok || name == "" {
			return "metadata that names nothing"
		}
		return ""
	case e.Name == "":
		return "no name"
	case e.TS == nil || *e.TS < 0:
		return "no time"
	}
	switch e.Ph {
	case "b":
		if begun || e.ID == "" || e.Cat == "" {
			return "a begin without an id of its own"
		}
		open[span] = *e.TS
	case "e":
		if !begun || *e.TS < from {
			return "an end without its begin"
		}
		delete(open, span)
	case "i":
		if !slices.Contains([]string{"g", "p", "t"}, e.S) {
			return "an instant without a scope"
		}
	case "C":
		for _, v := range e.Args {
			if _, ok := v.(float64); !ok {
				return "a counter that is no number"
			}
		}
		if len(e.Args) == 0 {
			return "a counter of nothing"
		}
	default:
		return "phase " + e.Ph
	}
	return ""
}

// Every event of a trace keeps the rules of the format, of a few events and of
// many that are drawn together.
func TestAPerfettoTraceKeepsTheRulesOfItsFormat(t *testing.T) {
	check := func(name string, trace []byte, phases ...string) {
		var doc struct {
			Unit   string            `json:"displayTimeUnit"`
			Events []json.RawMessage `json:"traceEvents"`
		}
		if err := json.Unmarshal(trace, &doc); err != nil || doc.Unit != "ms" || len(doc.Events) == 0 {
			t.Fatalf("%s: %v, unit %q, %d events", name, err, doc.Unit, len(doc.Events))
		}
		open, seen, named := map[string]float64{}, map[string]bool{}, map[int]bool{}
		for _, raw := range doc.Events {
			var e traced
			if err := json.Unmarshal(raw, &e); err != nil {
				t.Fatal(err)
			}
			if why := e.broken(open); why != "" {
				t.Fatalf("%s: %s: %s", name, why, raw)
			}
			seen[e.Ph] = true
			if e.Ph == "M" {
				named[*e.PID] = true
			} else if !named[*e.PID] {
				t.Fatalf("%s: process %d has no name: %s", name, *e.PID, raw)
			}
		}
		if len(open) > 0 {
			t.Errorf("%s: %d begins without an end", name, len(open))
		}
		for _, ph := range phases {
			if !seen[ph] {
				t.Errorf("%s: no event of phase %s", name, ph)
			}
		}
	}
	for name, tc := range map[string]struct {
		many   int
		phases []string
	}{"an incident": {0, []string{"M", "b", "e", "i"}}, "a fleet": {800, []string{"M", "b", "e", "i", "C"}}} {
		logs := scenarioLogs(t, incident)
		if tc.many > 0 {
			logs = logsOf(t, fleet(t, tc.many))
		}
		var b bytes.Buffer
		if err := build(t, logs).WritePerfetto(&b); err != nil {
			t.Fatal(err)
		}
		check(name, b.Bytes(), tc.phases...)
	}
}
