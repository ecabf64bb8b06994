package callserver

import (
	"net/http"
	"strconv"
	"time"
)

// answer keeps what a handler answers. Until the body begins, out holds the
// status line and the handler's header; the body follows in a part of its own,
// for its length stands before it.
type answer struct {
	header http.Header
	status int
	out    []byte
	body   []byte

	typed, coded, dated, closes bool // what the header says
}

var _ http.ResponseWriter = (*answer)(nil)

// Header implements http.ResponseWriter.
func (w *answer) Header() http.Header { return w.header }

// WriteHeader implements http.ResponseWriter. Answers before the answer (1xx)
// are left out.
func (w *answer) WriteHeader(code int) {
	switch {
	case code < 100 || code > 999:
		panic("invalid WriteHeader code " + strconv.Itoa(code)) // as net/http
	case w.status != 0 || code < 200:
		return
	}
	w.status = code
	_, w.typed = w.header["Content-Type"]
	_, w.dated = w.header["Date"]
	w.coded = w.header.Get("Content-Encoding") != ""
	w.closes = w.header.Get("Connection") == "close"
	w.out = append(w.out, "HTTP/1.1 "...)
	w.out = strconv.AppendInt(w.out, int64(code), 10)
	w.out = append(w.out, ' ')
	if text := http.StatusText(code); text != "" {
		w.out = append(w.out, text...)
	} else {
		w.out = append(w.out, "status code "...)
		w.out = strconv.AppendInt(w.out, int64(code), 10)
	}
	w.out = append(w.out, "\r\n"...)
	not := ours
	if !w.hasBody() {
		not = oursAndType
	}
	_ = w.header.WriteSubset((*appender)(&w.out), not) // memory takes all
}

// ours are the fields that the loop says itself.
var (
	ours        = map[string]bool{"Content-Length": true, "Transfer-Encoding": true, "Connection": true}
	oursAndType = map[string]bool{"Content-Length": true, "Transfer-Encoding": true, "Connection": true, "Content-Type": true}
)

// Write implements http.ResponseWriter.
func (w *answer) Write(p []byte) (int, error) {
	if w.status == 0 {
		w.WriteHeader(http.StatusOK)
	}
	if !w.hasBody() {
		return 0, http.ErrBodyNotAllowed
	}
	w.body = append(w.body, p...)
	return len(p), nil
}

func (w *answer) hasBody() bool {
	return w.status != http.StatusNoContent && w.status != http.StatusNotModified
}

// finish makes out the whole answer; keep says that the connection may go on,
// and comes back as what the answer says.
func (w *answer) finish(keep bool) bool {
	if w.status == 0 {
		w.WriteHeader(http.StatusOK)
	}
	keep = keep && !w.closes
	if !keep {
		w.out = append(w.out, "Connection: close\r\n"...)
	}
	if !w.typed && !w.coded && len(w.body) > 0 {
		w.out = append(w.out, "Content-Type: "...)
		w.out = append(w.out, http.DetectContentType(w.body)...)
		w.out = append(w.out, "\r\n"...)
	}
	if !w.dated {
		w.out = append(w.out, "Date: "...)
		w.out = time.Now().UTC().AppendFormat(w.out, http.TimeFormat)
		w.out = append(w.out, "\r\n"...)
	}
	if w.hasBody() {
		w.out = append(w.out, "Content-Length: "...)
		w.out = strconv.AppendInt(w.out, int64(len(w.body)), 10)
		w.out = append(w.out, "\r\n"...)
	}
	w.out = append(w.out, "\r\n"...)
	w.out = append(w.out, w.body...)
	return keep
}

type appender []byte

// Write implements io.Writer.
func (a *appender) Write(p []byte) (int, error) {
	*a = append(*a, p...)
	return len(p), nil
}

// WriteString implements io.StringWriter.
func (a *appender) WriteString(s string) (int, error) {
	*a = append(*a, s...)
	return len(s), nil
}
