package demo

import (
	"context"
	"slices"
	"testing"
	"testing/synctest"
)

func take(t *testing.T, p *Pool, n int) []uint32 {
	t.Helper()
	got, err := p.Take(t.Context(), n)
	if err != nil {
		t.Fatal(err)
	}
	return got
}

func TestPageFreedLastIsUsedFirst(t *testing.T) {
	t.Parallel()
	p := NewPool(8)
	if got := take(t, p, 3); !slices.Equal(got, []uint32{0, 1, 2}) {
		t.Fatalf("first pages are %v", got)
	}
	if err := p.Put([]uint32{1}); err != nil {
		t.Fatal(err)
	}
	if got := take(t, p, 2); !slices.Equal(got, []uint32{1, 3}) {
		t.Errorf("have %v, want the freed page first", got)
	}
	if got := p.Taken(); !slices.Equal(got, []uint32{0, 1, 2, 3}) {
		t.Errorf("taken: %v", got)
	}
}

func TestLargeRequestIsNotOvertaken(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		p := NewPool(4)
		held := take(t, p, 3)
		order := make(chan string, 2)
		go func() { take(t, p, 4); order <- "large" }()
		synctest.Wait()
		go func() {
			small := take(t, p, 1)
			order <- "small"
			_ = small
		}()
		synctest.Wait()
		if len(order) != 0 {
			t.Fatalf("%s went ahead of the request in front of it", <-order)
		}
		if err := p.Put(held); err != nil {
			t.Error(err)
		}
		if got := <-order; got != "large" {
			t.Errorf("%s came first", got)
		}
		if err := p.Put([]uint32{0, 1, 2, 3}); err != nil {
			t.Error(err)
		}
		<-order
	})
}

func TestWaiterThatGivesUpTakesNothing(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		p := NewPool(2)
		take(t, p, 1)
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error)
		go func() { _, err := p.Take(ctx, 2); done <- err }()
		synctest.Wait()
		cancel()
		if err := <-done; err == nil {
			t.Error("a cancelled wait got pages")
		}
		if got := take(t, p, 1); len(got) != 1 {
			t.Error("the next one is not served")
		}
	})
}

func TestPageWithTwoOwnersIsRefused(t *testing.T) {
	t.Parallel()
	p := NewPool(4)
	got := take(t, p, 2)
	for name, pages := range map[string][]uint32{
		"free already": {3}, "of no pool": {9}, "twice": {got[0], got[0]},
	} {
		if err := p.Put(pages); err == nil {
			t.Errorf("%s: was taken back", name)
		}
	}
	if err := p.Put(got); err != nil {
		t.Errorf("after refusals: %v", err)
	}
	if _, err := p.Take(t.Context(), 5); err == nil {
		t.Error("more than the pool has was promised")
	}
}
