//go:build lab && linux

package fleet

import (
	"context"
	"fmt"
	"net/http"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/ferryrelay/ferry/alloc/api"
	"github.com/ferryrelay/ferry/internal/testkit"
	"github.com/ferryrelay/ferry/scripts/lab"
)

// Goals of the issue, in time.
const (
	resumeWithin   = 5 * time.Second
	elsewhereIn    = 6 * time.Second
	refuseWithin   = 100 * time.Millisecond
	recoverWithin  = 5 * time.Second
	relayDownFor   = 3 * time.Second
	drainDeadline  = 2 * time.Second
	resumedPercent = 99
)

// lateAnswers is longer than any call to the store, also on a machine that stands
// still meanwhile, which the long form does not tolerate.
func lateAnswers() time.Duration {
	if *long {
		return 500 * time.Millisecond
	}
	return 2 * time.Second
}

// apiKilled: a caller that uses the other node after a failure notices nothing of the
// death of one.
func (y *testbed) apiKilled(t *testing.T) {
	before := y.settled(t)
	retried := y.balancer.retried.Load()
	p := startProbe(probed{balancer: y.balancer, codes: y.matches.codes(), region: eu})
	time.Sleep(500 * time.Millisecond)
	y.apis[0].Kill()
	time.Sleep(2 * time.Second)
	y.again(t, y.apis[0])
	time.Sleep(500 * time.Millisecond)
	calls := p.stop()
	y.calls(t, calls, p.skipped)
	y.table.check(t, "calls that needed a second try", fmt.Sprint(y.balancer.retried.Load()-retried), "> 0: the node was asked", y.balancer.retried.Load() > retried)
	y.nothingLost(t, before)
}

// relayKilled: its matches come back with it, and nothing else notices.
func (y *testbed) relayKilled(t *testing.T) {
	relay, others := y.matches.busiest(eu)
	p := startProbe(probed{balancer: y.balancer, codes: y.matches.codes(others...), region: eu})
	time.Sleep(500 * time.Millisecond)
	m := y.relays[relay]
	m.Kill()
	killed := time.Now()
	y.matches.mark(relay)
	time.Sleep(relayDownFor)
	restarted := time.Now()
	y.again(t, m)
	y.cameBack(t, y.matches.by(relay), y.resumed(t, relay, restarted, restarted.Sub(killed)))
	time.Sleep(500 * time.Millisecond)
	calls := p.stop()
	y.calls(t, calls, p.skipped)
	down := calls.of(allocating).between(killed, restarted)
	there := 0
	for _, s := range down {
		if s.relay == relay && s.at.Add(s.took).Before(restarted) {
			there++
		}
	}
	y.table.check(t, "hosts led to the dead relay", fmt.Sprintf("%d of %d", there, len(down)), "0", there == 0 && len(down) > 0)
	well := down.wellAfter(killed)
	y.table.measure(t, "hosts are placed elsewhere after", ms(well), "6 s", well <= elsewhereIn)
	y.codesWork(t, restarted, y.matches.codes(relay), m.name+": join codes that work after the restart")
}

// resumed waits until all matches of a relay carry traffic both ways since the
// mark, and returns how many did within 5 s after the restart, so long after the
// mark.
func (y *testbed) resumed(t *testing.T, relay int, restarted time.Time, downFor time.Duration) (inTime [wayCount]int) {
	t.Helper()
	all := y.matches.by(relay)
	testkit.NoProblemWithin(t, waitTimeout, "the matches of the relay go on", func() string {
		if got := y.matches.resumed(time.Hour, relay); got != all {
			return fmt.Sprintf("%v of %v: %v", got, all, total(y.matches.counts(false)))
		}
		return ""
	})
	y.table.add(t, y.relays[relay].name+": all of its matches had resumed", fmt.Sprintf("%d, after %s", sum(all), ms(time.Since(restarted))))
	return y.matches.resumed(downFor+resumeWithin, relay)
}

// cameBack judges how many of the matches of relays that were started again had
// resumed in time.
func (y *testbed) cameBack(t *testing.T, all, inTime [wayCount]int) {
	t.Helper()
	for w, n := range all {
		y.table.measure(t, "matches that had resumed 5 s after the restart, "+wayNames[w], fmt.Sprintf("%d of %d", inTime[w], n), "99 %",
			100*inTime[w] >= resumedPercent*n)
	}
}

// storeKilled: the store is killed and restarts empty.
func (y *testbed) storeKilled(t *testing.T) {
	y.storeGone(t, relayDownFor, func() error { y.store.Kill(); return nil }, y.store.start)
}

// storePauses: the store keeps its connections and does not answer.
func (y *testbed) storePauses(t *testing.T) {
	y.storeGone(t, *storePause,
		func() error { return y.store.Signal(syscall.SIGSTOP) },
		func() error { return y.store.Signal(syscall.SIGCONT) })
}

// storeGone takes the store away for a while.
func (y *testbed) storeGone(t *testing.T, away time.Duration, down, up func() error) {
	t.Helper()
	before := y.settled(t)
	once := newBalancer(y.net.players, enrolling, y.balancer.stalls)
	once.once = true
	defer once.close()
	p := startProbe(probed{balancer: once, codes: y.matches.codes(), region: eu, look: once.look})
	time.Sleep(500 * time.Millisecond)
	if err := down(); err != nil {
		t.Fatal(err)
	}
	gone := time.Now()
	time.Sleep(away)
	y.nothingLost(t, before)
	back := time.Now()
	if err := up(); err != nil {
		t.Fatal(err)
	}
	y.codesWork(t, back, y.matches.codes(), "join codes of before that work again")
	testkit.NoProblemWithin(t, waitTimeout, "hosts are placed again", func() string {
		if _, refused, err := y.placed(t, eu, 0, 1); refused > 0 {
			return err.Error()
		}
		return ""
	})
	time.Sleep(max(0, recoverWithin-time.Since(back)))
	calls := p.stop()
	// What was asked last may be answered by a store that is back.
	y.refusals(t, calls.between(gone, back.Add(-lateAnswers())), gone)
	after := calls.between(back, time.Now())
	for k, name := range needStore {
		well := after.of(kind(k)).wellAfter(back)
		y.table.measure(t, name+" works again after", ms(well), "5 s", well <= recoverWithin)
	}
	wrong := calls.statuses()[http.StatusNotFound]
	y.table.check(t, "good codes that were called wrong (404)", fmt.Sprint(wrong), "0", wrong == 0)
	y.nothingLost(t, before)
}

// refusals judges what was answered while the store was gone.
func (y *testbed) refusals(t *testing.T, calls samples, gone time.Time) {
	t.Helper()
	looks := calls.of(looking)
	calls = calls.without(looking)
	refused := calls.statuses()[http.StatusServiceUnavailable]
	y.table.check(t, "calls answered 503 while it is gone", fmt.Sprintf("%d of %d", refused, len(calls)), "all",
		refused == len(calls) && refused > 0)
	if refused < len(calls) {
		t.Log(calls.statuses(), calls.first())
	}
	all := calls.latencies()
	y.table.measure(t, "... within p50, p99, at most", spread(all), "100 ms", lab.Quantile(all, 0.99) <= refuseWithin)
	slow, last := 0, time.Duration(0)
	for _, s := range calls {
		if s.took > refuseWithin {
			slow, last = slow+1, s.at.Sub(gone)
		}
	}
	if slow > 0 {
		y.table.add(t, "... of which slower than 100 ms", fmt.Sprintf("%d, the last made %s after it went", slow, ms(last)))
	}
	y.table.add(t, "... and calls that need no store", spread(looks.latencies()))
}

// spread is latencies in order of length: half of them, nearly all, the longest.
func spread(all []time.Duration) string {
	return fmt.Sprintf("%s, %s, %s", ms(lab.Quantile(all, 0.5)), ms(lab.Quantile(all, 0.99)), ms(lab.Quantile(all, 1)))
}

// relayDrains: nothing new goes to the only relay of a region, and what is there
// goes on.
func (y *testbed) relayDrains(t *testing.T) {
	const relay, tries = 2, 30
	before := y.settled(t)
	if _, err := y.ctl(y.net.relays[relay], "drain", "--deadline", "1h"); err != nil {
		t.Fatal(err)
	}
	there, refused, _ := y.placed(t, us, relay, tries)
	y.table.check(t, "hosts that ask for its region: refused, placed there", fmt.Sprintf("%d, %d of %d", refused, there, tries), "all, 0",
		refused == tries && there == 0)
	there, refused, err := y.placed(t, "", relay, tries)
	y.table.check(t, "hosts that ask for none: refused, placed there", fmt.Sprintf("%d, %d of %d", refused, there, tries), "0, 0",
		refused == 0 && there == 0)
	if err != nil {
		t.Log(err)
	}
	y.codesWork(t, time.Now(), y.matches.codes(relay), "joins of its hosts that work")
	y.nothingLost(t, before)
	if _, err := y.ctl(y.net.relays[relay], "undrain"); err != nil {
		t.Fatal(err)
	}
	undrained := time.Now()
	testkit.NoProblemWithin(t, waitTimeout, "hosts are placed there again", func() string {
		if there, _, err := y.placed(t, us, relay, 1); there == 0 {
			return fmt.Sprint(err)
		}
		return ""
	})
	y.table.add(t, "hosts are placed there again after undrain, after", ms(time.Since(undrained)))
}

// placed allocates hosts in a region and counts those on a relay and those that
// were refused. The error is that of one of them.
func (y *testbed) placed(t *testing.T, region string, relay, tries int) (there, refused int, why error) {
	t.Helper()
	for range tries {
		a, err := y.balancer.Allocate(t.Context(), api.AllocateRequest{MaxConnections: 1, Region: region})
		switch {
		case err != nil:
			refused++
			why = err
		case relayOf(a, "udp") == relay:
			there++
		}
	}
	return there, refused, why
}

// ready waits until all API nodes take a relay for one that takes hosts. Whether
// any is placed there depends on how busy it is.
func (y *testbed) ready(t *testing.T, relay int) {
	t.Helper()
	testkit.NoProblemWithin(t, waitTimeout, "API nodes know that the relay is back", func() string {
		for i := range apiCount {
			if states, err := y.states(i); err != nil || states[relay] != "ready" {
				return fmt.Sprint(states, err)
			}
		}
		return ""
	})
}

// rollingRestart: all relays are drained, end at a deadline that comes before
// the matches end, and start again, one after the other.
func (y *testbed) rollingRestart(t *testing.T) {
	p := startProbe(probed{balancer: y.balancer, region: eu})
	var all, inTime [wayCount]int
	for relay, m := range y.relays {
		if _, err := y.ctl(y.net.relays[relay], "drain", "--deadline", drainDeadline.String()); err != nil {
			t.Fatal(err)
		}
		testkit.NoProblemWithin(t, waitTimeout, "API nodes know that the relay drains", func() string {
			if states, err := y.states(0); err != nil || states[relay] != "draining" {
				return fmt.Sprint(states, err)
			}
			return ""
		})
		if err := m.Wait(drainDeadline + waitTimeout); err != nil {
			t.Fatalf("%s: %v: %s", m.name, err, m.Log())
		}
		y.matches.mark(relay)
		restarted := time.Now()
		y.again(t, m)
		all, inTime = plus(all, y.matches.by(relay)), plus(inTime, y.resumed(t, relay, restarted, 0))
		y.codesWork(t, restarted, y.matches.codes(relay), m.name+": join codes that work after the restart")
		// The next one may only go when this one takes hosts again.
		y.ready(t, relay)
	}
	calls := p.stop()
	y.calls(t, calls, p.skipped)
	y.cameBack(t, all, inTime)
	c := total(y.matches.counts(true))
	y.table.check(t, "lost matches", fmt.Sprintf("%d of %d", c.dead, sum(all)), "0", c.dead == 0 && c.ended == 0)
}

// again starts a machine that has ended.
func (y *testbed) again(t *testing.T, m *machine) {
	t.Helper()
	if err := m.start(); err != nil {
		t.Fatal(err)
	}
}

// calls judges that no call failed after the client's second try.
func (y *testbed) calls(t *testing.T, calls samples, skipped int) {
	t.Helper()
	failed := calls.failed()
	y.table.check(t, "calls that failed after a second try", fmt.Sprintf("%d of %d", len(failed), len(calls)), "0",
		len(failed) == 0 && len(calls) > 0)
	if err := calls.first(); err != nil {
		t.Log(calls.statuses(), err)
	}
	if skipped > 0 {
		t.Logf("%d calls were not made: too many waited", skipped)
	}
}

// settled returns what players have lived through so far, with nothing under way:
// as much is missing at the next look.
func (y *testbed) settled(t *testing.T) (sums [wayCount]seen) {
	t.Helper()
	sums = y.matches.counts(true)
	testkit.NoProblemWithin(t, waitTimeout, "nothing is under way", func() string {
		before := sums
		if sums = y.matches.counts(true); !alike(before, sums) {
			return fmt.Sprint(total(before), total(sums))
		}
		return ""
	})
	return sums
}

// alike reports whether as many datagrams were lost by each way.
func alike(a, b [wayCount]seen) bool {
	for w := range a {
		if a[w].lost != b[w].lost {
			return false
		}
	}
	return true
}

// nothingLost judges that no datagram was lost since before, by any way.
func (y *testbed) nothingLost(t *testing.T, before [wayCount]seen) {
	t.Helper()
	after := y.matches.counts(true)
	// What is under way for longer arrives; what was lost does not.
	for deadline := time.Now().Add(waitTimeout / 2); !alike(before, after) && time.Now().Before(deadline); {
		after = y.matches.counts(true)
	}
	for w, now := range after {
		lost, sent := int64(now.lost-before[w].lost), now.sent-before[w].sent
		y.table.check(t, "datagrams lost, "+wayNames[w], fmt.Sprintf("%d of %d", lost, sent), "0", lost == 0 && sent > 0)
	}
}

// codesWork waits until players can join by all of the codes.
func (y *testbed) codesWork(t *testing.T, since time.Time, codes []string, what string) {
	t.Helper()
	n := len(codes)
	testkit.NoProblemWithin(t, waitTimeout, what, func() string {
		var err error
		if codes, err = y.refused(codes); len(codes) == 0 {
			return ""
		}
		return fmt.Sprintf("%d of %d do not: %v", len(codes), n, err)
	})
	took := time.Since(since)
	y.table.measure(t, what, fmt.Sprintf("%d, after %s", n, ms(took)), "5 s", took <= recoverWithin)
}

// refused joins by codes and returns those that did not work, and why one did
// not.
func (y *testbed) refused(codes []string) (left []string, why error) {
	var mu sync.Mutex // guards the results
	var tasks sync.WaitGroup
	for w := range enrolling {
		tasks.Go(func() {
			for i := w; i < len(codes); i += enrolling {
				if _, err := y.balancer.Join(context.Background(), codes[i]); err != nil {
					mu.Lock()
					left, why = append(left, codes[i]), err
					mu.Unlock()
				}
			}
		})
	}
	tasks.Wait()
	return left, why
}

func ms(d time.Duration) string { return d.Round(time.Millisecond).String() }
