package backends_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"strings"
	"testing"

	"github.com/pdlog/pdlog/backends"
	"github.com/pdlog/pdlog/test/conformance"
)

func wireDecode(in string) (lines []string, err error) {
	var out bytes.Buffer
	err = backends.WireDecode(strings.NewReader(in), &out)
	for line := range strings.Lines(out.String()) {
		lines = append(lines, strings.TrimSuffix(line, "\n"))
	}
	return lines, err
}

const abortLine = `{"dialect":"mooncake","at":"prefill","frames":["41424f5254","34323432"]}`

// A vector file can be piped in as it is.
func TestWireDecodeAnswersVectorFiles(t *testing.T) {
	for _, name := range backends.Names() {
		vectors, err := conformance.DecodeVectors(name)
		if err != nil {
			t.Fatal(err)
		}
		var in strings.Builder
		for _, v := range vectors {
			in.Write(v.Line)
			in.WriteByte('\n')
		}
		lines, err := wireDecode(in.String())
		if err != nil || len(lines) != len(vectors) || len(lines) == 0 {
			t.Fatalf("%s: %d answers to %d vectors, error %v", name, len(lines), len(vectors), err)
		}
		for i, v := range vectors {
			var got struct {
				Claimed *bool
				Kind    string
				Fields  json.RawMessage
				Error   string
			}
			if err := json.Unmarshal([]byte(lines[i]), &got); err != nil || got.Claimed == nil || got.Fields == nil {
				t.Fatalf("%s: answer %s, error %v", v.ID, lines[i], err)
			}
			bad := got.Kind == "malformed" || got.Kind == "foreign"
			if *got.Claimed != v.Expect.Claimed || got.Kind != v.Expect.Kind || bad != (got.Error != "") {
				t.Errorf("%s: %s", v.ID, lines[i])
			}
			if err := conformance.Contains(got.Fields, v.Expect.Fields); err != nil && !bad {
				t.Errorf("%s: %v", v.ID, err)
			}
		}
	}
}

func TestWireDecodeLines(t *testing.T) {
	for name, c := range map[string]struct {
		in      string
		answers int
		badLine int // 0 = none
	}{
		"empty":                   {"", 0, 0},
		"no line end":             {abortLine, 1, 0},
		"blank lines":             {"\n \t\r\n" + abortLine + "\r\n\n", 1, 0},
		"blank lines are counted": {"\n\n" + abortLine + "\n\nx\n" + abortLine, 1, 5},
		"other keys":              {`{"id":1,"expect":null,` + abortLine[1:], 1, 0},
		"upper case hex":          {strings.Replace(abortLine, "4f", "4F", 1), 1, 0},
		"no frames in the list":   {`{"dialect":"mori","at":"decode","frames":[]}`, 1, 0},
		"empty frame":             {`{"dialect":"mori","at":"decode","frames":[""]}`, 1, 0},
		"odd hex":                 {`{"dialect":"mori","at":"decode","frames":["4"]}`, 0, 1},
		"no hex":                  {`{"dialect":"mori","at":"decode","frames":["zz"]}`, 0, 1},
		"blank in hex":            {`{"dialect":"mori","at":"decode","frames":["41 42"]}`, 0, 1},
		"hex with 0x":             {`{"dialect":"mori","at":"decode","frames":["0x41"]}`, 0, 1},
		"frames missing":          {`{"dialect":"mori","at":"decode"}`, 0, 1},
		"frames null":             {`{"dialect":"mori","at":"decode","frames":null}`, 0, 1},
		"frame null":              {`{"dialect":"mori","at":"decode","frames":[null]}`, 0, 1},
		"frame number":            {`{"dialect":"mori","at":"decode","frames":[41]}`, 0, 1},
		"frames text":             {`{"dialect":"mori","at":"decode","frames":"41"}`, 0, 1},
		"unknown dialect":         {strings.Replace(abortLine, "mooncake", "uniflow", 1), 0, 1},
		"dialect in capitals":     {strings.Replace(abortLine, "mooncake", "Mooncake", 1), 0, 1},
		"key in capitals":         {strings.Replace(abortLine, `"at"`, `"AT"`, 1), 0, 1},
		"unknown side":            {strings.Replace(abortLine, "prefill", "both", 1), 0, 1},
		"side missing":            {`{"dialect":"mori","frames":[]}`, 0, 1},
		"array":                   {`[]`, 0, 1},
		"null":                    {`null`, 0, 1},
		"text":                    {`"x"`, 0, 1},
		"two objects":             {abortLine + abortLine, 0, 1},
		"cut":                     {abortLine + "\n" + abortLine[:20], 1, 2},
	} {
		lines, err := wireDecode(c.in)
		var bad *backends.LineError
		if errors.As(err, &bad) != (c.badLine != 0) || bad != nil && bad.Line != c.badLine || len(lines) != c.answers {
			t.Errorf("%s: %d answers, error %v; want %d and line %d", name, len(lines), err, c.answers, c.badLine)
		}
		if bad == nil && err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// Numbers are exact and text is what the frame held.
func TestWireDecodePrintsExactly(t *testing.T) {
	lines, err := wireDecode(
		`{"dialect":"mooncake","at":"prefill","frames":["41424f5254","39323233333732303336383534373735383037","3a3a31","35303030","39323233333732303336383534373735383037"]}` + "\n" +
			`{"dialect":"mooncake","at":"decode","frames":["31","30","30","00225c0ae280a8c3a93c"]}` + "\n" +
			`{"dialect":"mori","at":"decode","frames":["4155585f44415441","31","30","30","00000002","00ff"]}`)
	if err != nil {
		t.Fatal(err)
	}
	want := []string{
		`{"claimed":true,"kind":"abort","fields":{"room":9223372036854775807,"ip":"::1","port":5000,"generation":9223372036854775807}}`,
		`{"claimed":true,"kind":"status","fields":{"room":1,"status":0,"prefill_rank":0,"reason":"\u0000\"\\\u000a` + "\u2028é<" + `"}}`,
		`{"claimed":true,"kind":"aux_data","fields":{"room":1,"buffer_index":0,"aux_index":0,"length":2,"data":"00ff"}}`,
	}
	for i := range want {
		if lines[i] != want[i] {
			t.Errorf("printed %s, want %s", lines[i], want[i])
		}
	}
}

// An answer is there before the next line is asked for.
func TestWireDecodeAnswersWhileInputIsOpen(t *testing.T) {
	inR, inW := io.Pipe()
	outR, outW := io.Pipe()
	done := make(chan error, 1)
	go func() { done <- backends.WireDecode(inR, outW) }()
	for range 3 {
		if _, err := io.WriteString(inW, abortLine+"\n"); err != nil {
			t.Fatal(err)
		}
		answer := make([]byte, len(`{"claimed":true,"kind":"abort","fields":{"room":4242}}`+"\n"))
		if _, err := io.ReadFull(outR, answer); err != nil || answer[len(answer)-1] != '\n' {
			t.Fatalf("answer %q, error %v", answer, err)
		}
	}
	if err := inW.Close(); err != nil {
		t.Fatal(err)
	}
	if err := <-done; err != nil {
		t.Error(err)
	}
}

type failing struct{ err error }

func (f failing) Read([]byte) (int, error)  { return 0, f.err }
func (f failing) Write([]byte) (int, error) { return 0, f.err }

func TestWireDecodeReportsItsStreams(t *testing.T) {
	broken := errors.New("broken")
	if err := backends.WireDecode(failing{broken}, io.Discard); !errors.Is(err, broken) {
		t.Errorf("reading: %v", err)
	}
	if err := backends.WireDecode(strings.NewReader(abortLine), failing{broken}); !errors.Is(err, broken) {
		t.Errorf("writing: %v", err)
	}
}

// FuzzDecodeLine: a line is refused, or its answer is an object of four keys.
func FuzzDecodeLine(f *testing.F) {
	f.Add([]byte(abortLine))
	f.Add([]byte(`{"dialect":"mori","at":"decode","frames":["00"]}`))
	f.Add([]byte(`{"dialect":"nixl","at":"prefill","frames":[]}`))
	f.Add([]byte(`{}`))
	f.Fuzz(func(t *testing.T, line []byte) {
		out, err := backends.DecodeLine(line)
		if err != nil {
			return
		}
		var v struct {
			Claimed *bool
			Kind    *string
			Fields  *json.RawMessage
		}
		if err := json.Unmarshal(out, &v); err != nil || v.Claimed == nil || v.Kind == nil || v.Fields == nil {
			t.Fatalf("%q gives %q: %v", line, out, err)
		}
	})
}
