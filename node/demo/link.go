package demo

import (
	"bufio"
	"encoding/json"
	"io"
	"sync"

	"github.com/cockroachdb/errors"
)

// Message is one line between a stand-in and the supervisor, which passes the
// first group on to the other stand-in: what a router would tell both engines.
type Message struct {
	Kind  string `json:"kind"`
	Index int    `json:"index,omitempty"`
	Text  string `json:"text,omitempty"`

	Report *EngineReport `json:"report,omitempty"`
}

// Kinds of messages. Passed on:
const (
	msgAdmitted = "admitted" // decode → prefill: the request has pages, its room is being opened
	msgEnded    = "ended"    // decode → prefill: the request has its outcome
	msgAbort    = "abort"    // prefill → decode: fire the abort of this request now
	msgGiveUp   = "give_up"  // prefill → decode: this request cannot be served
)

// For and from the supervisor.
const (
	msgReady    = "ready"    // stand-in: memory registered, watching
	msgStart    = "start"    // supervisor: begin
	msgAgain    = "again"    // supervisor: send msgDone once more, as of now
	msgProgress = "progress" // stand-in: Report so far
	msgDone     = "done"     // stand-in: Report, final; it stays until its stdin ends
	msgFatal    = "fatal"    // stand-in: Text says why it gave up
)

func passedOn(kind string) bool {
	return kind == msgAdmitted || kind == msgEnded || kind == msgAbort || kind == msgGiveUp
}

// EngineReport is what a stand-in has seen itself.
type EngineReport struct {
	Total     int `json:"total"`
	Succeeded int `json:"succeeded"`
	Aborted   int `json:"aborted"`
	Failed    int `json:"failed"`
	TooLarge  int `json:"too_large"` // of Failed

	PagesChecked int    `json:"pages_checked"` // pairs of room incarnation and page
	Bytes        uint64 `json:"bytes"`         // checked, of succeeded rooms
	// Corrupt lists the pairs whose bytes were wrong.
	Corrupt []RoomPage `json:"corrupt,omitempty"`
	// Found says whose bytes were in those pages.
	Found []Found `json:"found,omitempty"`
	// Taken lists the pages that have not come back.
	Taken []uint32 `json:"taken,omitempty"`
	// Faults counts failed requests by the node's word for it.
	Faults map[string]int `json:"faults,omitempty"`
	// PoolFault: the node gave a page back that it may not give back.
	PoolFault string `json:"pool_fault,omitempty"`
}

// Ended is the number of requests that have an outcome.
func (r *EngineReport) Ended() int { return r.Succeeded + r.Aborted + r.Failed }

// RoomPage is a page in the life of one room incarnation, named by the decode
// node's room_seq.
type RoomPage struct {
	RoomSeq uint64 `json:"room_seq"`
	Page    uint32 `json:"page"`
}

// Found is a part of a wrong page whose bytes are those of another request: the
// rank's part of page Position of the request with that Room and Use.
type Found struct {
	RoomPage
	Room     uint64 `json:"room"`
	Use      uint32 `json:"use"`
	Position int    `json:"position"`
	Chunk    int    `json:"chunk"`
	Rank     string `json:"rank"` // prefill rank
}

// link writes and reads Messages, one JSON object a line. Send is safe for
// concurrent use.
type link struct {
	mu  sync.Mutex
	enc *json.Encoder
	sc  *bufio.Scanner
}

func newLink(r io.Reader, w io.Writer) *link {
	sc := bufio.NewScanner(r)
	sc.Buffer(make([]byte, 0, 1<<16), 1<<26) // a final report lists pages
	return &link{enc: json.NewEncoder(w), sc: sc}
}

func (l *link) send(m Message) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.enc.Encode(m)
}

// receive reads the next message; io.EOF at the end.
func (l *link) receive() (Message, error) {
	var m Message
	if !l.sc.Scan() {
		if err := l.sc.Err(); err != nil {
			return m, err
		}
		return m, io.EOF
	}
	err := json.Unmarshal(l.sc.Bytes(), &m)
	return m, errors.Wrapf(err, "read message %q", l.sc.Text())
}
