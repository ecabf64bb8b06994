package projector

import (
	"strconv"
	"strings"
)

// RankID names a rank as "node/rank", e.g. "p0/1".
type RankID string

// MakeRank builds "node/rank".
func MakeRank(node string, rank int) RankID { return RankID(node + "/" + strconv.Itoa(rank)) }

// Node is the part before the last slash; the whole name if there is none.
func (r RankID) Node() string {
	if i := strings.LastIndexByte(string(r), '/'); i >= 0 {
		return string(r[:i])
	}
	return string(r)
}

// Index is the number after the last slash, -1 if there is none.
func (r RankID) Index() int {
	if i := strings.LastIndexByte(string(r), '/'); i >= 0 {
		if n, err := strconv.Atoi(string(r[i+1:])); err == nil {
			return n
		}
	}
	return -1
}

// Instant is the time a command happens at, in unix milliseconds.
type Instant struct {
	// Clock counts deadlines. It never goes back and never jumps within a life
	// of the node; over restarts it continues from the log.
	Clock uint64
	// Wall feeds the hybrid logical clock. It may be anything.
	Wall uint64
}

// At is an instant whose two clocks agree.
func At(ms uint64) Instant { return Instant{Clock: ms, Wall: ms} }

// roomKey names a room incarnation by its room_seq.
type roomKey = uint64
