package replay

import (
	"fmt"
	"io"
	"slices"
	"strings"
)

// WriteBlame prints a judgement for people, a few sentences an incident.
// Neighbours that differ in nothing but the page are told together.
func WriteBlame(w io.Writer, j Judgement) error {
	if err := writeIncidents(w, j.Incidents); err != nil {
		return err
	}
	var sb strings.Builder
	switch j.Verdict {
	case Clean:
		sb.WriteString("no page was written after its release, and none failed its check\n")
	case Undetermined:
		fmt.Fprintf(&sb, "undetermined, because %s: no page is known to have been written after its release\n",
			gapsText(slices.DeleteFunc(slices.Clone(j.Doubts), func(g Gap) bool { return g.Kind == "start" })))
	}
	for _, g := range j.Doubts {
		if g.Kind == "start" {
			fmt.Fprintf(&sb, "the log of %s begins at event %d: what was before it is not judged\n", g.Node, g.Last+1)
		}
	}
	for _, c := range j.Clocks {
		fmt.Fprintln(&sb, c.Text())
	}
	_, err := io.WriteString(w, sb.String())
	return err
}

func writeIncidents(w io.Writer, incidents []*Incident) error {
	for i := 0; i < len(incidents); {
		in, story := incidents[i], incidents[i].Story()
		pages := []uint32{in.Page}
		for i++; i < len(incidents) && incidents[i].Node == in.Node && incidents[i].Story() == story; i++ {
			pages = append(pages, incidents[i].Page)
		}
		noun := "page"
		if len(pages) > 1 {
			noun = "pages"
		}
		if _, err := fmt.Fprintf(w, "%s %s of %s: %s\n", noun, Ranges(pages), in.Node, story); err != nil {
			return err
		}
	}
	return nil
}

// Story is the incident in sentences, without the page.
func (in *Incident) Story() string {
	var sb strings.Builder
	if in.VictimRoom != nil {
		fmt.Fprintf(&sb, "room %d/%d was the victim. ", *in.VictimRoom, *in.VictimRoomSeq)
	} else {
		sb.WriteString("no room was the owner. ")
	}
	switch in.Certainty {
	case "landed":
		sb.WriteString("Written by ")
	case "possible":
		sb.WriteString("The bytes are wrong; the write that may have done it is by ")
	default:
		sb.WriteString("The bytes are wrong; no transfer in these logs wrote there.")
	}
	if in.WriterRoom != nil {
		in.writerStory(&sb)
	}
	if len(in.Doubts) > 0 {
		fmt.Fprintf(&sb, " Who wrote there is undetermined, because %s.", gapsText(in.Doubts))
	}
	for _, c := range in.Others {
		fmt.Fprintf(&sb, " %s for room %d/%d, chunk %d", c.Writer, c.WriterRoom, c.WriterRoomSeq, c.Chunk)
		if t := PartsText(c.Bytes); t != "" {
			fmt.Fprintf(&sb, ", %s of the page", t)
		}
		switch {
		case c.Certainty != "landed":
			sb.WriteString(", may have landed there too.")
		case c.LandedAt != nil:
			fmt.Fprintf(&sb, ", landed there too, at %s.", clockText(c.LandedAt.Time))
		}
	}
	if in.CheckFailedSeq != 0 {
		fmt.Fprintf(&sb, " The check that failed is %s#%d", in.Node, in.CheckFailedSeq)
		for i, s := range in.WrongBytes {
			fmt.Fprintf(&sb, "%s bytes %d–%d on %s", []string{": wrong are", ","}[min(i, 1)], s.Off, s.Off+s.Len-1, s.To)
		}
		sb.WriteString(".")
	}
	for _, c := range in.Cleared {
		sb.WriteString(" " + c.Text())
	}
	return sb.String()
}

func (in *Incident) writerStory(sb *strings.Builder) {
	rank := "an unknown rank"
	if in.Writer != nil {
		rank = *in.Writer
	}
	fmt.Fprintf(sb, "%s for room %d/%d", rank, *in.WriterRoom, *in.WriterRoomSeq)
	if in.Chunk != nil {
		fmt.Fprintf(sb, ", chunk %d", *in.Chunk)
	}
	if t := PartsText(in.Bytes); t != "" {
		fmt.Fprintf(sb, ", %s of the page", t)
	}
	if in.WriteLandedAt != nil {
		fmt.Fprintf(sb, ", landed at %s", clockText(in.WriteLandedAt.Time))
	}
	sb.WriteString(".")
	if in.ReleasedSeq == nil {
		sb.WriteString(" That room had not been released: the write went to a page that was never its own.")
		return
	}
	fmt.Fprintf(sb, " That room's pages had been released at %s (%s#%d) by %s", clockText(in.ReleasedAt.Time), in.Node, *in.ReleasedSeq, *in.ReleaseBasis)
	if len(in.MissingAcks) > 0 {
		fmt.Fprintf(sb, ", without the ACK of %s", strings.Join(in.MissingAcks, ", "))
	}
	sb.WriteString(".")
}
