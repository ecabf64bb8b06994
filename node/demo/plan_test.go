package demo

import (
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func planOf(t *testing.T, n int, change func(*Options)) Plan {
	t.Helper()
	o := DefaultOptions()
	o.Requests = n
	if change != nil {
		change(&o)
	}
	if err := o.Validate(); err != nil {
		t.Fatal(err)
	}
	return MakePlan(o, Generate(o.Seed, n))
}

func TestPlanIsAFunctionOfItsSeed(t *testing.T) {
	t.Parallel()
	a, b := planOf(t, 300, nil), planOf(t, 300, nil)
	if d := cmp.Diff(a, b); d != "" {
		t.Errorf("equal seeds differ: %s", d)
	}
	if c := planOf(t, 300, func(o *Options) { o.Seed = 2 }); cmp.Equal(a, c) {
		t.Error("different seeds give equal plans")
	}
}

func TestAskedShareIsAbortedHalfOfItInFlight(t *testing.T) {
	t.Parallel()
	kinds := map[AbortKind]int{}
	for _, it := range planOf(t, 300, nil).Items {
		kinds[it.Abort]++
		if it.Abort == AbortInFlight && it.Chunks() < 2 {
			t.Errorf("request %d of %d pages is sent in one chunk: nothing can be in flight", it.Index, it.Pages)
		}
	}
	if n := 300 - kinds[AbortNever]; n != 60 {
		t.Errorf("%d of 300 are aborted, want 60", n)
	}
	if kinds[AbortInFlight] < 30 {
		t.Errorf("%d are aborted in flight, want at least 30", kinds[AbortInFlight])
	}
	if kinds[AbortEarly] == 0 || kinds[AbortTimed] == 0 {
		t.Errorf("kinds are missing: %v", kinds)
	}
}

func TestRoomNumbersComeBack(t *testing.T) {
	t.Parallel()
	p := planOf(t, 300, nil)
	uses := map[uint64]uint32{}
	reused := 0
	for _, it := range p.Items {
		if it.Room>>63 != 0 || it.Room == 0 {
			t.Errorf("room %d has not 63 bits", it.Room)
		}
		if it.Use != uses[it.Room] {
			t.Errorf("request %d: use %d of room %d, %d came before", it.Index, it.Use, it.Room, uses[it.Room])
		}
		if (it.Previous >= 0) != (it.Use > 0) || it.Previous >= 0 && p.Items[it.Previous].Room != it.Room {
			t.Errorf("request %d: previous %d does not fit", it.Index, it.Previous)
		}
		if it.Use > 0 {
			reused++
		}
		uses[it.Room]++
	}
	if reused != 15 {
		t.Errorf("%d of 300 reuse a number, want 15", reused)
	}
}

func TestRequestLargerThanThePoolIsMarked(t *testing.T) {
	t.Parallel()
	p := planOf(t, 100, func(o *Options) { o.Pages = 100 })
	large := 0
	for _, it := range p.Items {
		if it.TooLarge != (it.Pages > 100) {
			t.Errorf("request %d of %d pages: too large %v", it.Index, it.Pages, it.TooLarge)
		}
		if it.TooLarge {
			large++
			if it.Abort != AbortNever || it.Use > 0 {
				t.Errorf("request %d cannot run, and is planned for", it.Index)
			}
		}
	}
	if large == 0 {
		t.Error("none was")
	}
}

func TestArrivalsFollowTheSpeed(t *testing.T) {
	t.Parallel()
	for speed, want := range map[float64]int64{0: 0, 1: 3000, 2: 1500} {
		p := MakePlan(Options{Speed: speed, PageTokens: 64, BytesPerToken: 8, Pages: 10, ChunkTokens: 64}, []Request{{Input: 5}, {AtMS: 3000, Input: 5}})
		if got := p.Items[1].ArriveMS; got != want {
			t.Errorf("speed %g: arrives at %d ms, want %d", speed, got, want)
		}
	}
}

func TestPlanSurvivesItsFile(t *testing.T) {
	t.Parallel()
	p := planOf(t, 50, nil)
	path := filepath.Join(t.TempDir(), "plan.json")
	if err := p.Save(path); err != nil {
		t.Fatal(err)
	}
	got, err := LoadPlan(path)
	if err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(&p, got); d != "" {
		t.Error(d)
	}
}

func TestBadOptionNamesItsFlag(t *testing.T) {
	t.Parallel()
	for flag, change := range map[string]func(*Options){
		"requests":         func(o *Options) { o.Requests = 0 },
		"speed":            func(o *Options) { o.Speed = -1 },
		"abort-percent":    func(o *Options) { o.AbortPercent = 101 },
		"backend":          func(o *Options) { o.Backend = "carrier-pigeon" },
		"provider":         func(o *Options) { o.Provider = "udp" },
		"release-policy":   func(o *Options) { o.ReleasePolicy = "never" },
		"ack-timeout":      func(o *Options) { o.AckTimeout = 0 },
		"transfer-timeout": func(o *Options) { o.TransferTimeout = -1 },
		"decode-ranks":     func(o *Options) { o.DecodeRanks = 3 },
		"bytes-per-token":  func(o *Options) { o.BytesPerToken = 1; o.PageTokens = 9 },
		"pages":            func(o *Options) { o.Pages = -4 },
		"fault":            func(o *Options) { o.Fault = "gremlins:3" },
	} {
		o := DefaultOptions()
		change(&o)
		err := o.Validate()
		var oe *OptionError
		if !errorsAs(err, &oe) || oe.Flag != flag {
			t.Errorf("have %v, want one that names --%s", err, flag)
		}
	}
}
