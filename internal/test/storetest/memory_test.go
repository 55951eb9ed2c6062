package storetest_test

import (
	"errors"
	"testing"
	"time"

	"github.com/ferryrelay/ferry/alloc"
	"github.com/ferryrelay/ferry/internal/fleet/placement"
	"github.com/ferryrelay/ferry/internal/test/storetest"
	"github.com/ferryrelay/ferry/internal/test/testkit"
	"github.com/ferryrelay/ferry/proto"
)

func TestMemoryDirectory(t *testing.T) {
	t.Parallel()
	storetest.RunDirectory(t, func(*testing.T) placement.Directory { return storetest.NewMemoryDirectory(nil) })
}

// TestDirectoryForgetsByItself: an entry without a holder is removed after HostTTL, and
// one with a holder is not.
func TestDirectoryForgetsByItself(t *testing.T) {
	t.Parallel()
	clock := testkit.NewClock(time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC))
	d := storetest.NewMemoryDirectory(clock.Now)
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
		clock.Advance(placement.HostTTL - time.Second)
		if _, err := d.Renew(t.Context(), home, []placement.HostEntry{{Host: held, Tenant: tenant.Hash(), Since: clock.Now()}}); err != nil {
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
	if _, n, err := d.Codes(t.Context(), tenant, held); err != nil || n != 1 {
		t.Errorf("Codes = %d, %v", n, err)
	}
}
