package scenario

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

const setupText = "prefill p ranks=2\ndecode d ranks=2\n"

// A statement that breaks the grammar is named with its file and line, whatever
// is wrong with it.
func TestEveryMistakeIsNamed(t *testing.T) {
	for _, c := range []struct{ line, want string }{
		{"0ms  opens room=7 prefill=p decode=d pages=1", "unknown word"},
		{"open room=7 prefill=p decode=d pages=1", "needs a time"},
		{"0ms", "without a statement"},
		{"5 open room=7 prefill=p decode=d pages=1", "needs a time"},
		{"25h open room=7 prefill=p decode=d pages=1", "needs a time"},
		{"1441m expect d rooms=0", "beyond"},
		{"5ms expect d rooms=0\n4ms expect d rooms=0", "goes back"},
		{"end expect d rooms=0\n9s expect d rooms=0", "goes back"},
		{"end crash d", "only expectations"},
		{"0ms policy release=fence", "before the first timed line"},
		{"0ms expect d rooms=0\nprefill q", "before the first timed line"},
		{"prefill p", "twice"},
		{"decode order", "needs one name"},
		{"decode D", "needs one name"},
		{"decode e ranks=0", "number from"},
		{"decode e workers=8", "unknown key"},
		{"decode e fence=hard", "unknown key"},
		{"decode e version=v3", "none of"},
		{"backend uniflow", "backend is"},
		{"backend", "backend is"},
		{"policy ack_timeout=5s", "needs release="},
		{"policy release=never", "none of"},
		{"policy release=hold ack_timeout=5", "no time"},
		{"policy release=hold ack_timeout=0s", "less than"},
		{"policy release=hold weak_peers=maybe", "none of"},
		{"policy release=hold patience=5s", "unknown key"},
		{"net latency=1h", "no time"},
		{"net fence=soft", "none of"},
		{"net hold", "unknown word"},
		{"0ms open room=7 prefill=p decode=d", "needs pages="},
		{"0ms open room=7 room=8 prefill=p decode=d pages=1", "stands twice"},
		{"0ms open room=-1 prefill=p decode=d pages=1", "no room number"},
		{"0ms open room=9223372036854775808 prefill=p decode=d pages=1", "no room number"},
		{"0ms open room=7 prefill=d decode=d pages=1", "unknown prefill"},
		{"0ms open room=7 prefill=p decode=p pages=1", "unknown decode"},
		{"0ms open room=7 prefill=p decode=d pages=5-3", "pages"},
		{"0ms open room=7 prefill=p decode=d pages=", "pages"},
		{"0ms open room=7 prefill=p decode=d pages=1,,2", "pages"},
		{"0ms open room=7 prefill=p decode=d pages=1 ranks=p/2", "unknown rank"},
		{"0ms open room=7 prefill=p decode=d pages=1 ranks=d/0", "does not name its node"},
		{"0ms open room=7 prefill=p decode=d pages=1 dranks=p/0", "does not name its node"},
		{"0ms open room=7 prefill=p decode=d pages=1 ranks=p/0 dummies=p/1", "not among"},
		{"0ms open room=7 prefill=p decode=d pages=1 reserve fail_after=1", "exclude"},
		{"0ms open room=7 prefill=p decode=d pages=1 refused=Busy", "no word"},
		{"0ms open room=7 prefill=p decode=d pages=1 reserved", "unknown word"},
		{"0ms abort room=7 by=d", "before any open"},
		{"0ms await room=7 at=d", "no prefill node"},
		{"0ms await room=7 at=x", "unknown node"},
		{"0ms await room=7 at=p\n0ms send room=7 rank=d/0 chunk=0 pages=1 takes=1ms", "no prefill node"},
		{"0ms await room=7 at=p\n0ms send room=7 rank=p/0,p/1 chunk=0 pages=1 takes=1ms", "more than one rank"},
		{"0ms await room=7 at=p\n0ms send room=7 rank=p/0 chunk=0 pages=1", "needs takes="},
		{"0ms await room=7 at=p\n0ms send room=7 rank=p/0 chunk=0 pages=1 takes=1ms to=p/1", "no decode node"},
		{"0ms await room=7 at=p\n0ms send room=7 rank=p/0 chunk=0 pages=1 takes=1ms result=late", "result"},
		{"0ms await room=7 at=p\n0ms send room=7 rank=p/0 chunk=0 pages=1 takes=1ms result=ok:1s", "result"},
		{"0ms await room=7 at=p\n0ms send room=7 rank=p/0 chunk=0 pages=1 takes=1ms result=soon", "none of"},
		{"0ms await room=7 at=p\n0ms force room=7 at=p", "no decode node"},
		{"0ms crash", "needs 1 node"},
		{"0ms crash x", "unknown node"},
		{"0ms restart d clean", "unknown word"},
		{"0ms cut p", "needs 2 node"},
		{"0ms stop d grace=soon", "no time"},
		{"0ms drop kind=ack from=p to=d", "none of"},
		{"0ms drop kind=abort_ack from=p", "needs to="},
		{"0ms drop kind=abort_ack from=p to=d count=some", "number from"},
		{"0ms delay kind=abort from=d to=p", "needs by="},
		{"0ms dup kind=abort from=d/0,d/1 to=p", "more than one rank"},
		{"0ms disk d", "needs a node and a state"},
		{"0ms disk d broken", "unknown word"},
		{"0ms disk d slow:fast", "no time"},
		{"0ms raw from=d/0 to=p/0", "frames= or text="},
		{"0ms raw from=d/0 to=p/0 text=A frames=41", "frames= or text="},
		{"0ms raw from=d to=p/0 text=A", "unknown rank"},
		{"0ms raw from=d/0 to=p/0 frames=4", "no hex"},
		{"0ms raw from=d/0 to=p/0 frames=", "no hex"},
		{"0ms raw from=d/0 to=p/0 text=\u00e9", "printable ASCII"},
		{"0ms clock p skew=2", "no time"},
		{"0ms corrupt p page=1", "no decode node"},
		{"0ms corrupt d page=64", "has no page"},
		{"0ms reregister p", "no decode node"},
		{"0ms expect", "something to expect"},
		{"0ms expect d", "something to expect"},
		{"0ms expect x rooms=0", "unknown node"},
		{"0ms expect d busy", "unknown word"},
		{"0ms expect d state=held room=7", "unknown expectation"},
		{"0ms expect d room=7 state=done", "unknown room state"},
		{"0ms expect d room=7 basis=luck", "none of"},
		{"0ms expect d room=7 acks=1", "not of the form"},
		{"0ms expect d room=7 pages=1", "unknown key"},
		{"0ms expect d room=7 missing=p/9", "unknown rank"},
		{"0ms expect d page=1", "needs state="},
		{"0ms expect d page=1 state=waiting", "unknown page state"},
		{"0ms expect d page=64 state=free", "has no page"},
		{"0ms expect d event=Exploded", "unknown event type"},
		{"0ms expect d event=AckReceived colour=red", "no field"},
		{"0ms expect order d:AbortArmed", "order needs"},
		{"0ms expect order d:AbortArmed > d:AbortSent", "where < should stand"},
		{"0ms expect order AbortArmed < d:AbortSent", "not of the form"},
		{"0ms expect corruption", "corruption needs"},
		{"0ms expect corruption page=1 victim=7 room=9", "goes with writer="},
		{"0ms expect corruption page=1 victim=7 writer=p/0,p/1", "more than one rank"},
		{"end expect violations", "needs a list"},
		{"end expect violations I1,X", "no invariant"},
	} {
		text := setupText + c.line
		_, err := parse("f.txt", text)
		var syntax *SyntaxError
		if !errors.As(err, &syntax) {
			t.Errorf("%q: %v, want a syntax error", c.line, err)
			continue
		}
		if want := strings.Count(text, "\n") + 1; syntax.Line != want || syntax.File != "f.txt" || !strings.Contains(syntax.Msg, c.want) {
			t.Errorf("%q: %v, want line %d and %q", c.line, err, want, c.want)
		}
	}
}

// What the grammar allows in more than one way is read in all of them.
func TestFormsThatAreTheSame(t *testing.T) {
	for _, line := range []string{
		"# nothing but a comment",
		"0us\texpect d rooms=0   # tabs, and a comment behind it\r",
		"1.5s expect d room=123 state=unknown",
		"0ms open pages=none decode=d prefill=p room=7",
		"0ms open room=7 prefill=p decode=d pages=3,1-2 aux=5 dummies=p/1 ranks=p/1,p/0",
		"0ms raw from=d/0 to=p/0 text=",
		"0ms raw from=d/0 to=p/0 text=ABORT,,=,",
		"0ms raw from=d/0 to=p/0 frames=none",
		"0ms raw from=d/0 to=p/0 frames=-,4F4f,-",
		"0ms disk d slow:50ms",
		"0ms clock p skew=-2s",
		"0ms drop kind=staging from=p/1 to=d count=all",
		"end expect order d:NodeStarted < p:NodeStarted",
		"end expect violations I1,I2",
	} {
		if _, err := parse("f.txt", setupText+line); err != nil {
			t.Errorf("%q: %v", line, err)
		}
	}
}

// FuzzRun: no text makes the reader or the simulation panic, and every run ends.
func FuzzRun(f *testing.F) {
	files, err := filepath.Glob(filepath.Join("..", "..", "test", "scenarios", "*.txt"))
	if err != nil || len(files) == 0 {
		f.Fatalf("%d seeds, error %v", len(files), err)
	}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(string(text))
	}
	f.Fuzz(func(t *testing.T, text string) {
		if len(text) > 1<<14 {
			t.Skip("longer than a scenario is")
		}
		rep, err := Run("f.txt", text)
		var syntax *SyntaxError
		if err != nil && !errors.As(err, &syntax) {
			t.Errorf("%v is no syntax error", err)
		}
		if err == nil && !rep.OK && rep.Detail == "" {
			t.Error("it fails and does not say why")
		}
	})
}
