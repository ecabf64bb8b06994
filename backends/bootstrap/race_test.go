package bootstrap

import (
	"strconv"
	"sync"
	"testing"
)

// TestConcurrentUse lets registrations of two topologies, questions and
// gauges meet; what holds at every moment is checked, the rest is -race's.
func TestConcurrentUse(t *testing.T) {
	const workers, rounds = 8, 100
	s := newTestServer(t, testConfig())
	addr := serve(t, s)
	c := newTestClient(t)
	var wg sync.WaitGroup
	for w := range workers {
		wg.Go(func() {
			for i := range rounds {
				r := aRank(w%4, 4)
				if w >= 4 && i%10 == 0 {
					r.PageSize = 32
				}
				if err := s.Register(r); err != nil {
					t.Error(err)
				}
				if st := s.Stats(); st.Ready != (st.Ranks == 4) || st.Ranks < 1 || st.Ranks > 4 || st.Expected != 4 {
					t.Errorf("%+v", st)
				}
				if i%10 != 0 {
					continue
				}
				room := uint64(w*rounds + i)
				if err := c.RegisterDPRank(t.Context(), addr, room, w); err != nil {
					t.Error(err)
				}
				if got, err := c.QueryDPRanks(t.Context(), addr, []uint64{room}); err != nil || got[room] != w {
					t.Errorf("room %d: %v %v", room, got, err)
				}
				if topology, err := c.Topology(t.Context(), addr, local); err == nil && topology.AttnTPSize != 4 {
					t.Errorf("%+v", topology)
				}
				if _, ok, err := c.Discover(t.Context(), addr); !ok || err != nil {
					t.Errorf("discover: %v %v", ok, err)
				}
				if !c.Health(t.Context(), addr) {
					t.Error("not healthy")
				}
			}
		})
	}
	wg.Wait()
	if st := s.Stats(); st.Registrations != workers*rounds || st.DPRanks != workers*rounds/10 || st.TopologyChanges == 0 {
		t.Errorf("%+v", st)
	}
	// Left to itself it settles, whatever came before.
	for rank := range 4 {
		if w := call(s, "PUT", "/route", `{"attn_tp_rank":`+strconv.Itoa(rank)+`,"attn_tp_size":4,`+
			`"attn_cp_size":1,"attn_cp_rank":0,"attn_dp_size":1,"attn_dp_rank":0,"pp_size":1,"pp_rank":0,"system_dp_size":1,`+
			`"system_dp_rank":0,"rank_ip":"10.0.0.3","rank_port":1,"page_size":64,"kv_cache_dtype":"auto"}`); w.Code != 200 {
			t.Errorf("%d %s", w.Code, w.Body)
		}
	}
	if !s.Ready() {
		t.Errorf("%+v", s.Stats())
	}
}
