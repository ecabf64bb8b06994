package crash

import (
	"bufio"
	"encoding/hex"
	"fmt"
	"io"
	"strconv"
	"strings"
)

// call is one system call of the writer. begin is when it was made, end when it
// returned: another thread's may lie in between.
type call struct {
	name  string
	args  []string
	ret   int64
	begin bool
	end   bool
	of    *call // the begin of an end that came later
}

const unfinished = " <unfinished ...>"

// parse reads strace's output. A call that was cut by another thread's gives
// two entries: who skips them sees losses that are none.
func parse(r io.Reader) ([]*call, error) {
	var calls []*call
	open := map[string]*call{}
	br := bufio.NewReaderSize(r, 1<<20)
	for n := 1; ; n++ {
		line, err := br.ReadString('\n')
		if err == io.EOF && line == "" {
			return calls, nil
		}
		pid, line, _ := strings.Cut(strings.TrimSuffix(line, "\n"), " ")
		line = strings.TrimLeft(line, " ")
		bad := func() error { return fmt.Errorf("line %d is not understood: %.200s", n, line) }
		switch {
		case strings.HasPrefix(line, "+++"), strings.HasPrefix(line, "---"), strings.HasSuffix(line, "= ?"):
			delete(open, pid) // exits and signals
		case strings.HasSuffix(line, unfinished):
			name, rest, ok := strings.Cut(strings.TrimSuffix(line, unfinished), "(")
			if !ok {
				return nil, bad()
			}
			c := &call{name: name, args: strings.Split(rest, ", "), begin: true}
			open[pid] = c
			calls = append(calls, c)
		case strings.HasPrefix(line, "<... "):
			_, rest, _ := strings.Cut(line, "resumed>")
			_, ret, ok := result(rest)
			c := open[pid]
			if c == nil || !ok {
				return nil, bad()
			}
			delete(open, pid)
			calls = append(calls, &call{name: c.name, args: c.args, ret: ret, end: true, of: c})
		default:
			name, rest, ok := strings.Cut(line, "(")
			rest, ret, ok2 := result(rest)
			if !ok || !ok2 {
				return nil, bad()
			}
			calls = append(calls, &call{name: name, args: strings.Split(rest, ", "), ret: ret, begin: true, end: true})
		}
	}
}

// result splits "ARGS)   = 5</path>". Strings are all hex, so nothing inside
// looks like the end.
func result(s string) (args string, ret int64, ok bool) {
	i := strings.LastIndex(s, "= ")
	if i < 0 {
		return "", 0, false
	}
	num := s[i+2:]
	if j := strings.IndexAny(num, "< "); j >= 0 {
		num = num[:j]
	}
	ret, err := strconv.ParseInt(num, 10, 64)
	return strings.TrimSuffix(strings.TrimRight(s[:i], " "), ")"), ret, err == nil
}

// text reads strace's -xx form of a whole string: "\x70\x64".
func text(s string) ([]byte, error) {
	if len(s) < 2 || s[0] != '"' || s[len(s)-1] != '"' {
		return nil, fmt.Errorf("not a whole string: %.80s", s)
	}
	return unhex(s[1 : len(s)-1])
}

func unhex(s string) ([]byte, error) {
	b := make([]byte, 0, len(s)/2)
	for i := 0; i+4 <= len(s); i += 4 {
		b = append(b, s[i+2], s[i+3])
	}
	out := make([]byte, len(b)/2)
	_, err := hex.Decode(out, b)
	return out, err
}

// fdPath reads "7<\x2f\x74>", perhaps with "(deleted)" behind.
func fdPath(s string) (fd int, path string, err error) {
	num, rest, _ := strings.Cut(s, "<")
	if fd, err = strconv.Atoi(num); err != nil {
		return 0, "", err
	}
	hexed, _, _ := strings.Cut(rest, ">")
	if !strings.HasPrefix(hexed, `\x`) {
		return fd, hexed, nil // a pipe or the like
	}
	b, err := unhex(hexed)
	return fd, string(b), err
}
