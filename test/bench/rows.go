package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"os"
)

// said is a row that another command has measured and judged: a line of
// `pdnode bench -o json`.
type said struct {
	Name    string  `json:"name"`
	Value   float64 `json:"value"`
	Unit    string  `json:"unit"`
	Against string  `json:"against"`
	Ratio   float64 `json:"ratio"`
	Bar     float64 `json:"bar"`
	OK      bool    `json:"ok"`
}

// readRows reads rows as JSON lines; of an empty path none.
func readRows(path string) ([]said, error) {
	if path == "" {
		return nil, nil
	}
	b, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	var rows []said
	for d := json.NewDecoder(bytes.NewReader(b)); ; {
		var r said
		switch err := d.Decode(&r); err {
		case nil:
			rows = append(rows, r)
		case io.EOF:
			return rows, nil
		default:
			return nil, fmt.Errorf("%s, row %d: %w", path, len(rows)+1, err)
		}
	}
}

// printSaid writes rows of the table; false when one is short of its bar.
func printSaid(rows []said) bool {
	ok := true
	for _, r := range rows {
		bar, verdict := "", ""
		if r.Bar != 0 {
			bar, verdict = fmt.Sprintf("%.4g", r.Bar), "pass"
		}
		if !r.OK {
			verdict, ok = "**short**", false
		}
		fmt.Printf("| %s | %.4g %s | %s | %.2f | %s | %s |\n", r.Name, r.Value, r.Unit, r.Against, r.Ratio, bar, verdict)
	}
	return ok
}
