package alloc_test

import (
	"errors"
	"testing"

	"github.com/ferryrelay/ferry/alloc"
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
		relays := []*fakeRelay{newFakeRelay(), newFakeRelay()}
		relays[0].hostErr, relays[1].hostErr = c.first, c.second
		p := newPlacer(t, func(_ alloc.HostRequest, all []alloc.Relay) []alloc.Relay { return all }, relays[0], relays[1])
		if _, err := p.ReserveHost(t.Context(), alloc.HostRequest{}); !errors.Is(err, c.want) {
			t.Errorf("%s: error %v", name, err)
		}
		for n, r := range relays {
			if (len(r.hosts) == 1) != (n == c.asked) {
				t.Errorf("%s: relay %d has made %d", name, n, len(r.hosts))
			}
		}
	}

	relays := []*fakeRelay{newFakeRelay(), newFakeRelay()}
	p := newPlacer(t, nil, relays[0], relays[1])
	_, err := p.Describe(t.Context(), proto.AllocationID{1})
	if !errors.Is(err, alloc.ErrNotFound) {
		t.Errorf("no relay has it: %v", err)
	}
	relays[0].describeErr = alloc.ErrUnavailable
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
	for _, relays := range [][]alloc.Relay{nil, {}, {nil}, {newFakeRelay(), nil}, {newFakeRelay(), (*fakeRelay)(nil)}} {
		if p, err := alloc.NewPlacer(relays, nil); p != nil || !errors.Is(err, alloc.ErrConfig) {
			t.Errorf("%v: %v, %v", relays, p, err)
		}
	}
}

func newPlacer(t *testing.T, order func(alloc.HostRequest, []alloc.Relay) []alloc.Relay, relays ...alloc.Relay) *alloc.Placer {
	t.Helper()
	p, err := alloc.NewPlacer(relays, order)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

type regionalRelay struct {
	*fakeRelay
	region string
}

func (r regionalRelay) RelayConfig() alloc.RelayConfig { return alloc.RelayConfig{Region: r.region} }

func TestPlacerRegions(t *testing.T) {
	t.Parallel()
	relays := []*fakeRelay{newFakeRelay(), newFakeRelay(), newFakeRelay()}
	p := newPlacer(t, nil, regionalRelay{relays[0], "eu"}, regionalRelay{relays[1], "us"}, regionalRelay{relays[2], "us"})
	for _, region := range []string{"us", "us", "us", "us", "eu", "eu", "eu"} {
		if _, err := p.ReserveHost(t.Context(), alloc.HostRequest{Region: region}); err != nil {
			t.Fatal(err)
		}
	}
	for n, want := range []int{3, 2, 2} {
		if got := len(relays[n].hosts); got != want {
			t.Errorf("relay %d has %d hosts, want %d", n, got, want)
		}
	}
	relays[0].hostErr = alloc.ErrFull
	if _, err := p.ReserveHost(t.Context(), alloc.HostRequest{Region: "eu"}); !errors.Is(err, alloc.ErrFull) {
		t.Errorf("another region took the host: %v", err)
	}
	if _, err := p.ReserveHost(t.Context(), alloc.HostRequest{Region: "asia"}); err != nil {
		t.Errorf("no relay has the region: %v", err)
	}
}
