package bootstrap

import (
	"context"
	"encoding/json"
	"net/http"
	"slices"
	"strconv"
	"time"

	"github.com/cockroachdb/errors"
)

const (
	// The pauses between attempts, as SGLang makes them (wire.md 2): they
	// double from the first to the last, times 0.75 … 1.
	firstPause = time.Second
	lastPause  = 30 * time.Second

	// dpQueryBatch keeps a question and its answer under 1 MiB: 20 bytes go
	// out and at most 35 come back for a room.
	dpQueryBatch = 16384
)

// RegisterState is how far a registration has come.
type RegisterState struct {
	Ready    bool  // the server has it
	Attempts int   // made so far
	Err      error // of the last attempt, nil before the first
}

// Register registers a rank at the bootstrap server at addr. It tries until
// it succeeds or ctx ends, however long that takes: a rank nobody can reach
// must not look alive (F34). ready, if not nil, is told the state before the
// first attempt and after each, from the calling goroutine; the process is not
// ready before Ready. One attempt takes up to 5 s, the pauses grow to 30 s.
//
// The error is that of a registration which can never be good, or ctx's. A
// 400 is tried again as well: the server may be replaced by a newer one. A
// server that is restarted later forgets the rank; register again then.
func (c *Client) Register(ctx context.Context, addr string, r Registration, ready func(RegisterState)) error {
	if err := r.Validate(); err != nil {
		return errors.Wrapf(err, "register at %s", addr)
	}
	if _, err := questionURL(addr, ""); err != nil {
		return errors.Wrap(err, "register")
	}
	body, err := json.Marshal(r)
	if err != nil {
		return errors.Wrapf(err, "register at %s", addr)
	}
	if ready == nil {
		ready = func(RegisterState) {}
	}
	ready(RegisterState{})
	pause := firstPause
	for attempts := 1; ; attempts++ {
		err := c.tell(ctx, http.MethodPut, addr, "/route", body)
		ready(RegisterState{Ready: err == nil, Attempts: attempts, Err: err})
		if err == nil {
			return nil
		}
		wait := time.Duration(float64(pause) * (0.75 + 0.25*c.cfg.Jitter()))
		if ctx.Err() == nil {
			c.cfg.Log.Warn("registration failed, trying again", "addr", addr, "attempts", attempts, "in", wait, "err", err)
		}
		if err := sleep(ctx, wait); err != nil {
			return errors.Wrapf(err, "register at %s, %d attempts", addr, attempts)
		}
		pause = min(2*pause, lastPause)
	}
}

// sleep waits for d; the error is ctx's.
func sleep(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// tell sends something of which only the status matters.
func (c *Client) tell(ctx context.Context, method, addr, target string, body []byte) error {
	status, answer, err := c.do(ctx, ask, method, addr, target, body)
	if err == nil && status != http.StatusOK {
		err = errors.Wrapf(errStatus(status), "%s http://%s%s: %.200q", method, addr, target, answer)
	}
	return err
}

// RegisterDPRank tells the server which dp rank serves a room (0 … 2^63-1),
// within 5 s. The server forgets it after 120 s.
func (c *Client) RegisterDPRank(ctx context.Context, addr string, room uint64, dpRank int) error {
	if room > maxRoom || dpRank < 0 || dpRank > maxI31 {
		return errors.Newf("register dp rank %d of room %d: out of range", dpRank, room)
	}
	body := strconv.AppendUint([]byte(`{"bootstrap_room":`), room, 10)
	body = append(body, `,"dp_rank":`...)
	body = append(strconv.AppendInt(body, int64(dpRank), 10), '}')
	return c.tell(ctx, http.MethodPost, addr, "/register_dp_rank", body)
}

// QueryDPRanks asks which dp ranks serve the rooms, within 5 s for each 16384
// of them. Rooms that the server does not know are left out.
func (c *Client) QueryDPRanks(ctx context.Context, addr string, rooms []uint64) (map[uint64]int, error) {
	out := make(map[uint64]int)
	for batch := range slices.Chunk(rooms, dpQueryBatch) {
		body := []byte(`{"bootstrap_rooms":[`)
		for i, room := range batch {
			if room > maxRoom {
				return nil, errors.Newf("query dp ranks: room %d is out of range", room)
			}
			if i > 0 {
				body = append(body, ',')
			}
			body = strconv.AppendUint(body, room, 10)
		}
		body = append(body, "]}"...)
		status, answer, err := c.do(ctx, ask, http.MethodPost, addr, "/query_dp_ranks", body)
		if err != nil {
			return nil, err
		}
		if status != http.StatusOK {
			return nil, errors.Wrapf(errStatus(status), "dp ranks of %s", addr)
		}
		if err := parseDPRanks(answer, out); err != nil {
			return nil, errors.Wrapf(badAnswer(err), "dp ranks of %s", addr)
		}
	}
	return out, nil
}

func parseDPRanks(body []byte, out map[uint64]int) error {
	o, err := parseObject(body)
	if err != nil {
		return err
	}
	for key := range o {
		room, ok := parseDec(key)
		if !ok || room < 0 {
			return errors.Newf("key %.64q is not a room", key)
		}
		f := fields{o: o}
		out[uint64(room)] = int(f.integer(key, 0, maxI31))
		if f.err != nil {
			return f.err
		}
	}
	return nil
}
