package bootstrap

import (
	"strings"
	"testing"
	"time"
)

func TestDPRankBodies(t *testing.T) {
	s := newTestServer(t, testConfig())
	for _, body := range []string{
		``, `null`, `[]`, `{}`, `{"bootstrap_room":1}`, `{"dp_rank":1}`, `{"bootstrap_room":1,"DP_rank":1}`,
		`{"bootstrap_room":1.0,"dp_rank":1}`, `{"bootstrap_room":1e0,"dp_rank":1}`, `{"bootstrap_room":true,"dp_rank":1}`,
		`{"bootstrap_room":null,"dp_rank":1}`, `{"bootstrap_room":"1","dp_rank":1}`, `{"bootstrap_room":-1,"dp_rank":1}`,
		`{"bootstrap_room":9223372036854775808,"dp_rank":1}`, `{"bootstrap_room":18446744073709551617,"dp_rank":1}`,
		`{"bootstrap_room":1,"dp_rank":2147483648}`, `{"bootstrap_room":1,"dp_rank":-1}`, `{"bootstrap_room":1,"dp_rank":null}`,
		`{"bootstrap_room":1,"dp_rank":1.0}`, `{"bootstrap_room":1,"dp_rank":1} {}`, `{"bootstrap_room":+1,"dp_rank":1}`,
		`{"bootstrap_room":1,"dp_rank":1,"dp_rank":"1"}`, `bootstrap_room=1&dp_rank=1`,
	} {
		expect(t, s, "POST", "/register_dp_rank", body, 400, "Bad request: …")
	}
	if n := s.Stats().DPRanks; n != 0 {
		t.Errorf("%d entries out of bad bodies", n)
	}
	for _, body := range []string{
		`{"bootstrap_room":0,"dp_rank":0}`,
		`{"x":{},"bootstrap_room":9223372036854775807,"dp_rank":2147483647}`,
		`{"bootstrap_room":9223372036854775806,"dp_rank":"x","dp_rank":5}`,
		`{"bootstrap_room":9007199254740993,"dp_rank":1}`,
	} {
		expect(t, s, "POST", "/register_dp_rank", body, 200, "OK")
	}
	for _, body := range []string{
		``, `{}`, `[]`, `[1]`, `{"bootstrap_rooms":null}`, `{"bootstrap_rooms":1}`, `{"bootstrap_rooms":{}}`, `{"bootstrap_rooms":"[1]"}`,
		`{"Bootstrap_rooms":[1]}`, `{"bootstrap_rooms":[1,-1]}`, `{"bootstrap_rooms":[1.0]}`, `{"bootstrap_rooms":[1,1e0]}`,
		`{"bootstrap_rooms":["1"]}`, `{"bootstrap_rooms":[null]}`, `{"bootstrap_rooms":[true]}`, `{"bootstrap_rooms":[[]]}`,
		`{"bootstrap_rooms":[[1,2],3]}`, `{"bootstrap_rooms":[{"a":1},2]}`, `{"bootstrap_rooms":["1,2",3]}`, `{"bootstrap_rooms":[1,[2,3]]}`,
		`{"bootstrap_rooms":[9223372036854775808]}`, `{"bootstrap_rooms":[18446744073709551616]}`, `{"bootstrap_rooms":[1,]}`,
		`{"bootstrap_rooms":[1]}x`, `{"bootstrap_rooms":[1],"bootstrap_rooms":null}`, `{"bootstrap_rooms":[0,"1,2,3"]}`,
	} {
		expect(t, s, "POST", "/query_dp_ranks", body, 400, "Bad request: …")
	}
	for body, answer := range map[string]string{
		`{"bootstrap_rooms":[]}`:                         `{}`,
		`{"bootstrap_rooms": [ ] }`:                      `{}`,
		`{"bootstrap_rooms":[1,2,3]}`:                    `{}`,
		`{"bootstrap_rooms" : [ 0 ,` + "\n\t" + ` 0 ] }`: `{"0":0}`,
		`{"bootstrap_rooms":[9223372036854775807,9223372036854775806,9223372036854775805]}`:         `{"9223372036854775806":5,"9223372036854775807":2147483647}`,
		`{"bootstrap_rooms":"x","z":[],"bootstrap_rooms":[9007199254740993,9007199254740992,1000]}`: `{"9007199254740993":1}`,
	} {
		expect(t, s, "POST", "/query_dp_ranks", body, 200, answer)
	}
	many := `{"bootstrap_rooms":[` + strings.Repeat("0,", 400000) + `0]}`
	expect(t, s, "POST", "/query_dp_ranks", many, 200, `{"0":0}`)
}

func TestDPRanksExpire(t *testing.T) {
	clock := &settable{time.Unix(1000, 0)}
	cfg := testConfig()
	cfg.Now = clock.Now
	s := newTestServer(t, cfg)
	put := func(room string) {
		expect(t, s, "POST", "/register_dp_rank", `{"bootstrap_room":`+room+`,"dp_rank":3}`, 200, "OK")
	}
	get := func(answer string) {
		t.Helper()
		expect(t, s, "POST", "/query_dp_ranks", `{"bootstrap_rooms":[1,2]}`, 200, answer)
	}
	put("1")
	clock.now = clock.now.Add(60 * time.Second)
	put("2")
	clock.now = clock.now.Add(60*time.Second - 1)
	get(`{"1":3,"2":3}`)
	clock.now = clock.now.Add(1) // 120 s after room 1
	get(`{"2":3}`)
	if n := s.Stats().DPRanks; n != 1 {
		t.Errorf("%d entries, want the expired one swept", n)
	}
	clock.now = clock.now.Add(30 * time.Second)
	put("2") // lives on from here
	clock.now = clock.now.Add(119 * time.Second)
	get(`{"2":3}`)
	clock.now = clock.now.Add(time.Second)
	get(`{}`)
	if n := s.Stats().DPRanks; n != 0 {
		t.Errorf("%d entries are left", n)
	}
}

func TestExpiredIsNotAnsweredAfterTheClockWasSetBack(t *testing.T) {
	d := newDPRanks(10)
	at := time.Unix(1000, 0)
	d.put(1, 1, at.Add(time.Hour))
	d.put(2, 2, at) // behind a younger entry in the order
	now := at.Add(dpRankLife)
	d.sweep(now)
	if _, ok := d.get(2, now); ok {
		t.Error("room 2 is answered")
	}
	if _, ok := d.get(1, now); !ok {
		t.Error("room 1 is not answered")
	}
}

func TestDPRanksAreBounded(t *testing.T) {
	d := newDPRanks(3)
	at := time.Unix(1000, 0)
	for _, room := range []int64{1, 2, 3, 1, 4} { // 1 again: 2 is the oldest
		d.put(room, room, at)
	}
	for room, there := range map[int64]bool{1: true, 2: false, 3: true, 4: true} {
		if _, ok := d.get(room, at); ok != there {
			t.Errorf("room %d: %v", room, ok)
		}
	}
	if len(d.rooms) != 3 || d.order.Len() != 3 {
		t.Errorf("%d rooms, %d in order", len(d.rooms), d.order.Len())
	}
}
