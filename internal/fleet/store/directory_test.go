package store_test

import (
	"errors"
	"testing"
	"time"

	"github.com/ferryrelay/ferry/alloc"
	"github.com/ferryrelay/ferry/internal/fleet/placement"
	"github.com/ferryrelay/ferry/internal/fleet/store"
	"github.com/ferryrelay/ferry/internal/test/storetest"
	"github.com/ferryrelay/ferry/proto"
)

func TestMemoryDirectory(t *testing.T) {
	t.Parallel()
	storetest.RunDirectory(t, func(*testing.T) placement.Directory { return store.NewMemoryDirectory(nil) })
}

func TestMemoryRegistry(t *testing.T) {
	t.Parallel()
	storetest.RunRegistry(t, func(*testing.T) (placement.Registry, func()) {
		r := store.NewMemoryRegistry(nil)
		return r, r.Lose
	})
}

// clock is a clock that stands.
type clock struct{ now time.Time }

func newClock() *clock { return &clock{time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)} }

func (c *clock) read() time.Time { return c.now }

// TestDirectoryForgetsByItself: an entry without a holder is removed after HoldFor, and
// one with a holder is not.
func TestDirectoryForgetsByItself(t *testing.T) {
	t.Parallel()
	c := newClock()
	d := store.NewMemoryDirectory(c.read)
	tenant := alloc.Tenant{Project: "game", Environment: "production"}
	home := placement.Home{Relay: alloc.RelayID{1}, Boot: 1}
	left, held := proto.AllocationID{1}, proto.AllocationID{2}
	for host, code := range map[proto.AllocationID]string{left: "6789BC", held: "DFGHJK"} {
		if err := d.SetHome(t.Context(), host, home); err != nil {
			t.Fatal(err)
		}
		if ok, err := d.PutCode(t.Context(), tenant, code, host); !ok || err != nil {
			t.Fatal(ok, err)
		}
	}
	for range 3 {
		c.now = c.now.Add(placement.HoldFor - time.Second)
		if _, err := d.Hold(t.Context(), home, []placement.Held{{Host: held, Tenant: tenant.Hash(), Since: c.now}}); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := d.HomeOf(t.Context(), left); !errors.Is(err, alloc.ErrNotFound) {
		t.Errorf("HomeOf the host without a holder: %v", err)
	}
	if _, err := d.HostOf(t.Context(), tenant, "6789BC"); !errors.Is(err, alloc.ErrCodeNotFound) {
		t.Errorf("HostOf its code: %v", err)
	}
	if got, err := d.HostOf(t.Context(), tenant, "DFGHJK"); err != nil || got != held {
		t.Errorf("HostOf the code of the host that is held: %v, %v", got, err)
	}
	if n, err := d.Codes(t.Context(), tenant); err != nil || n != 1 {
		t.Errorf("Codes = %d, %v", n, err)
	}
}

// TestRegistryForgetsTheDead: an entry is there with its age for as long as its
// relay may come back, and not for ever.
func TestRegistryForgetsTheDead(t *testing.T) {
	t.Parallel()
	c := newClock()
	r := store.NewMemoryRegistry(c.read)
	if _, err := r.Announce(t.Context(), placement.Node{Relay: alloc.RelayID{1}, Boot: 1, RecoverFor: time.Minute}); err != nil {
		t.Fatal(err)
	}
	stays := time.Minute + placement.DeadAfter + time.Minute
	for _, age := range []time.Duration{0, stays - time.Second, stays} {
		c.now = newClock().now.Add(age)
		seen, err := r.Nodes(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if want := age < stays; (len(seen) == 1) != want || want && seen[0].Age != age {
			t.Errorf("after %v: %+v", age, seen)
		}
	}
}
