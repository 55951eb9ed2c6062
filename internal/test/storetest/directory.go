package storetest

import (
	"errors"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/ferryrelay/ferry/alloc"
	"github.com/ferryrelay/ferry/internal/fleet/placement"
	"github.com/ferryrelay/ferry/proto"
)

// Two relays, one of them in two runs.
var (
	here   = placement.Home{Relay: alloc.RelayID{1}, Boot: 1}
	again  = placement.Home{Relay: alloc.RelayID{1}, Boot: 1<<64 - 1}
	theirs = placement.Home{Relay: alloc.RelayID{2}, Boot: 1}
)

// RunDirectory puts directories made by new through the tests of Run and its
// own. Each call of new returns an empty directory.
func RunDirectory(t *testing.T, new func(t *testing.T) placement.Directory) {
	t.Run("Store", func(t *testing.T) { Run(t, func(t *testing.T) alloc.Store { return new(t) }) })
	t.Run("RenewAfterMove", func(t *testing.T) { testRenewAfterMove(t, new(t)) })
	t.Run("MoveAndHoldAtOnce", func(t *testing.T) { testMoveAndHoldAtOnce(t, new(t)) })
	t.Run("Homes", func(t *testing.T) { testHomes(t, new(t)) })
	t.Run("HomeAndCodeApart", func(t *testing.T) { testHomeAndCode(t, new(t)) })
	t.Run("HoldPutsBack", func(t *testing.T) { testHoldPutsBack(t, new(t)) })
	t.Run("HoldMany", func(t *testing.T) { testHoldMany(t, new(t)) })
	t.Run("HoldChangesHome", func(t *testing.T) { testHoldChangesHome(t, new(t)) })
	t.Run("OlderKeepsCode", func(t *testing.T) { testOlderKeeps(t, new(t)) })
	t.Run("OlderTakesCode", func(t *testing.T) { testOlderTakes(t, new(t)) })
	t.Run("OlderTakesPutCode", func(t *testing.T) { testOlderTakesPut(t, new(t)) })
	t.Run("HoldTellsAge", func(t *testing.T) { testHoldTellsAge(t, new(t)) })
	t.Run("LostCodeMakesRoom", func(t *testing.T) { testLostMakesRoom(t, new(t)) })
	t.Run("LowerIDOfEqualAge", func(t *testing.T) { testEqualAge(t, new(t)) })
	t.Run("RelaysCodeCounts", func(t *testing.T) { testRelaysCode(t, new(t)) })
	t.Run("Drop", func(t *testing.T) { testDrop(t, new(t)) })
	t.Run("DropIsCompared", func(t *testing.T) { testDropCompared(t, new(t)) })
	t.Run("FleetAtOnce", func(t *testing.T) { testFleetAtOnce(t, new(t)) })
}

func testHomes(t *testing.T, d placement.Directory) {
	wantHome(t, d, host(1), placement.Home{})
	setHome(t, d, host(1), here)
	setHome(t, d, host(2), theirs)
	wantHome(t, d, host(1), here)
	wantHome(t, d, host(2), theirs)
	setHome(t, d, host(1), again)
	wantHome(t, d, host(1), again)
	wantHome(t, d, host(3), placement.Home{})
}

func testHomeAndCode(t *testing.T, d placement.Directory) {
	setHome(t, d, host(1), here)
	wantCode(t, d, production, host(1), "")
	put(t, d, production, "6789BC", host(1), true)
	setHome(t, d, host(1), again)
	wantCode(t, d, production, host(1), "6789BC")
	forget(t, d, production, host(1))
	wantHome(t, d, host(1), again)
	put(t, d, production, "6789BC", host(2), true)
	wantHome(t, d, host(2), placement.Home{})
	setHome(t, d, host(2), theirs)
	wantHost(t, d, production, "6789BC", host(2))
}

func testHoldPutsBack(t *testing.T, d placement.Directory) {
	since := time.Now().Add(-time.Hour)
	all := []placement.HostEntry{
		{Host: host(1), Tenant: production.Hash(), Code: "6789BC", Since: since},
		{Host: host(2), Tenant: staging.Hash(), Code: "6789BC", Since: since},
		{Host: host(3), Tenant: production.Hash(), Since: since},
		{Host: host(4), Tenant: production.Hash(), Code: "no code", Since: since},
	}
	for range 3 { // What is there already is left as it is.
		wantLost(t, d, here, all)
		for _, h := range all {
			wantHome(t, d, h.Host, here)
		}
		wantHost(t, d, production, "6789BC", host(1))
		wantHost(t, d, staging, "6789BC", host(2))
		wantCode(t, d, production, host(1), "6789BC")
		wantCode(t, d, production, host(3), "")
		wantCode(t, d, production, host(4), "")
		wantCount(t, d, production, 1)
		wantCount(t, d, staging, 1)
	}
	put(t, d, production, "6789BC", host(5), false)
	put(t, d, production, "DFGHJK", host(3), true)
	wantLost(t, d, here, all) // The relay does not know the new code.
	wantCode(t, d, production, host(3), "DFGHJK")
	wantHost(t, d, production, "DFGHJK", host(3))
	wantLost(t, d, here, nil)
}

func testHoldMany(t *testing.T, d placement.Directory) {
	const many = 1000
	since := time.Now().Add(-time.Minute)
	entries := make([]placement.HostEntry, many)
	for n := range entries {
		entries[n] = placement.HostEntry{Host: host(n), Tenant: production.Hash(), Code: code(n), Since: since}
	}
	wantLost(t, d, here, entries)
	wantCount(t, d, production, many)
	for n := 0; n < many; n += 37 {
		wantHost(t, d, production, code(n), host(n))
		wantHome(t, d, host(n), here)
	}
	if err := d.Drop(t.Context(), here, entries); err != nil {
		t.Fatal(err)
	}
	wantCount(t, d, production, 0)
	wantHome(t, d, host(0), placement.Home{})
	wantHome(t, d, host(many-1), placement.Home{})
}

func testHoldChangesHome(t *testing.T, d placement.Directory) {
	setHome(t, d, host(1), here)
	put(t, d, production, "6789BC", host(1), true)
	wantLost(t, d, again, []placement.HostEntry{{Host: host(1), Tenant: production.Hash(), Since: time.Now()}})
	wantHome(t, d, host(1), again)
	wantCode(t, d, production, host(1), "6789BC")
}

// rivals are two hosts that hold one code, as after a failover that lost it.
func rivals() (older, younger []placement.HostEntry) {
	now := time.Now()
	older = []placement.HostEntry{{Host: host(2), Tenant: production.Hash(), Code: "6789BC", Since: now.Add(-2 * time.Hour)}}
	younger = []placement.HostEntry{{Host: host(1), Tenant: production.Hash(), Code: "6789BC", Since: now.Add(-time.Hour)}}
	return older, younger
}

func testOlderKeeps(t *testing.T, d placement.Directory) {
	older, younger := rivals()
	wantLost(t, d, here, older)
	for range 2 {
		wantLost(t, d, theirs, younger, host(1))
		wantHome(t, d, host(1), theirs)
		wantHost(t, d, production, "6789BC", host(2))
		wantCode(t, d, production, host(2), "6789BC")
		wantCode(t, d, production, host(1), "")
		wantCount(t, d, production, 1)
	}
	put(t, d, production, "DFGHJK", host(1), true)
	wantLost(t, d, theirs, younger, host(1))
	wantCode(t, d, production, host(1), "DFGHJK")
	wantHost(t, d, production, "DFGHJK", host(1))
}

func testOlderTakes(t *testing.T, d placement.Directory) {
	older, younger := rivals()
	wantLost(t, d, theirs, younger)
	wantHost(t, d, production, "6789BC", host(1))
	wantLost(t, d, here, older)
	wantHost(t, d, production, "6789BC", host(2))
	wantCode(t, d, production, host(1), "")
	wantCount(t, d, production, 1)
	wantLost(t, d, theirs, younger, host(1))
	wantLost(t, d, here, older)
	wantHost(t, d, production, "6789BC", host(2))
	put(t, d, production, "DFGHJK", host(1), true)
}

// testOlderTakesPut: a code that was given anew while the store had lost it goes
// back to the host that had it.
func testOlderTakesPut(t *testing.T, d placement.Directory) {
	older, younger := rivals()
	setHome(t, d, host(1), theirs)
	put(t, d, production, "6789BC", host(1), true)
	wantLost(t, d, here, older)
	wantHost(t, d, production, "6789BC", host(2))
	wantCode(t, d, production, host(1), "")
	wantLost(t, d, theirs, younger, host(1))
	// Nor does its relay, when it ends the younger host, take the code along.
	if err := d.Drop(t.Context(), theirs, younger); err != nil {
		t.Fatal(err)
	}
	wantHost(t, d, production, "6789BC", host(2))
	wantCount(t, d, production, 1)
}

// testHoldTellsAge: a code that was put just now is as old as its host, once the
// host's relay has said so.
func testHoldTellsAge(t *testing.T, d placement.Directory) {
	older, younger := rivals()
	put(t, d, production, "6789BC", host(2), true)
	wantLost(t, d, here, older)
	wantLost(t, d, theirs, younger, host(1))
	wantHost(t, d, production, "6789BC", host(2))
}

// testLostMakesRoom: a host whose code was lost can get
// another one at once.
func testLostMakesRoom(t *testing.T, d placement.Directory) {
	older, younger := rivals()
	wantLost(t, d, theirs, younger)
	wantLost(t, d, here, older)
	wantLost(t, d, theirs, younger, host(1))
	put(t, d, production, "DFGHJK", host(1), true)
	wantCode(t, d, production, host(1), "DFGHJK")
}

// testEqualAge: hosts of one age agree on the lower id, however many times they
// come. A store whose clock is not the relay's may see the ages differ by the
// way there, and takes a few turns.
func testEqualAge(t *testing.T, d placement.Directory) {
	since := time.Now().Add(-time.Hour)
	low := []placement.HostEntry{{Host: host(1), Tenant: production.Hash(), Code: "6789BC", Since: since}}
	high := []placement.HostEntry{{Host: host(2), Tenant: production.Hash(), Code: "6789BC", Since: since}}
	const turns, settled = 3000, 20
	row := 0
	for range turns {
		kept, err := d.Renew(t.Context(), here, low)
		lost, err2 := d.Renew(t.Context(), theirs, high)
		if err != nil || err2 != nil {
			t.Fatal(err, err2)
		}
		if row++; len(kept) != 0 || len(lost) != 1 {
			row = 0
		}
		if row == settled {
			wantHost(t, d, production, "6789BC", host(1))
			wantCode(t, d, production, host(2), "")
			return
		}
	}
	t.Errorf("after %d turns the host with the lower id does not keep the code", turns)
}

// testRelaysCode: of two codes of one host, the one that its relay holds counts.
func testRelaysCode(t *testing.T, d placement.Directory) {
	put(t, d, production, "DFGHJK", host(1), true)
	wantLost(t, d, here, []placement.HostEntry{{Host: host(1), Tenant: production.Hash(), Code: "6789BC", Since: time.Now()}})
	wantCode(t, d, production, host(1), "6789BC")
	wantHost(t, d, production, "6789BC", host(1))
	wantHost(t, d, production, "DFGHJK", proto.AllocationID{})
	wantCount(t, d, production, 1)
}

func testDrop(t *testing.T, d placement.Directory) {
	entries := []placement.HostEntry{
		{Host: host(1), Tenant: production.Hash(), Code: "6789BC", Since: time.Now()},
		{Host: host(2), Tenant: production.Hash(), Since: time.Now()},
	}
	wantLost(t, d, here, entries)
	put(t, d, production, "DFGHJK", host(2), true) // The relay does not know.
	for range 2 {
		if err := d.Drop(t.Context(), here, entries); err != nil {
			t.Fatal(err)
		}
		for _, c := range []string{"6789BC", "DFGHJK"} {
			wantHost(t, d, production, c, proto.AllocationID{})
		}
		wantHome(t, d, host(1), placement.Home{})
		wantHome(t, d, host(2), placement.Home{})
		wantCode(t, d, production, host(1), "")
		wantCount(t, d, production, 0)
	}
	put(t, d, production, "6789BC", host(3), true)
}

func testDropCompared(t *testing.T, d placement.Directory) {
	entries := []placement.HostEntry{{Host: host(1), Tenant: production.Hash(), Code: "6789BC", Since: time.Now()}}
	wantLost(t, d, again, entries)
	for _, other := range []placement.Home{here, theirs} { // The previous run, and another relay.
		if err := d.Drop(t.Context(), other, entries); err != nil {
			t.Fatal(err)
		}
		wantHome(t, d, host(1), again)
		wantHost(t, d, production, "6789BC", host(1))
	}
	// A host may hold a code that is another's by now.
	wrong := []placement.HostEntry{{Host: host(2), Tenant: production.Hash(), Code: "6789BC", Since: time.Now()}}
	if err := d.Drop(t.Context(), theirs, wrong); err != nil {
		t.Fatal(err)
	}
	wantHost(t, d, production, "6789BC", host(1))
	wantCode(t, d, production, host(1), "6789BC")
}

// testFleetAtOnce has relays and API processes use few codes for many hosts at
// once. When all is quiet, no two hosts have one code, and codes and hosts agree.
func testFleetAtOnce(t *testing.T, d placement.Directory) {
	const relays, hosts, codes, rounds = 4, 12, 16, 6
	begin := time.Now()
	var wg sync.WaitGroup
	for r := range relays {
		wg.Go(func() {
			home := placement.Home{Relay: alloc.RelayID{byte(r + 1)}, Boot: 7}
			for round := range rounds {
				var entries []placement.HostEntry
				for n := range hosts {
					id := r*hosts + n
					h := placement.HostEntry{Host: host(id + 1), Tenant: production.Hash(), Since: begin.Add(-time.Duration(id*31%47) * time.Minute)}
					switch (n + round) % 3 {
					case 0:
						h.Code = code(id % codes)
					case 1:
						if _, err := d.PutCode(t.Context(), production, code((id+round)%codes), h.Host); err != nil {
							t.Error(err)
						}
					}
					entries = append(entries, h)
				}
				if _, err := d.Renew(t.Context(), home, entries); err != nil {
					t.Error(err)
				}
				if err := d.Drop(t.Context(), home, entries[:hosts/3]); err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	owner := make(map[string]proto.AllocationID)
	for id := range relays * hosts {
		c, err := d.CodeOf(t.Context(), production, host(id+1))
		if errors.Is(err, alloc.ErrCodeNotFound) {
			continue
		}
		if err != nil {
			t.Fatal(err)
		}
		if first, ok := owner[c]; ok {
			t.Errorf("%v and %v have one code", first, host(id+1))
		}
		owner[c] = host(id + 1)
		wantHost(t, d, production, c, host(id+1))
	}
	if len(owner) == 0 {
		t.Error("no host has a code: the test has shown nothing")
	}
}

func setHome(t *testing.T, d placement.Directory, host proto.AllocationID, home placement.Home) {
	t.Helper()
	if err := d.SetHome(t.Context(), host, home); err != nil {
		t.Fatalf("SetHome(%v): %v", host, err)
	}
}

// wantHome expects host to be at want, or nowhere if want is zero.
func wantHome(t *testing.T, d placement.Directory, host proto.AllocationID, want placement.Home) {
	t.Helper()
	got, err := d.HomeOf(t.Context(), host)
	switch {
	case want == placement.Home{} && !errors.Is(err, alloc.ErrNotFound):
		t.Errorf("HomeOf(%v) = %v, %v; want ErrNotFound", host, got, err)
	case want != placement.Home{} && (err != nil || got != want):
		t.Errorf("HomeOf(%v) = %v, %v; want %v", host, got, err, want)
	}
}

// wantLost has home hold hosts, and expects those that lose their code, each to the host to which it
// leads.
func wantLost(t *testing.T, d placement.Directory, home placement.Home, entries []placement.HostEntry, want ...proto.AllocationID) {
	t.Helper()
	lost, err := d.Renew(t.Context(), home, entries)
	if err != nil || !slices.EqualFunc(lost, want, func(l placement.Lost, id proto.AllocationID) bool { return l.Host == id }) {
		t.Errorf("Renew: lost %v, error %v; want %v", lost, err, want)
	}
	for _, l := range lost {
		i := slices.IndexFunc(entries, func(h placement.HostEntry) bool { return h.Host == l.Host })
		if got, err := d.HostOf(t.Context(), production, entries[i].Code); err != nil || got != l.Holder {
			t.Errorf("Renew: the code leads to %v, %v; it returned %v", got, err, l.Holder)
		}
	}
}
