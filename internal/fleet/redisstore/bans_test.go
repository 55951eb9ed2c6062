package redisstore

import (
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/ferryrelay/ferry/internal/test/redistest"
)

func TestBans(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	s := open(t, Config{URL: server.URL, Timeout: testTimeout})
	ctx := t.Context()
	want := func(what string, want ...string) {
		t.Helper()
		all, _, err := s.Bans.List(ctx)
		var got []string
		for _, b := range all {
			got = append(got, b.Text)
		}
		if slices.Sort(got); err != nil || !slices.Equal(got, want) {
			t.Errorf("%s: %q, %v; want %q", what, got, err, want)
		}
	}
	set := func(id, text string, d time.Duration, most int) error {
		return s.Bans.Set(ctx, id, text, time.Now().Add(d), most)
	}
	want("none")
	number := func(what string, above, below uint64) uint64 {
		t.Helper()
		_, n, err := s.Bans.List(ctx)
		if err != nil || n <= above || n >= below {
			t.Errorf("%s: number %d, %v; want more than %d and less than %d", what, n, err, above, below)
		}
		return n
	}
	const most = 1 << 60
	if _, n, _ := s.Bans.List(ctx); n != 0 {
		t.Errorf("the changes of a store that never had a ban have number %d", n)
	}
	for _, err := range []error{set("1", `{"a":":"}`, time.Hour, 2), set("2", "over", -time.Hour, 2), set("3", "c", time.Hour, 2),
		set("3", "d", time.Hour, 2)} {
		if err != nil {
			t.Error(err)
		}
	}
	want("two, and one that has ended", "d", `{"a":":"}`)
	if err := set("4", "e", time.Hour, 2); !errors.Is(err, ErrBansFull) {
		t.Errorf("a third: %v", err)
	}
	before := number("two bans", 1, most)
	if n := server.Do("HLEN " + testKeys.bans()); n != ":3" {
		t.Errorf("%s entries, want 2 and the mark", n)
	}
	if there, err := s.Bans.Delete(ctx, "1"); !there || err != nil {
		t.Error(there, err)
	}
	if there, err := s.Bans.Delete(ctx, "1"); there || err != nil {
		t.Error("it is removed twice:", there, err)
	}
	server.Do("HSET " + testKeys.bans() + " 9 nonsense")
	want("one is left", "d")
	if _, err := s.Bans.Delete(ctx, "3"); err != nil {
		t.Error(err)
	}
	number("without a ban", before, most)
	server.Do("HSET " + testKeys.bans() + " " + keptField + " " + keptValue)
	number("after a change by a version without numbers", 0, 2)
	if n := s.Stats().Damaged; n == 0 {
		t.Errorf("%d damaged values, want some", n)
	}
	server.Do("DEL " + testKeys.bans())
	lost := []Ban{{ID: "5", Text: "f", Until: time.Now().Add(time.Hour)}, {ID: "6", Text: "g", Until: time.Now().Add(time.Hour)}}
	for _, want := range []bool{true, false} { // The second process that has noticed comes too late.
		if done, err := s.Bans.Restore(ctx, lost, 0); done != want || err != nil {
			t.Errorf("restored %t, want %t; %v", done, want, err)
		}
	}
	want("the restored ones", "f", "g")
	if _, n, _ := s.Bans.List(ctx); n < before {
		t.Errorf("the restored bans have number %d, less than %d", n, before)
	}
	server.Stop()
	if _, _, err := s.Bans.List(ctx); !unavailable(err) {
		t.Errorf("without a store: %v", err)
	}
}
