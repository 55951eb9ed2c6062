package placement

import (
	"context"
	"errors"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ferryrelay/ferry/alloc"
	"github.com/ferryrelay/ferry/proto"
)

// regionalWorld is a fleet of two regions, each with a store and a relay.
type regionalWorld struct {
	*Regional
	stores  map[string]*fakeStore
	engines map[string]*fakeEngine
	kill    map[string]context.CancelFunc // the relay of the region
}

// inRegionalWorld runs a test in a bubble. Other processes of the same fleet are made by again.
func inRegionalWorld(t *testing.T, test func(t *testing.T, w *regionalWorld, again func() *Regional)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		w := &regionalWorld{stores: map[string]*fakeStore{}, engines: map[string]*fakeEngine{}, kill: map[string]context.CancelFunc{}}
		dialer := make(fakeDialer)
		ctx, cancel := context.WithCancel(t.Context())
		for i, region := range []string{"eu", "us"} {
			s, e, n := newFakeStore(), newFakeEngine(i), testNode(i, region, 1000)
			w.stores[region], w.engines[region], dialer[n.Control] = s, e, e
			life, kill := context.WithCancel(ctx)
			w.kill[region] = kill
			go func() {
				for life.Err() == nil {
					_, _ = s.Announce(life, n)
					select {
					case <-time.After(HeartbeatEvery):
					case <-life.Done():
					}
				}
			}()
		}
		var done []chan error
		again := func() *Regional {
			var members []Member
			for region, symbol := range map[string]string{"eu": "6", "us": "T"} {
				f := New(Config{Registry: w.stores[region], Directory: w.stores[region], Dialer: dialer, Seed: 1})
				members = append(members, Member{f, region, symbol})
			}
			r := NewRegional(members...)
			ended := make(chan error)
			done = append(done, ended)
			go func() { ended <- r.Run(ctx) }()
			synctest.Wait()
			return r
		}
		synctest.Wait()
		w.Regional = again()
		test(t, w, again)
		cancel()
		for _, ended := range done {
			if err := <-ended; err != nil {
				t.Errorf("Run: %v", err)
			}
		}
	})
}

func (w *regionalWorld) reserve(region string) (alloc.Reservation, error) {
	return w.ReserveHost(context.Background(), alloc.HostRequest{Caller: alloc.Caller{Tenant: testTenant}, MaxConnections: 1, Region: region})
}

// codeFor gives a host the code that a service would draw.
func codeFor(t *testing.T, r *Regional, host proto.AllocationID) string {
	t.Helper()
	codes := r.Codes()
	prefix, n, err := codes.Codes(t.Context(), testTenant, host)
	wantErr(t, "Codes", err, nil)
	code := prefix + "789BCD" + "6789"[n:n+1]
	stored, err := codes.PutCode(t.Context(), testTenant, code, host)
	if err != nil || !stored {
		t.Fatalf("PutCode %s: %t, %v", code, stored, err)
	}
	return code
}

// TestRegionalStoreAway: while the store of a region is away, calls of that region are unavailable, and
// those of the other one are as before, also in a process that starts then.
func TestRegionalStoreAway(t *testing.T) {
	t.Parallel()
	inRegionalWorld(t, func(t *testing.T, w *regionalWorld, again func() *Regional) {
		hosts, codes := map[string]proto.AllocationID{}, map[string]string{}
		for _, region := range []string{"eu", "us"} {
			res, err := w.reserve(region)
			wantErr(t, region, err, nil)
			hosts[region] = res.ID
			codes[region] = codeFor(t, w.Regional, res.ID)
			if res.Region != region {
				t.Errorf("a host of %s is in %q", region, res.Region)
			}
		}
		if codes["eu"][0] != '6' || codes["us"][0] != 'T' {
			t.Errorf("the codes are %v", codes)
		}
		other := again()
		for _, region := range []string{"eu", "us"} {
			host, err := other.Codes().HostOf(t.Context(), testTenant, codes[region])
			if host != hosts[region] {
				t.Errorf("another process finds %v by %s: %v", host, codes[region], err)
			}
		}
		_, err := w.reserve("mars")
		wantErr(t, "an unknown region", err, alloc.ErrRegion)

		w.stores["us"].fail(errBroken)
		time.Sleep(staleAfter + PollEvery)
		late := again()
		for name, r := range map[string]*Regional{"a process from before": w.Regional, "another": other, "one that starts now": late} {
			began := time.Now()
			request := alloc.HostRequest{Caller: alloc.Caller{Tenant: testTenant}, MaxConnections: 1}
			for _, region := range []string{"eu", ""} {
				request.Region = region
				res, err := r.ReserveHost(t.Context(), request)
				if err != nil || res.Region != "eu" {
					t.Errorf("%s: a host in %q is in %q: %v", name, region, res.Region, err)
				}
			}
			codeFor(t, r, mustReserve(t, r, "eu"))
			_, err := r.ReserveJoiner(t.Context(), alloc.JoinerRequest{Caller: alloc.Caller{Tenant: testTenant}, Host: hosts["eu"]})
			wantErr(t, name+": a join in eu", err, nil)
			wantErr(t, name+": KeepCode in eu", r.KeepCode(t.Context(), hosts["eu"], codes["eu"]), nil)
			_, err = r.Codes().HostOf(t.Context(), testTenant, "6WWWWWW")
			wantErr(t, name+": an unknown code of eu", err, alloc.ErrCodeNotFound)
			request.Region = "us"
			_, err = r.ReserveHost(t.Context(), request)
			wantErr(t, name+": a host in us", err, alloc.ErrStoreUnavailable)
			_, err = r.Codes().HostOf(t.Context(), testTenant, codes["us"])
			wantErr(t, name+": a code of us", err, alloc.ErrStoreUnavailable)
			_, err = r.Describe(t.Context(), hosts["us"])
			wantErr(t, name+": a host of us", err, alloc.ErrStoreUnavailable)
			if took := time.Since(began); took > 0 {
				t.Errorf("%s: the calls waited for %v", name, took)
			}
			if away, all := r.StoresAway(); all || len(away) != 1 || away[0].Region != "us" || r.Ready() == nil {
				t.Errorf("%s: away are %v, all %t; %v", name, away, all, r.Ready())
			}
			if r.HasRoom("us", 2) || !r.HasRoom("eu", 2) {
				t.Errorf("%s: room in us %t, in eu %t", name, r.HasRoom("us", 2), r.HasRoom("eu", 2))
			}
			for _, n := range r.Nodes() {
				if n.Unknown != (n.Region == "us") {
					t.Errorf("%s: the relay of %s is unknown: %t", name, n.Region, n.Unknown)
				}
			}
		}

		w.stores["us"].lose() // Its relay announces itself again within HeartbeatEvery.
		w.stores["us"].fail(nil)
		for began := time.Now(); time.Since(began) < HeartbeatEvery+PollEvery*2; time.Sleep(PollEvery / 10) {
			if _, err := w.reserve("us"); err != nil {
				wantErr(t, "a host in us while its relay is not known", err, alloc.ErrStoreUnavailable)
			}
		}
		for _, r := range []*Regional{w.Regional, other, late} {
			_, err := r.ReserveJoiner(t.Context(), alloc.JoinerRequest{Caller: alloc.Caller{Tenant: testTenant}, Host: mustReserve(t, r, "us")})
			wantErr(t, "a join in us", err, nil)
			if regions := r.Regions(); len(regions) != 2 || regions[0].ID != "eu" || r.Ready() != nil {
				t.Errorf("regions %v, %v", regions, r.Ready())
			}
		}
	})
}

func mustReserve(t *testing.T, r *Regional, region string) proto.AllocationID {
	t.Helper()
	res, err := r.ReserveHost(t.Context(), alloc.HostRequest{Caller: alloc.Caller{Tenant: testTenant}, MaxConnections: 1, Region: region})
	wantErr(t, "a host in "+region, err, nil)
	return res.ID
}

// TestRegionalWithoutRegion: a host without a region goes to the preferred region, else to the least
// loaded one, and to another one if that is full or its relays do not answer.
func TestRegionalWithoutRegion(t *testing.T) {
	t.Parallel()
	inRegionalWorld(t, func(t *testing.T, w *regionalWorld, _ func() *Regional) {
		var placed []string
		for range 4 {
			res, err := w.reserve("")
			wantErr(t, "a host", err, nil)
			placed = append(placed, res.Region)
		}
		if !slices.Equal(placed, []string{"eu", "us", "eu", "us"}) {
			t.Errorf("placed in %v", placed)
		}
		w.engines["eu"].set(alloc.ErrFull, false)
		res, err := w.reserve("")
		if err != nil || res.Region != "us" {
			t.Errorf("the least loaded is full: %q, %v", res.Region, err)
		}
		w.engines["us"].set(alloc.ErrFull, false)
		_, err = w.reserve("")
		wantErr(t, "all are full", err, alloc.ErrFull)
		for _, s := range w.stores {
			s.fail(errBroken)
		}
		time.Sleep(staleAfter + PollEvery)
		_, err = w.reserve("")
		wantErr(t, "all are away", err, alloc.ErrStoreUnavailable)
	})
}

// TestRegionWithoutRelay: a region whose only relay is dead is not full, also when the store has forgotten the
// relay; another region takes a host that may go anywhere.
func TestRegionWithoutRelay(t *testing.T) {
	t.Parallel()
	inRegionalWorld(t, func(t *testing.T, w *regionalWorld, _ func() *Regional) {
		refused := func(what, region string) {
			t.Helper()
			_, err := w.reserve(region)
			wantErr(t, what, err, alloc.ErrNoRelay)
			if errors.Is(err, alloc.ErrFull) || !errors.Is(err, alloc.ErrUnavailable) {
				t.Errorf("%s: %v", what, err)
			}
		}
		w.kill["eu"]()
		time.Sleep(DeadAfter + PollEvery)
		refused("a dead relay", "eu")
		if res, err := w.reserve(""); err != nil || res.Region != "us" {
			t.Errorf("a host for any region: %q, %v", res.Region, err)
		}
		w.kill["us"]()
		time.Sleep(DeadAfter + PollEvery)
		refused("all relays are dead", "")
		if err := w.stores["eu"].Withdraw(t.Context(), testNode(0, "eu", 1).Relay, testNode(0, "eu", 1).Boot); err != nil {
			t.Fatal(err)
		}
		time.Sleep(HealFor + 2*PollEvery)
		refused("a relay that the store has forgotten", "eu")
		want := []Refused{{Region: "", NoRelay: 1}, {Region: "eu", NoRelay: 2}}
		if got := w.Stats().Refused; !slices.Equal(got, want) {
			t.Errorf("%+v, want %+v", got, want)
		}
	})
}
