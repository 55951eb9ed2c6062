//go:build lab && linux

package lab

import (
	"context"
	"errors"
	"net/http"
	"sync"
	"testing"
	"time"

	"github.com/ferryrelay/ferry/alloc/api"
	"github.com/ferryrelay/ferry/internal/test/testkit"
)

const (
	soakMatches = 150
	soakCallers = 4
	// soakRate is the number of datagrams per player and second.
	soakRate = 5
	// unboundOne is the inverse of the share of allocations that are never bound.
	unboundOne = 10
	// keptCodes is how many of the last join codes are tried after the end.
	keptCodes = 50
	// slackGoroutines allows for calls in progress: two goroutines per caller, and
	// those of the metrics request.
	slackGoroutines = 2*soakCallers + 2
	// slackFiles allows for the connections of the callers and of the metrics.
	slackFiles = soakCallers + 2
)

type soakForm struct {
	life  time.Duration // of a match
	every time.Duration // between samples
	// empty bounds the time from the last client to empty tables: the time-outs,
	// and the expiry pause of 30 s when very many allocations would expire at once.
	empty time.Duration
	// abrupt: the last clients stop all at once, which causes an expiry pause.
	abrupt bool
	flags  []string // of the relay
}

func newSoakForm() soakForm {
	if *long {
		return soakForm{life: 20 * time.Second, every: 10 * time.Second, empty: 100 * time.Second, abrupt: true}
	}
	// A host without a joiner sends PING every 3 s, and the machine may stall.
	return soakForm{life: 3 * time.Second, every: 250 * time.Millisecond, empty: 60 * time.Second, flags: []string{
		"--bind-timeout", "7s", "--idle-timeout", "7s", "--host-alone-timeout", "9s",
	}}
}

type usage struct {
	at                     time.Duration
	rss, goroutines, files int
	anon, heap             float64 // anonymous memory and heap in use, in bytes
}

// measureUsage takes a sample. It reads the descriptors before the metrics
// request opens one.
func (l *lab) measureUsage(begin time.Time) usage {
	l.Helper()
	u := usage{files: l.files(), rss: l.rss(), at: time.Since(begin)}
	all, err := l.relay.Metrics()
	if err != nil {
		l.Fatal(err)
	}
	u.goroutines = int(all["go_goroutines"])
	u.anon, u.heap = all["process_resident_memory_anon_bytes"], all["go_memstats_heap_inuse_bytes"]
	return u
}

// idleUsage returns the lowest usage within two seconds, since connections take
// a while to close.
func (l *lab) idleUsage() usage {
	l.Helper()
	least := l.measureUsage(time.Now())
	for range 10 {
		time.Sleep(200 * time.Millisecond)
		if u := l.measureUsage(time.Now()); u.goroutines+u.files <= least.goroutines+least.files {
			least = u
		}
	}
	return least
}

// TestSoak verifies that memory, goroutines and descriptors stay constant while
// clients join and leave, and return to the initial values afterwards.
func TestSoak(t *testing.T) {
	form := newSoakForm()
	l := newLab(t, func(c *RelayConfig) { c.Flags = form.flags })
	caller := l.relay.API(l.net.Clients, 0)
	// Without a limit the transport may dial a connection that no call then uses.
	caller.HTTP.Transport.(*http.Transport).MaxConnsPerHost = soakCallers
	if _, err := caller.Regions(t.Context()); err != nil {
		t.Fatal(err) // warm-up: the first call allocates
	}
	caller.HTTP.CloseIdleConnections()
	idle := l.idleUsage()

	codes, all := l.runSoak(form, caller)
	l.requireSteady(all, idle)
	last := time.Now()
	for l.tableEntries() > 0 && time.Since(last) < form.empty {
		time.Sleep(100 * time.Millisecond)
	}
	t.Logf("%.1f s after the last client %v entries are left in the tables", time.Since(last).Seconds(), l.tableEntries())
	if n := l.tableEntries(); n > 0 {
		t.Errorf("%v entries are left in the tables", n)
	}
	l.requireCodesUnknown(caller, codes)
	caller.HTTP.CloseIdleConnections()
	var end usage
	testkit.Eventually(t, "goroutines and descriptors are as before", func() bool {
		end = l.measureUsage(last)
		return end.goroutines == idle.goroutines && end.files == idle.files
	})
	t.Logf("idle before: %d goroutines, %d descriptors, RSS %d KiB; after: %d, %d, %d KiB",
		idle.goroutines, idle.files, idle.rss>>10, end.goroutines, end.files, end.rss>>10)
}

// tableEntries returns the number of allocations, bindings and links.
func (l *lab) tableEntries() float64 {
	l.Helper()
	all, err := l.relay.Metrics()
	if err != nil {
		l.Fatal(err)
	}
	return all["ferry_allocations"] + all["ferry_bound"] + all["ferry_links"]
}

func (l *lab) runSoak(form soakForm, caller *api.Client) (codes []string, all []usage) {
	l.Helper()
	cfg := l.players(soakMatches+soakCallers, soakRate)
	cfg.Ports, cfg.MatchDuration = 8, form.life
	f, err := NewFleet(cfg)
	if err != nil {
		l.Fatal(err)
	}
	playing, quit := context.WithCancel(l.Context())
	defer quit()
	coming, enough := context.WithTimeout(playing, *soakDuration)
	defer enough()
	var game, callers sync.WaitGroup
	game.Go(func() {
		if err := f.Run(playing); err != nil {
			l.Error(err)
		}
	})
	kept := make(chan string, keptCodes)
	for range soakCallers {
		callers.Go(func() { l.addMatchesUntilDone(coming, caller, f, kept) })
	}
	begin := time.Now()
	for coming.Err() == nil {
		all = append(all, l.measureUsage(begin))
		select {
		case <-coming.Done():
		case <-time.After(form.every):
		}
	}
	callers.Wait()
	for !form.abrupt && f.Matches() > 0 {
		time.Sleep(10 * time.Millisecond)
	}
	quit()
	game.Wait()
	close(kept)
	for code := range kept {
		codes = append(codes, code)
	}
	c := f.Counts()
	l.Log(c)
	l.requireNoFailures(c)
	if c.Ended == 0 || c.Received == 0 || len(codes) == 0 {
		l.Error("no match ended: this run decides nothing")
	}
	return codes, all
}

// addMatchesUntilDone keeps soakMatches matches running until ctx is done, and
// makes some allocations that are never bound.
func (l *lab) addMatchesUntilDone(ctx context.Context, caller *api.Client, f *Fleet, kept chan string) {
	for n := 1; ctx.Err() == nil; n++ {
		if f.Matches() >= soakMatches {
			time.Sleep(5 * time.Millisecond)
			continue
		}
		var err error
		if n%unboundOne == 0 {
			_, err = caller.Allocate(ctx, api.AllocateRequest{MaxConnections: 10})
		} else {
			var code string
			if code, err = addMatch(ctx, caller, f); err == nil {
				pushLatest(kept, code)
			}
		}
		if err != nil && ctx.Err() == nil {
			l.Errorf("a match could not be set up: %v", err)
			return
		}
	}
}

// pushLatest adds a value to a channel and discards the oldest if it is full.
func pushLatest(kept chan string, code string) {
	for {
		select {
		case kept <- code:
			return
		default:
		}
		select {
		case <-kept:
		default:
		}
	}
}

// requireSteady checks that nothing grows after the first third of the samples.
func (l *lab) requireSteady(all []usage, idle usage) {
	l.Helper()
	all = all[len(all)/3:]
	if len(all) < 3 {
		l.Fatal("too few samples")
	}
	low, high := all[0], all[0]
	var rss, anon, heap, goroutines []Point
	for _, u := range all {
		low.rss, high.rss = min(low.rss, u.rss), max(high.rss, u.rss)
		low.goroutines, high.goroutines = min(low.goroutines, u.goroutines), max(high.goroutines, u.goroutines)
		low.files, high.files = min(low.files, u.files), max(high.files, u.files)
		rss = append(rss, Point{u.at, float64(u.rss) / mebi})
		anon, heap = append(anon, Point{u.at, u.anon / mebi}), append(heap, Point{u.at, u.heap / mebi})
		goroutines = append(goroutines, Point{u.at, float64(u.goroutines)})
	}
	l.Logf("%d samples after the warm-up: RSS %.1f to %.1f MiB, first %.1f, last %.1f; goroutines %d to %d; descriptors %d to %d",
		len(all), float64(low.rss)/mebi, float64(high.rss)/mebi, rss[0].Value, rss[len(rss)-1].Value,
		low.goroutines, high.goroutines, low.files, high.files)
	if *long { // A slope over seconds is noise.
		slope := Slope(rss, time.Hour)
		l.Logf("slopes: RSS %+.3f MiB/h, of it in no file %+.3f, heap in use %+.3f; goroutines %+.2f/h", slope,
			Slope(anon, time.Hour), Slope(heap, time.Hour), Slope(goroutines, time.Hour))
		if slope > 1 {
			l.Errorf("RSS grows by %.2f MiB/h, goal at most 1", slope)
		}
	}
	if grown := high.rss - all[0].rss; grown > 16*mebi {
		l.Errorf("RSS grew by %d KiB after the warm-up", grown>>10)
	}
	if high.goroutines > idle.goroutines+slackGoroutines {
		l.Errorf("%d goroutines, idle %d", high.goroutines, idle.goroutines)
	}
	if high.files > idle.files+slackFiles {
		l.Errorf("%d descriptors, idle %d", high.files, idle.files)
	}
}

func (l *lab) requireCodesUnknown(caller *api.Client, codes []string) {
	l.Helper()
	for _, code := range codes {
		_, err := caller.Join(l.Context(), code)
		var problem *api.Problem
		if !errors.As(err, &problem) || problem.Status != http.StatusNotFound {
			l.Errorf("a join code of a match that is over: %v", err)
			return
		}
	}
	l.Logf("%d join codes tried, all unknown", len(codes))
}
