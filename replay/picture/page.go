package picture

import (
	"bytes"
	_ "embed"
	"fmt"
	"html/template"
	"io"
	"strings"

	"github.com/pdlog/pdlog/replay"
)

//go:embed assets/page.html
var pageHTML string

//go:embed assets/page.css
var pageCSS string

//go:embed assets/page.js
var pageJS string

var page = template.Must(template.New("page").Parse(pageHTML))

// row is one event in the page's table.
type row struct {
	Anchor, ID, Time, Rank, Text string
	Room                         uint64
}

type pageData struct {
	Title  string
	CSS    template.CSS
	JS     template.JS
	Scene  *Scene
	Rows   []row
	Note   string
	Report *report
}

// WriteTimeline writes the timeline page.
func (s *Scene) WriteTimeline(w io.Writer) error {
	return s.writePage(w, "pdlog timeline", nil)
}

// WriteReport writes the incident report. The verdict is that of the same logs.
func (s *Scene) WriteReport(w io.Writer, v *replay.Verdict) error {
	rep, err := s.report(v)
	if err != nil {
		return err
	}
	return s.writePage(w, "pdlog incident report", rep)
}

func (s *Scene) writePage(w io.Writer, title string, rep *report) error {
	d := pageData{Title: title, CSS: template.CSS(pageCSS), JS: template.JS(pageJS), Scene: s, Report: rep} //nolint:gosec // our own files
	for _, e := range s.rows {
		id := fmt.Sprintf("%s#%d", e.Node, e.Seq)
		d.Rows = append(d.Rows, row{
			Anchor: anchor(id), ID: id, Time: e.Time().Format("15:04:05.000"), Rank: e.Rank, Room: e.Room, Text: replay.Describe(e),
		})
	}
	if s.Aggregated {
		d.Note = fmt.Sprintf("The logs hold %d events. Lanes show how much went on at a time; only the rooms of an incident are drawn, and listed below, one by one.", s.Events)
	}
	var b bytes.Buffer // a template that fails must not leave half a page
	if err := page.Execute(&b, d); err != nil {
		return err
	}
	_, err := w.Write(b.Bytes())
	return err
}

// anchor is the id of an event's row: e-node-seq.
func anchor(ref string) string {
	i := strings.LastIndexByte(ref, '#')
	if i < 0 {
		return "e-" + ref
	}
	return "e-" + ref[:i] + "-" + ref[i+1:]
}
