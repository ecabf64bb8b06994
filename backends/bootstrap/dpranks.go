package bootstrap

import (
	"container/list"
	"time"
)

const (
	// dpRankLife is how long a room's dp rank is answered after its last
	// registration (SGLANG_DISAGGREGATION_BOOTSTRAP_ENTRY_CLEANUP_INTERVAL).
	dpRankLife = 120 * time.Second

	// maxDPRanks bounds the table: some 8700 registrations a second for 120 s.
	// Beyond it the room registered longest ago goes first.
	maxDPRanks = 1 << 20
)

// dpRanks remembers which dp rank serves a room. Entries stand in the order
// of their last registration, so the expired ones are at the front.
type dpRanks struct {
	rooms map[int64]*list.Element
	order *list.List
	limit int
}

type dpRank struct {
	room, rank int64
	at         time.Time
}

func newDPRanks(limit int) *dpRanks {
	return &dpRanks{rooms: make(map[int64]*list.Element), order: list.New(), limit: limit}
}

func (d *dpRanks) put(room, rank int64, now time.Time) {
	d.sweep(now)
	if e, ok := d.rooms[room]; ok {
		e.Value = dpRank{room, rank, now}
		d.order.MoveToBack(e)
		return
	}
	if len(d.rooms) >= d.limit {
		d.drop(d.order.Front())
	}
	d.rooms[room] = d.order.PushBack(dpRank{room, rank, now})
}

// get answers for an entry younger than dpRankLife. It looks at the entry's
// own time, which counts also if the clock was set back.
func (d *dpRanks) get(room int64, now time.Time) (rank int64, ok bool) {
	e, ok := d.rooms[room]
	if !ok {
		return 0, false
	}
	v := e.Value.(dpRank)
	return v.rank, now.Sub(v.at) < dpRankLife
}

func (d *dpRanks) sweep(now time.Time) {
	for e := d.order.Front(); e != nil && now.Sub(e.Value.(dpRank).at) >= dpRankLife; e = d.order.Front() {
		d.drop(e)
	}
}

func (d *dpRanks) drop(e *list.Element) {
	delete(d.rooms, e.Value.(dpRank).room)
	d.order.Remove(e)
}
