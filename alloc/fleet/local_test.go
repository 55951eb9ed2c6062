package fleet

import (
	"context"
	"errors"
	"math"
	"strings"
	"sync"
	"testing"

	"github.com/ferryrelay/ferry/alloc"
	"github.com/ferryrelay/ferry/proto"
)

func TestNewLocalRefuses(t *testing.T) {
	t.Parallel()
	for name, change := range map[string]func(*LocalConfig){
		"Engine":               func(c *LocalConfig) { c.Engine = nil },
		"Seats":                func(c *LocalConfig) { c.Seats = 0 },
		"Overcommit is -1":     func(c *LocalConfig) { c.Overcommit = -1 },
		"Overcommit is NaN":    func(c *LocalConfig) { c.Overcommit = math.NaN() },
		"Overcommit is +Inf":   func(c *LocalConfig) { c.Overcommit = math.Inf(1) },
		"Overcommit is 0.0001": func(c *LocalConfig) { c.Overcommit = 0.0001 },
		"makes 1e+10 seats":    func(c *LocalConfig) { c.Overcommit = 1e8 },
	} {
		cfg := LocalConfig{Engine: newFakeEngine(0), Seats: 100}
		change(&cfg)
		if _, err := NewLocal(cfg); !errors.Is(err, ErrConfig) || !strings.Contains(err.Error(), name) {
			t.Errorf("%s: error %v does not name it", name, err)
		}
	}
}

func newTestLocal(t *testing.T, seats int, overcommit float64) (*Local, *fakeEngine, *Announcer) {
	t.Helper()
	e, s := newFakeEngine(0), newFakeStore()
	a, err := NewAnnouncer(AnnouncerConfig{Registry: s, Directory: s, Node: func() Node { return Node{} }})
	if err != nil {
		t.Fatal(err)
	}
	l, err := NewLocal(LocalConfig{Engine: e, Seats: seats, Overcommit: overcommit, Announcer: a})
	if err != nil {
		t.Fatal(err)
	}
	e.onEnd = l.Ended
	return l, e, a
}

func wantSeats(t *testing.T, l *Local, all, taken int) {
	t.Helper()
	if a, n := l.Seats(); a != all || n != taken {
		t.Errorf("%d of %d seats are taken, want %d of %d", n, a, taken, all)
	}
}

func reserve(t *testing.T, l *Local, max int) (alloc.Reservation, error) {
	return l.ReserveHost(t.Context(), alloc.HostRequest{Tenant: testTenant, MaxConnections: max})
}

func TestLocalSeats(t *testing.T) {
	t.Parallel()
	l, e, a := newTestLocal(t, 10, 0)
	first, err := reserve(t, l, 4)
	wantErr(t, "5 of 10", err, nil)
	_, err = reserve(t, l, 5)
	wantErr(t, "6 of 5", err, alloc.ErrFull)
	if asked, _ := e.count(); asked != 1 {
		t.Errorf("the engine was asked %d times", asked)
	}
	_, err = reserve(t, l, 4)
	wantErr(t, "5 of 5", err, nil)
	wantSeats(t, l, 10, 10)
	wantErr(t, "KeepCode", l.KeepCode(t.Context(), first.ID, "6789BC"), nil)
	if got := a.hosts.find(first.ID); got == nil || got.held().Code != "6789BC" || e.kept[first.ID] != "6789BC" {
		t.Errorf("the announcer holds %+v", got)
	}
	wantErr(t, "KeepCode of nobody", l.KeepCode(t.Context(), hostID(99), "6789BC"), alloc.ErrNotFound)
	_, err = l.ReserveJoiner(t.Context(), alloc.JoinerRequest{Tenant: testTenant, Host: first.ID})
	wantErr(t, "a joiner, whose seat is taken already", err, nil)
	wantSeats(t, l, 10, 10)
	wantErr(t, "End", l.End(t.Context(), first.ID), nil)
	l.Ended(first.ID)
	wantSeats(t, l, 10, 5)
	if st := a.Stats(); st.Hosts != 1 || st.Ends != 1 {
		t.Errorf("%+v", st)
	}
	_, err = l.Describe(t.Context(), first.ID)
	wantErr(t, "Describe", err, alloc.ErrNotFound)
	for _, max := range []int{0, -1, math.MaxUint16 + 1, math.MaxInt} {
		_, err = reserve(t, l, max)
		wantErr(t, "nonsense", err, alloc.ErrMaxConnections)
	}
	e.set(alloc.ErrDraining, false)
	_, err = reserve(t, l, 1)
	wantErr(t, "the engine drains", err, alloc.ErrDraining)
	wantSeats(t, l, 10, 5)
}

func TestLocalOvercommit(t *testing.T) {
	t.Parallel()
	for factor, want := range map[float64]int{0: 10, 1: 10, 1.5: 15, 0.5: 5, 2.99: 29} {
		l, _, _ := newTestLocal(t, 10, factor)
		wantSeats(t, l, want, 0)
	}
}

// TestLocalReturned: hosts of before have their seats even where there are
// none, and once.
func TestLocalReturned(t *testing.T) {
	t.Parallel()
	l, _, a := newTestLocal(t, 10, 0)
	for range 2 {
		l.Returned(hostID(1000), 1, 8)
		l.Returned(hostID(1001), 1, 8)
	}
	wantSeats(t, l, 10, 18)
	if st := a.Stats(); st.Hosts != 2 {
		t.Errorf("%+v", st)
	}
	_, err := reserve(t, l, 1)
	wantErr(t, "beyond that", err, alloc.ErrFull)
	l.Ended(hostID(1000))
	l.Ended(hostID(1000))
	l.Ended(hostID(1002))
	wantSeats(t, l, 10, 9)
}

// earlyEngine ends what it reserves before it says so.
type earlyEngine struct{ *fakeEngine }

func (e earlyEngine) ReserveHost(ctx context.Context, r alloc.HostRequest) (alloc.Reservation, error) {
	res, err := e.fakeEngine.ReserveHost(ctx, r)
	if err == nil {
		err = e.End(ctx, res.ID)
	}
	return res, err
}

// TestLocalEndsEarly: a host that ends before anybody knows its id leaves no
// seat taken and no entry held.
func TestLocalEndsEarly(t *testing.T) {
	t.Parallel()
	l, e, a := newTestLocal(t, 10, 0)
	l.engine = earlyEngine{e}
	_, err := reserve(t, l, 4)
	wantErr(t, "ReserveHost", err, alloc.ErrUnavailable)
	wantSeats(t, l, 10, 0)
	if st := a.Stats(); st.Hosts != 0 {
		t.Errorf("%+v", st)
	}
}

// TestLocalAtOnce: many at once take what there is, and give all of it back.
func TestLocalAtOnce(t *testing.T) {
	t.Parallel()
	l, e, _ := newTestLocal(t, 100, 0)
	var mu sync.Mutex
	var made []proto.AllocationID
	var refused int
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			for range 50 {
				res, err := reserve(t, l, 1)
				mu.Lock()
				if err == nil {
					made = append(made, res.ID)
				} else {
					refused++
				}
				mu.Unlock()
			}
		})
	}
	wg.Wait()
	if len(made) != 50 || refused != 350 {
		t.Fatalf("%d were made, %d refused", len(made), refused)
	}
	wantSeats(t, l, 100, 100)
	for _, id := range made {
		wg.Go(func() { _ = e.End(context.Background(), id) })
	}
	wg.Wait()
	wantSeats(t, l, 100, 0)
}
