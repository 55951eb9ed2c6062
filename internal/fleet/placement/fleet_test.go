package placement

import (
	"context"
	"errors"
	"net/netip"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ferryrelay/ferry/alloc"
	"github.com/ferryrelay/ferry/proto"
)

func TestNotRunYet(t *testing.T) {
	t.Parallel()
	s := newFakeStore()
	f := New(Config{Registry: s, Directory: s, Dialer: fakeDialer{}})
	_, err := f.ReserveHost(t.Context(), alloc.HostRequest{Caller: alloc.Caller{Tenant: testTenant}, MaxConnections: 3})
	wantErr(t, "ReserveHost", err, alloc.ErrStoreUnavailable)
	wantErr(t, "Ready", f.Ready(), alloc.ErrStoreUnavailable)
	if got := f.Regions(); len(got) != 0 {
		t.Errorf("regions %v", got)
	}
}

func TestReserveHost(t *testing.T) {
	t.Parallel()
	nodes := []Node{testNode(0, "eu", 10), testNode(1, "us", 10)}
	inWorld(t, nodes, nil, func(t *testing.T, w *world) {
		wantErr(t, "Ready", w.Ready(), nil)
		res, err := w.ReserveHost(t.Context(), alloc.HostRequest{
			Caller: alloc.Caller{Tenant: testTenant, Address: netip.MustParseAddr("192.0.2.1")}, MaxConnections: 3, Region: "us",
		})
		if err != nil || res.Region != "us" {
			t.Fatalf("region %q, error %v", res.Region, err)
		}
		got := w.relays[1].live[res.ID]
		if got.Tenant != testTenant || got.MaxConnections != 3 || got.Region != "" || !got.Address.IsValid() {
			t.Errorf("the relay was asked for %+v", got)
		}
		if home, err := w.store.HomeOf(t.Context(), res.ID); err != nil || home != (Home{relayID(1), 1}) {
			t.Errorf("home %v, %v", home, err)
		}
		_, err = w.host(3, "mars")
		wantErr(t, "unknown region", err, alloc.ErrRegion)
		_, err = w.host(10, "")
		wantErr(t, "more seats than any relay has", err, alloc.ErrFull)
	})
}

// TestBurst: what is given between two heartbeats does not pile up.
func TestBurst(t *testing.T) {
	t.Parallel()
	var nodes []Node
	for n := range 10 {
		nodes = append(nodes, testNode(n, "eu", 100))
	}
	inWorld(t, nodes, nil, func(t *testing.T, w *world) {
		for n := range 200 { // of 5 seats each, which is all there is
			if _, err := w.host(4, ""); err != nil {
				t.Fatalf("host %d: %v", n, err)
			}
			if n%20 == 0 { // over a poll, but no heartbeat
				time.Sleep(150 * time.Millisecond)
			}
		}
		for i, r := range w.relays {
			if _, live := r.count(); live != 20 {
				t.Errorf("relay %d has %d hosts", i, live)
			}
		}
		_, err := w.host(4, "")
		wantErr(t, "a host too many", err, alloc.ErrFull)
		if st := w.Stats(); st.Tries != 200 || st.Placed != 200 || len(st.Refused) != 2 || st.Refused[0].Full != 1 {
			t.Errorf("%+v", st)
		}
		time.Sleep(5 * time.Second) // The relays announce that nothing is taken.
		w.mustHost(t, 4, "")
	})
}

// TestSilentRelay: the next one is asked in time, and the silent one last from
// then on, until it has had time to die or to wake up.
func TestSilentRelay(t *testing.T) {
	t.Parallel()
	inWorld(t, []Node{testNode(0, "eu", 10_000), testNode(1, "eu", 100)}, nil, func(t *testing.T, w *world) {
		w.relays[0].set(nil, true)
		began := time.Now()
		for range 5 {
			w.mustHost(t, 1, "")
		}
		if asked, _ := w.relays[0].count(); asked != 1 {
			t.Errorf("the silent relay was asked %d times", asked)
		}
		if took := time.Since(began); took > ReserveWithin { // in the bubble's time
			t.Errorf("took %v", took)
		}
		w.relays[0].set(nil, false)
		time.Sleep(suspectFor + 2*PollEvery)
		w.mustHost(t, 1, "")
		if _, live := w.relays[0].count(); live != 1 {
			t.Errorf("the relay is still avoided")
		}
		if c := w.Nodes()[0]; c.Taken != 2 {
			t.Errorf("%d seats are counted as taken", c.Taken)
		}
	})
}

// TestEveryRelaySilent: the answer comes within two seconds, and names no lack
// of room.
func TestEveryRelaySilent(t *testing.T) {
	t.Parallel()
	var nodes []Node
	for n := range 20 {
		nodes = append(nodes, testNode(n, "eu", 100))
	}
	inWorld(t, nodes, nil, func(t *testing.T, w *world) {
		for _, r := range w.relays {
			r.set(nil, true)
		}
		began := time.Now()
		_, err := w.host(3, "eu")
		wantErr(t, "ReserveHost", err, alloc.ErrUnavailable)
		if errors.Is(err, alloc.ErrStoreUnavailable) {
			t.Errorf("the store is blamed: %v", err)
		}
		if took := time.Since(began); took > ReserveWithin || errors.Is(err, alloc.ErrFull) {
			t.Errorf("after %v: %v", took, err)
		}
		if st := w.Stats(); st.Tries < 3 || st.Silent != st.Tries || !slices.Equal(st.Refused, []Refused{{Region: "eu", Unavailable: 1}}) {
			t.Errorf("%+v", st)
		}
		for _, c := range w.Nodes() {
			if c.Taken != 0 {
				t.Errorf("relay %s: %d seats leaked", c.Control, c.Taken)
			}
		}
	})
}

// TestStaleRoom: a relay that says it is full, or drains, is not asked again
// before it announces something newer.
func TestStaleRoom(t *testing.T) {
	t.Parallel()
	for _, verdict := range []error{alloc.ErrFull, alloc.ErrDraining} {
		inWorld(t, []Node{testNode(0, "eu", 1000), testNode(1, "eu", 1000)}, nil, func(t *testing.T, w *world) {
			for _, r := range w.relays {
				r.set(verdict, false)
			}
			for range 3 {
				_, err := w.host(9, "")
				wantErr(t, "ReserveHost", err, verdict)
			}
			for i, r := range w.relays {
				if asked, _ := r.count(); asked != 1 {
					t.Errorf("%v: relay %d was asked %d times", verdict, i, asked)
				}
				r.set(nil, false)
			}
			time.Sleep(HeartbeatEvery + 2*PollEvery)
			w.mustHost(t, 9, "")
		})
	}
}

// TestRoomForASmallerOne: full for many is not full for few.
func TestRoomForASmallerOne(t *testing.T) {
	t.Parallel()
	inWorld(t, []Node{testNode(0, "eu", 1000)}, nil, func(t *testing.T, w *world) {
		w.relays[0].set(alloc.ErrFull, false)
		_, err := w.host(99, "")
		wantErr(t, "100 seats", err, alloc.ErrFull)
		w.relays[0].set(nil, false)
		_, err = w.host(99, "")
		wantErr(t, "100 seats again", err, alloc.ErrFull)
		w.mustHost(t, 9, "")
	})
}

// TestSmallerRelay: one that takes fewer players per host than others is passed
// over, and named only if there is no other.
func TestSmallerRelay(t *testing.T) {
	t.Parallel()
	inWorld(t, []Node{testNode(0, "eu", 10_000), testNode(1, "eu", 200)}, nil, func(t *testing.T, w *world) {
		w.relays[0].set(alloc.ErrMaxConnections, false)
		w.mustHost(t, 99, "")
		_, err := w.host(199, "")
		wantErr(t, "ReserveHost", err, alloc.ErrMaxConnections)
	})
}

// TestHomeless: a host of which the store does not know is given up.
func TestHomeless(t *testing.T) {
	t.Parallel()
	inWorld(t, []Node{testNode(0, "eu", 100)}, nil, func(t *testing.T, w *world) {
		w.store.setHome = errors.New("odd")
		_, err := w.host(9, "")
		wantErr(t, "ReserveHost", err, alloc.ErrStoreUnavailable)
		synctest.Wait()
		if asked, live := w.relays[0].count(); asked != 1 || live != 0 {
			t.Errorf("asked %d times, %d hosts are left", asked, live)
		}
		if st := w.Stats(); st.Refused[0].Store != 1 || st.Released != 1 || st.ReleasesDropped != 0 {
			t.Errorf("%+v", st)
		}
		if c := w.Nodes()[0]; c.Taken != 0 {
			t.Errorf("%d seats leaked", c.Taken)
		}
	})
}

// endless is a relay that ends nothing.
type endless struct{ Relay }

func (endless) End(context.Context, proto.AllocationID) error { return alloc.ErrUnavailable }

// TestHomelessForGood: a relay that cannot end a reservation is left to let it
// lapse, and that is counted.
func TestHomelessForGood(t *testing.T) {
	t.Parallel()
	dialer := fakeDialer{"0": endless{newFakeEngine(0)}}
	inWorld(t, []Node{testNode(0, "eu", 100)}, func(c *Config) { c.Dialer = dialer }, func(t *testing.T, w *world) {
		w.store.setHome = errors.New("odd")
		_, err := w.host(9, "")
		wantErr(t, "ReserveHost", err, alloc.ErrStoreUnavailable)
		synctest.Wait()
		if st := w.Stats(); st.Refused[0].Store != 1 || st.ReleasesDropped != 1 {
			t.Errorf("%+v", st)
		}
	})
}

func TestReleasesAreBounded(t *testing.T) {
	t.Parallel()
	s := newFakeStore()
	f := New(Config{Registry: s, Directory: s, Dialer: fakeDialer{}})
	for n := range releaseQueue + 7 {
		f.unused.enqueue(Node{}, hostID(n))
	}
	if st := f.Stats(); st.ReleasesDropped != 7 {
		t.Errorf("%d were dropped", st.ReleasesDropped)
	}
}

func TestCallerLeaves(t *testing.T) {
	t.Parallel()
	inWorld(t, []Node{testNode(0, "eu", 100)}, nil, func(t *testing.T, w *world) {
		w.relays[0].set(nil, true)
		ctx, cancel := context.WithCancel(t.Context())
		time.AfterFunc(10*time.Millisecond, cancel)
		_, err := w.ReserveHost(ctx, alloc.HostRequest{Caller: alloc.Caller{Tenant: testTenant}, MaxConnections: 9})
		wantErr(t, "ReserveHost", err, alloc.ErrUnavailable)
		if c := w.Nodes()[0]; c.Suspect || c.Taken != 0 {
			t.Errorf("suspect %v, %d seats taken", c.Suspect, c.Taken)
		}
	})
}

func TestWrongForAnyRelay(t *testing.T) {
	t.Parallel()
	inWorld(t, []Node{testNode(0, "eu", 100), testNode(1, "eu", 100)}, nil, func(t *testing.T, w *world) {
		for _, r := range w.relays {
			r.set(alloc.ErrTenantName, false)
		}
		_, err := w.host(3, "")
		wantErr(t, "ReserveHost", err, alloc.ErrTenantName)
		for _, c := range w.Nodes() {
			if c.Suspect || c.Taken != 0 {
				t.Errorf("relay %s: suspect %v, %d seats taken", c.Control, c.Suspect, c.Taken)
			}
		}
		if st := w.Stats(); st.Tries != 1 {
			t.Errorf("%d relays were asked", st.Tries)
		}
	})
}

func TestDeadRelay(t *testing.T) {
	t.Parallel()
	inWorld(t, []Node{testNode(0, "eu", 1000), testNode(1, "us", 1000)}, nil, func(t *testing.T, w *world) {
		w.running[0]()
		time.Sleep(DeadAfter + ageTolerance)
		_, err := w.host(9, "eu")
		wantErr(t, "host in the dead relay's region", err, alloc.ErrNoRelay)
		if got := w.mustHost(t, 9, ""); w.relays[1].live[got].MaxConnections != 9 {
			t.Error("not placed elsewhere")
		}
		if asked, _ := w.relays[0].count(); asked != 0 {
			t.Error("a dead relay was asked")
		}
		time.Sleep(PollEvery * 2)
		if got := w.Regions(); len(got) != 1 || got[0].ID != "us" {
			t.Errorf("regions %v", got)
		}
		if st := w.Stats(); st.Relays != 2 || st.Dead != 1 || st.Unknown+st.Stopped != 0 {
			t.Errorf("%+v", st)
		}
		time.Sleep(DeadAfter + 3*time.Minute)
		_, err = w.host(9, "eu")
		wantErr(t, "host in an unknown region", err, alloc.ErrRegion)
	})
}

func TestRegions(t *testing.T) {
	t.Parallel()
	us, eu := testNode(0, "us", 10), testNode(1, "eu", 10)
	us.Description, us.QoSAddress = "Ohio", "192.0.2.1:7777"
	eu2 := testNode(2, "eu", 10)
	eu2.Description, eu2.Draining = "Paris", true
	inWorld(t, []Node{us, eu, eu2}, nil, func(t *testing.T, w *world) {
		for _, c := range []struct {
			region string
			seats  int
			room   bool
		}{{"us", 10, true}, {"us", 11, false}, {"eu", 2, true}, {"ap", 2, false}} {
			if w.HasRoom(c.region, c.seats) != c.room {
				t.Errorf("room for %d in %s: %t", c.seats, c.region, !c.room)
			}
		}
		got := w.Regions()
		if len(got) != 2 || got[0] != (alloc.Region{ID: "eu", Description: "Paris"}) ||
			got[1] != (alloc.Region{ID: "us", Description: "Ohio", QoSAddress: "192.0.2.1:7777"}) {
			t.Errorf("%+v", got)
		}
	})
}
