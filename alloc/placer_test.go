package alloc_test

import (
	"errors"
	"testing"

	"github.com/ferryrelay/ferry/alloc"
	"github.com/ferryrelay/ferry/internal/test/alloctest"
	"github.com/ferryrelay/ferry/proto"
)

// TestPlacer: a host goes to the first relay that can take it, and an answer is that of the relay
// that has the allocation.
func TestPlacer(t *testing.T) {
	t.Parallel()
	refused := errors.New("refused")
	for name, c := range map[string]struct {
		first, second error // of ReserveHost
		want          error
		asked         int // relays that made it
	}{
		"first":            {nil, nil, nil, 0},
		"first full":       {alloc.ErrFull, nil, nil, 1},
		"first drains":     {alloc.ErrDraining, nil, nil, 1},
		"first is down":    {alloc.ErrUnavailable, nil, nil, 1},
		"none":             {alloc.ErrUnavailable, alloc.ErrFull, alloc.ErrFull, -1},
		"refused at first": {refused, nil, refused, -1},
	} {
		relays := []*alloctest.Relay{alloctest.NewRelay(), alloctest.NewRelay()}
		relays[0].Fail(c.first, "ReserveHost")
		relays[1].Fail(c.second, "ReserveHost")
		p := newPlacer(t, func(_ alloc.HostRequest, all []alloc.Relay) []alloc.Relay { return all }, relays[0], relays[1])
		if _, err := p.ReserveHost(t.Context(), alloc.HostRequest{}); !errors.Is(err, c.want) {
			t.Errorf("%s: error %v", name, err)
		}
		for n, r := range relays {
			if (len(r.Hosts) == 1) != (n == c.asked) {
				t.Errorf("%s: relay %d has made %d", name, n, len(r.Hosts))
			}
		}
	}

	relays := []*alloctest.Relay{alloctest.NewRelay(), alloctest.NewRelay()}
	p := newPlacer(t, nil, relays[0], relays[1])
	_, err := p.Describe(t.Context(), proto.AllocationID{1})
	if !errors.Is(err, alloc.ErrNotFound) {
		t.Errorf("no relay has it: %v", err)
	}
	relays[0].Fail(alloc.ErrUnavailable)
	if _, err := p.Describe(t.Context(), proto.AllocationID{1}); !errors.Is(err, alloc.ErrUnavailable) {
		t.Errorf("a relay may still have it: %v", err)
	}
	host, err := relays[1].ReserveHost(t.Context(), alloc.HostRequest{})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := p.Describe(t.Context(), host.ID); err != nil {
		t.Errorf("the second relay has it: %v", err)
	}
}

// TestPlacerOfNil: a relay that was not set is an error of the constructor, not of the first call.
func TestPlacerOfNil(t *testing.T) {
	t.Parallel()
	for _, relays := range [][]alloc.Relay{nil, {}, {nil}, {alloctest.NewRelay(), nil}, {alloctest.NewRelay(), (*alloctest.Relay)(nil)}} {
		if p, err := alloc.NewPlacer(relays, nil); p != nil || !errors.Is(err, alloc.ErrConfig) {
			t.Errorf("%v: %v, %v", relays, p, err)
		}
	}
}

func newPlacer(t *testing.T, order func(alloc.HostRequest, []alloc.Relay) []alloc.Relay, relays ...alloc.Relay) alloc.Relay {
	t.Helper()
	p, err := alloc.NewPlacer(relays, order)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func TestPlacerRegions(t *testing.T) {
	t.Parallel()
	relays := []*alloctest.Relay{alloctest.NewRelay(), alloctest.NewRelay(), alloctest.NewRelay()}
	relays[0].Config.Region, relays[1].Config.Region, relays[2].Config.Region = "eu", "us", "us"
	p := newPlacer(t, nil, relays[0], relays[1], relays[2])
	for _, region := range []string{"us", "us", "us", "us", "eu", "eu", "eu"} {
		if _, err := p.ReserveHost(t.Context(), alloc.HostRequest{Region: region}); err != nil {
			t.Fatal(err)
		}
	}
	for n, want := range []int{3, 2, 2} {
		if got := len(relays[n].Hosts); got != want {
			t.Errorf("relay %d has %d hosts, want %d", n, got, want)
		}
	}
	relays[0].Fail(alloc.ErrFull)
	if _, err := p.ReserveHost(t.Context(), alloc.HostRequest{Region: "eu"}); !errors.Is(err, alloc.ErrFull) {
		t.Errorf("another region took the host: %v", err)
	}
	if _, err := p.ReserveHost(t.Context(), alloc.HostRequest{Region: "asia"}); err != nil {
		t.Errorf("no relay has the region: %v", err)
	}
}

// TestPlacerUnsupported: what one relay cannot do, another one does.
func TestPlacerUnsupported(t *testing.T) {
	t.Parallel()
	plain, full := alloctest.NewRelay(), alloctest.NewRelay()
	plain.Config.HostMigration = false
	plain.Fail(errors.ErrUnsupported, "MigrateHost", "LeaveHost", "Observe")
	p := newPlacer(t, nil, plain, full)
	s := newTestService(t, p, func(c *alloc.ServiceConfig) { c.HostMigration = true })
	host, err := full.ReserveHost(t.Context(), alloc.HostRequest{
		Caller: alloc.Caller{Tenant: testTenant}, PlayerHash: alloc.HashPlayer(testTenant, "alice"),
	})
	if err != nil {
		t.Fatal(err)
	}
	code := mustCode(t, s, alice, host.ID)
	wantError(t, "leave", s.Leave(t.Context(), alice, host.ID, alloc.ConnectionData{8}), nil)
	_, err = s.Migrate(t.Context(), bob, code, alloc.ConnectionData{})
	wantError(t, "migrate", err, nil)
	wantError(t, "leave of no host", s.Leave(t.Context(), alice, proto.AllocationID{1}, alloc.ConnectionData{8}), alloc.ErrNotFound)
	if err := full.End(t.Context(), host.ID); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Join(t.Context(), bob, code); !errors.Is(err, alloc.ErrCodeNotFound) {
		t.Errorf("the service has not heard of the end: %v", err)
	}
	if only := newPlacer(t, nil, plain); only.RelayConfig().HostMigration {
		t.Error("host migration without a relay that has it")
	}
	broken := errors.New("broken")
	plain.Fail(broken, "Observe")
	for name, relay := range map[string]alloc.Relay{"relay": plain, "placer": p} {
		_, err := alloc.NewService(alloc.ServiceConfig{Relay: relay, Store: alloc.NewMemoryStore(), Regions: testRegions})
		wantError(t, name+" that fails to be observed", err, broken)
	}
}
