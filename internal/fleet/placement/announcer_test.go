package placement

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ferryrelay/ferry/alloc"
	"github.com/ferryrelay/ferry/internal/base/joincode"
	"github.com/ferryrelay/ferry/internal/test/testkit"
	"github.com/ferryrelay/ferry/proto"
)

type teller struct {
	*Announcer
	store   *fakeStore
	lost    []proto.AllocationID
	refused []proto.AllocationID
	stop    func()
}

func inTeller(t *testing.T, test func(t *testing.T, x *teller)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		x := &teller{store: newFakeStore()}
		x.Announcer = NewAnnouncer(AnnouncerConfig{
			Registry: x.store, Directory: x.store,
			Node:   func() Node { return testNode(0, "eu", 100) },
			OnLost: func(id proto.AllocationID) { x.lost = append(x.lost, id) },

			OnMoveRefused: func(id proto.AllocationID) { x.refused = append(x.refused, id) },
		})
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- x.Run(ctx) }()
		stopped := false
		x.stop = func() {
			if !stopped {
				stopped = true
				cancel()
				if err := <-done; err != nil {
					t.Errorf("Run: %v", err)
				}
			}
		}
		synctest.Wait()
		test(t, x)
		x.stop()
	})
}

// reserve is a host whose home an API process sets at once.
func (x *teller) reserve(t *testing.T, n int) proto.AllocationID {
	id := hostID(n)
	x.HostReserved(id, testTenant.Hash())
	if err := x.store.SetHome(t.Context(), id, Home{relayID(0), 1}); err != nil {
		t.Fatal(err)
	}
	return id
}

func (x *teller) healing(t *testing.T) bool {
	nodes, err := x.store.Nodes(t.Context())
	if err != nil || len(nodes) != 1 {
		t.Fatalf("nodes %v, %v", nodes, err)
	}
	return nodes[0].Healing
}

func (x *teller) missing(n int) (missing int) {
	x.store.mu.Lock()
	defer x.store.mu.Unlock()
	for i := range n {
		if _, ok := x.store.alive(hostID(i)); !ok {
			missing++
		}
	}
	return missing
}

func testCode(n int) string {
	b := []byte("66666666")
	for i := len(b) - 1; n > 0; i-- {
		b[i] = joincode.Alphabet[n%len(joincode.Alphabet)]
		n /= len(joincode.Alphabet)
	}
	return string(b)
}

func TestHeartbeat(t *testing.T) {
	t.Parallel()
	inTeller(t, func(t *testing.T, x *teller) {
		time.Sleep(time.Minute - time.Second)
		synctest.Wait()
		if got := x.store.called("Announce"); got != 30 {
			t.Errorf("%d heartbeats in a minute", got)
		}
		x.HeartbeatNow()
		synctest.Wait()
		if got := x.store.called("Announce"); got != 31 {
			t.Errorf("%d heartbeats after Soon", got)
		}
		if got := x.store.called("Renew") + x.store.called("Drop"); got != 0 {
			t.Errorf("%d calls about no hosts", got)
		}
	})
}

// TestIdle: without hosts an announcer wakes up once a second, and heartbeats stay two seconds apart, with hosts too.
func TestIdle(t *testing.T) {
	t.Parallel()
	inTeller(t, func(t *testing.T, x *teller) {
		for _, hosts := range []int{0, 5} {
			for n := range hosts {
				x.reserve(t, n)
			}
			time.Sleep(2 * HeartbeatEvery)
			synctest.Wait()
			before := x.store.called("Announce")
			for range 30 {
				time.Sleep(HeartbeatEvery)
				synctest.Wait()
				if got := x.store.called("Announce") - before; got != 1 {
					t.Errorf("%d hosts: %d heartbeats in %v", hosts, got, HeartbeatEvery)
				}
				before = x.store.called("Announce")
			}
			if want := map[int]time.Duration{0: idleTick, 5: announceTick}[hosts]; x.tickEvery() != want {
				t.Errorf("%d hosts: a tick each %v", hosts, x.tickEvery())
			}
		}
	})
}

// TestManyHosts: each of 20,000 is announced in time, in few calls, evenly.
func TestManyHosts(t *testing.T) {
	t.Parallel()
	const hosts = 20_000
	inTeller(t, func(t *testing.T, x *teller) {
		time.Sleep(time.Second) // so that none of them was there before the first heartbeat
		synctest.Wait()
		for n := range hosts {
			x.reserve(t, n)
		}
		for range 40 {
			time.Sleep(10 * time.Second)
			synctest.Wait()
			if n := x.missing(hosts); n != 0 {
				t.Fatalf("%d hosts have lapsed", n)
			}
		}
		st := x.Stats()
		if st.Hosts != hosts || st.RenewedHosts < 5*uint64(hosts) || st.RenewedHosts > 7*uint64(hosts) {
			t.Errorf("%+v", st)
		}
		if most := uint64(7*hosts/renewBatch) * 5 / 4; st.Renewals > most {
			t.Errorf("%d calls, want at most %d", st.Renewals, most)
		}
		perSecond := make(map[int64]int)
		for i, at := range x.store.renewedAt {
			perSecond[at.Unix()] += x.store.renewed[i]
		}
		for at, n := range perSecond {
			if n > 2*hosts/60+2*renewBatch {
				t.Errorf("%d hosts in second %d", n, at)
			}
		}
	})
}

func TestFewHosts(t *testing.T) {
	t.Parallel()
	inTeller(t, func(t *testing.T, x *teller) {
		for n := range 5 {
			x.reserve(t, n)
		}
		for range 60 {
			time.Sleep(10 * time.Second)
			synctest.Wait()
			if n := x.missing(5); n != 0 {
				t.Fatalf("%d hosts have lapsed", n)
			}
		}
		if got := x.store.called("Renew"); got < 20 || got > 120 {
			t.Errorf("%d calls for 5 hosts in 10 minutes", got)
		}
	})
}

// TestStoreLosesAll: within five seconds it has everything again, codes too.
func TestStoreLosesAll(t *testing.T) {
	t.Parallel()
	const hosts = 20_000
	inTeller(t, func(t *testing.T, x *teller) {
		for n := range hosts {
			x.KeepCode(x.reserve(t, n), testCode(n))
		}
		time.Sleep(20 * time.Second)
		synctest.Wait()
		x.store.lose()
		time.Sleep(HeartbeatEvery)
		synctest.Wait()
		if !x.healing(t) {
			t.Error("the relay does not say that the store lacks something")
		}
		time.Sleep(catchUp)
		synctest.Wait()
		if n := x.missing(hosts); n != 0 {
			t.Fatalf("%d of %d hosts are missing", n, hosts)
		}
		if x.healing(t) {
			t.Error("the relay still says that the store lacks something")
		}
		for n := range hosts {
			if host, err := x.store.HostOf(t.Context(), testTenant, testCode(n)); err != nil || host != hostID(n) {
				t.Fatalf("code %d: %v, %v", n, host, err)
			}
		}
		// And no more often than that: the next round is even again.
		before := x.Stats().RenewedHosts
		time.Sleep(20 * time.Second)
		synctest.Wait()
		if got := x.Stats().RenewedHosts - before; got > hosts/2 {
			t.Errorf("%d hosts were announced in the next 20 s", got)
		}
	})
}

// TestStoreOutage: it is asked now and then, and has everything within five
// seconds of its return, however long it was gone.
func TestStoreOutage(t *testing.T) {
	t.Parallel()
	const hosts = 10_000
	for _, outage := range []time.Duration{time.Minute, 10 * time.Minute} {
		inTeller(t, func(t *testing.T, x *teller) {
			for n := range hosts {
				x.KeepCode(x.reserve(t, n), testCode(n))
			}
			time.Sleep(90 * time.Second)
			synctest.Wait()
			x.store.fail(errBroken)
			before := x.store.called("Announce")
			for n := range 100 {
				time.Sleep(outage / 100)
				synctest.Wait()
				x.HostEnded(hostID(n)) // and games go on to end
			}
			calls := x.store.called("Announce") - before
			if calls < int(outage/(2*time.Second)) || calls > int(outage/(500*time.Millisecond))+5 {
				t.Errorf("%d heartbeats were tried in %v", calls, outage)
			}
			x.store.fail(nil)
			time.Sleep(5 * time.Second)
			synctest.Wait()
			if n := x.missing(hosts); n != 100 {
				t.Errorf("%d of %d hosts are missing, want those 100 that ended", n, hosts)
			}
			if st := x.Stats(); st.Ends != 0 || st.Drops == 0 {
				t.Errorf("%+v", st)
			}
		})
	}
}

// TestStoreHangs: no caller of the announcer waits for the store.
func TestStoreHangs(t *testing.T) {
	t.Parallel()
	inTeller(t, func(t *testing.T, x *teller) {
		x.store.mu.Lock()
		x.store.hang = make(chan struct{})
		x.store.mu.Unlock()
		time.Sleep(HeartbeatEvery + time.Millisecond) // A call is under way.
		synctest.Wait()
		began := time.Now()
		for n := range 1000 {
			x.HostReserved(hostID(n), 1)
			x.KeepCode(hostID(n), testCode(n))
			x.HostReturned(hostID(5000+n), 1)
			x.HostEnded(hostID(n))
		}
		if took := time.Since(began); took != 0 { // in the bubble's time
			t.Errorf("waited for %v", took)
		}
		x.store.mu.Lock()
		close(x.store.hang)
		x.store.hang = nil
		x.store.mu.Unlock()
		time.Sleep(6 * time.Second)
		synctest.Wait()
		if st := x.Stats(); st.Hosts != 1000 || st.Ends != 0 || st.RenewedHosts < 1000 {
			t.Errorf("%+v", st)
		}
	})
}

// TestEnd: host and code are removed within a second, in batches, and neither
// joiners nor unknown ids are reported.
func TestEnd(t *testing.T) {
	t.Parallel()
	const hosts = 2000
	inTeller(t, func(t *testing.T, x *teller) {
		for n := range hosts {
			x.KeepCode(x.reserve(t, n), testCode(n))
			x.KeepCode(hostID(n), "not a code")
		}
		x.store.mu.Lock()
		for n := range hosts {
			key := fakeCode{testTenant.Hash(), testCode(n)}
			x.store.codes[key], x.store.byHost[hostID(n)] = hostID(n), key
		}
		x.store.mu.Unlock()
		for n := range hosts {
			x.HostEnded(hostID(n))
			x.HostEnded(hostID(n))
			x.HostEnded(hostID(hosts + n))
		}
		x.KeepCode(hostID(0), testCode(0))
		time.Sleep(time.Second)
		synctest.Wait()
		if n := x.missing(hosts); n != hosts || len(x.store.codes) != 0 {
			t.Errorf("%d hosts and %d codes are left", hosts-n, len(x.store.codes))
		}
		if got := x.store.called("Drop"); got != hosts/renewBatch {
			t.Errorf("%d calls", got)
		}
	})
}

// TestCodeLost: of two hosts with one code the older keeps it, and the relay of the
// other one gets an event, and stops announcing it.
func TestCodeLost(t *testing.T) {
	t.Parallel()
	inTeller(t, func(t *testing.T, x *teller) {
		older := hostID(99)
		if _, err := x.store.Renew(t.Context(), Home{relayID(5), 1},
			[]HostEntry{{Host: older, Tenant: testTenant.Hash(), Code: "6789BC", Since: time.Now().Add(-time.Hour)}}); err != nil {
			t.Fatal(err)
		}
		x.KeepCode(x.reserve(t, 0), "6789BC")
		x.KeepCode(x.reserve(t, 1), "6789BD")
		time.Sleep(100 * time.Second)
		synctest.Wait()
		if !slices.Equal(x.lost, []proto.AllocationID{hostID(0)}) || x.Stats().Lost != 1 {
			t.Errorf("lost %v, %+v", x.lost, x.Stats())
		}
		if host, err := x.store.HostOf(t.Context(), testTenant, "6789BC"); err != nil || host != older {
			t.Errorf("the code leads to %v, %v", host, err)
		}
		if x.missing(2) != 0 {
			t.Error("a host that lost its code is held no more")
		}
		x.KeepCode(hostID(0), "6789BF") // It may get another one.
		time.Sleep(70 * time.Second)
		synctest.Wait()
		if host, err := x.store.HostOf(t.Context(), testTenant, "6789BF"); err != nil || host != hostID(0) {
			t.Errorf("its next code leads to %v, %v", host, err)
		}
	})
}

// TestHostMigrated: the code passes to the new host at once, or when the store answers, and
// again when the store has lost that. The former host is held without its code until its end.
func TestHostMigrated(t *testing.T) {
	t.Parallel()
	inTeller(t, func(t *testing.T, x *teller) {
		hosts := []proto.AllocationID{x.reserve(t, 0), x.reserve(t, 1), x.reserve(t, 2)}
		x.KeepCode(hosts[0], "6789BC")
		if ok, err := x.store.PutCode(t.Context(), testTenant, "6789BC", hosts[0]); !ok || err != nil {
			t.Fatal(ok, err)
		}
		leadsTo := func(host proto.AllocationID) {
			t.Helper()
			synctest.Wait()
			if got, err := x.store.HostOf(t.Context(), testTenant, "6789BC"); err != nil || got != host {
				t.Errorf("the code leads to %v, %v; want %v", got, err, host)
			}
			if home, err := x.store.HomeOf(t.Context(), hosts[0]); err != nil || home != (Home{relayID(0), 1}) {
				t.Errorf("the former host is at %v, %v", home, err)
			}
		}
		time.Sleep(2 * HostTTL)
		leadsTo(hosts[0])
		x.HostMigrated(testTenant.Hash(), "6789BC", hosts[0], hosts[1])
		leadsTo(hosts[1])
		x.store.fail(errBroken)
		x.HostMigrated(testTenant.Hash(), "6789BC", hosts[1], hosts[2])
		time.Sleep(10 * time.Second)
		x.store.fail(nil)
		time.Sleep(2 * maxRetryPause)
		leadsTo(hosts[2])
		x.store.lose()
		for _, id := range hosts { // As a store that lacks the last writes.
			if err := x.store.SetHome(t.Context(), id, Home{relayID(0), 1}); err != nil {
				t.Fatal(err)
			}
		}
		if ok, err := x.store.PutCode(t.Context(), testTenant, "6789BC", hosts[0]); !ok || err != nil {
			t.Fatal(ok, err)
		}
		time.Sleep(HeartbeatEvery + catchUp)
		leadsTo(hosts[2])
		time.Sleep(2 * HostTTL)
		leadsTo(hosts[2])
		x.HostEnded(hosts[0])
		x.HostEnded(hosts[1])
		time.Sleep(time.Second)
		synctest.Wait()
		if got, err := x.store.HostOf(t.Context(), testTenant, "6789BC"); err != nil || got != hosts[2] || len(x.made) != 0 {
			t.Errorf("after the ends the code leads to %v, %v; %d moves are kept", got, err, len(x.made))
		}
		if len(x.lost)+len(x.refused) != 0 || x.Stats().MovesDropped != 0 {
			t.Errorf("%v have lost their code, %v did not get it, %+v", x.lost, x.refused, x.Stats())
		}
		x.HostMigrated(testTenant.Hash(), "6789BC", hosts[0], x.reserve(t, 3))
		x.HostMigrated(testTenant.Hash(), "6789BC", hosts[2], hostID(99)) // It has ended.
		leads, refused := hosts[2], []proto.AllocationID{hostID(3)}
		time.Sleep(time.Second)
		synctest.Wait()
		if got, err := x.store.HostOf(t.Context(), testTenant, "6789BC"); err != nil || got != leads || !slices.Equal(x.refused, refused) {
			t.Errorf("after late moves the code leads to %v, %v; refused %v", got, err, x.refused)
		}
	})
}

// TestReturned: hosts of the previous run are announced before others.
func TestReturned(t *testing.T) {
	t.Parallel()
	inTeller(t, func(t *testing.T, x *teller) {
		for n := range 5000 {
			x.reserve(t, 1000+n)
		}
		for n := range 1000 {
			x.HostReturned(hostID(n), testTenant.Hash())
			x.KeepCode(hostID(n), testCode(n))
		}
		time.Sleep(catchUp)
		synctest.Wait()
		if n := x.missing(1000); n != 0 {
			t.Errorf("%d of 1000 are missing", n)
		}
		if host, err := x.store.HostOf(t.Context(), testTenant, testCode(500)); err != nil || host != hostID(500) {
			t.Errorf("a code of theirs leads to %v, %v", host, err)
		}
	})
}

// TestCrashInMove: the relay was killed after a player had taken the place of a host, and
// before the store knew. The next run moves the code, unless the host may come back or is another
// relay's. Until then hosts that are not found are unavailable.
func TestCrashInMove(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		home       Home
		formerIsIn bool
		moves      bool
	}{
		"the former host has ended":                 {Home{relayID(0), 0}, false, true},
		"the former host may come back":             {Home{relayID(0), 0}, true, false},
		"the host with the code is another relay's": {Home{relayID(5), 0}, false, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			inTeller(t, func(t *testing.T, x *teller) {
				former, next := hostID(0), hostID(1)
				entries := []HostEntry{{Host: former, Tenant: testTenant.Hash(), Code: "6789BC", Since: time.Now().Add(-time.Hour)}}
				if _, err := x.store.Renew(t.Context(), c.home, entries); err != nil {
					t.Fatal(err)
				}
				x.store.fail(errBroken)
				x.HostReturned(next, testTenant.Hash())
				x.KeepCode(next, "6789BC")
				if c.formerIsIn {
					x.HostReturned(former, testTenant.Hash())
				}
				local := NewLocal(newFakeEngine(0), x.Announcer)
				ask := func() error {
					_, err := local.ReserveJoiner(t.Context(), alloc.JoinerRequest{Caller: alloc.Caller{Tenant: testTenant}, Host: former})
					return err
				}
				time.Sleep(3 * time.Second)
				wantErr(t, "a join while the code has to move", ask(), alloc.ErrUnavailable)
				x.store.fail(nil)
				time.Sleep(catchUp)
				synctest.Wait()
				want, lost := former, []proto.AllocationID{next}
				if c.moves {
					want, lost = next, nil
				}
				if got, err := x.store.HostOf(t.Context(), testTenant, "6789BC"); err != nil || got != want || !slices.Equal(x.lost, lost) {
					t.Errorf("the code leads to %v, %v; want %v; lost %v", got, err, want, x.lost)
				}
				wantErr(t, "a join after it", ask(), alloc.ErrNotFound)
				time.Sleep(2 * HostTTL)
				synctest.Wait()
				if got, err := x.store.HostOf(t.Context(), testTenant, "6789BC"); c.moves && (err != nil || got != next) || len(x.refused) > 0 {
					t.Errorf("later the code leads to %v, %v; refused %v", got, err, x.refused)
				}
			})
		})
	}
}

// TestDeparture: with nothing left the relay is withdrawn; with hosts that may
// come back it takes nothing new, and keeps them.
func TestDeparture(t *testing.T) {
	t.Parallel()
	inTeller(t, func(t *testing.T, x *teller) {
		x.reserve(t, 0)
		time.Sleep(time.Second)
		synctest.Wait()
		x.HostEnded(hostID(0))
		x.stop()
		if nodes, _ := x.store.Nodes(t.Context()); len(nodes) != 0 || x.missing(1) != 1 {
			t.Errorf("%d relays are left, %d hosts", len(nodes), 1-x.missing(1))
		}
	})
	inTeller(t, func(t *testing.T, x *teller) {
		x.reserve(t, 0)
		x.stop()
		nodes, _ := x.store.Nodes(t.Context())
		if len(nodes) != 1 || !nodes[0].Draining || !nodes[0].Stopped || x.missing(1) != 0 {
			t.Errorf("relays %v, %d hosts", nodes, 1-x.missing(1))
		}
	})
	inTeller(t, func(t *testing.T, x *teller) {
		x.reserve(t, 0)
		x.store.fail(errBroken)
		began := time.Now()
		x.stop()
		if took := time.Since(began); took > leaveTimeout {
			t.Errorf("took %v to leave a store that is gone", took)
		}
	})
}

// TestBounds: more ends, and more hosts, than are remembered are counted.
func TestBounds(t *testing.T) {
	t.Parallel()
	testkit.OneGoroutine(t)
	a := NewAnnouncer(AnnouncerConfig{
		Registry: newFakeStore(), Directory: newFakeStore(), Node: func() Node { return Node{} },
	})
	for n := range maxEnds + 10 {
		a.HostReserved(hostID(n), 1)
		a.HostEnded(hostID(n))
	}
	if st := a.Stats(); st.EndsDropped != 10 || st.Ends != maxEnds {
		t.Errorf("%+v", st)
	}
	for n := range maxHosts + 10 {
		a.HostReserved(hostID(n), 1)
	}
	if st := a.Stats(); st.HostsDropped != 10 || st.Hosts != maxHosts {
		t.Errorf("%+v", st)
	}
}

func ExampleAnnouncer() {
	store := newFakeStore()
	a := NewAnnouncer(AnnouncerConfig{
		Registry: store, Directory: store,
		Node: func() Node { return Node{Region: "eu", Usage: Usage{Seats: 1000}} },
	})
	a.HostReserved(proto.AllocationID{1}, 42) // from Local, when the engine has reserved a host
	a.KeepCode(proto.AllocationID{1}, "6789BC")
	fmt.Println(a.Stats().Hosts)
	a.HostEnded(proto.AllocationID{1}) // from the engine's hook
	fmt.Println(a.Stats().Hosts, a.Stats().Ends)
	// Output:
	// 1
	// 0 1
}
