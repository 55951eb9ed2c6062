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
	"github.com/ferryrelay/ferry/internal/test/testkit"
	"github.com/ferryrelay/ferry/scripts/lab"
)

// Time limits of the long form.
const (
	resumeWithin          = 5 * time.Second
	placedElsewhereWithin = 6 * time.Second
	refuseWithin          = 100 * time.Millisecond
	recoverWithin         = 5 * time.Second
	relayDownFor          = 3 * time.Second
	drainDeadline         = 2 * time.Second
	resumedPercent        = 99
)

// maxStoreCall is longer than any call to the store. The quick form tolerates
// stalls of the machine.
func maxStoreCall() time.Duration {
	if *long {
		return 500 * time.Millisecond
	}
	return 2 * time.Second
}

// apiKilled checks that callers that retry on another node notice nothing when
// an API node is killed.
func (b *testbed) apiKilled(t *testing.T) {
	before := b.settleCounts(t)
	retried := b.balancer.retried.Load()
	p := startProbe(probeConfig{balancer: b.balancer, codes: b.matches.codes(), region: eu})
	time.Sleep(500 * time.Millisecond)
	b.apis[0].Kill()
	time.Sleep(2 * time.Second)
	b.restart(t, b.apis[0])
	time.Sleep(500 * time.Millisecond)
	calls := p.stop()
	b.checkCalls(t, calls, p.skipped)
	b.table.checkRow(t, "calls that needed a second try", fmt.Sprint(b.balancer.retried.Load()-retried), "> 0: the node was called",
		b.balancer.retried.Load() > retried)
	b.checkNothingLost(t, before)
}

// relayKilled checks that the matches of a killed relay resume after its
// restart and that nothing else is affected.
func (b *testbed) relayKilled(t *testing.T) {
	relay, others := b.matches.busiest(eu)
	p := startProbe(probeConfig{balancer: b.balancer, codes: b.matches.codes(others...), region: eu})
	time.Sleep(500 * time.Millisecond)
	m := b.relays[relay]
	m.Kill()
	killed := time.Now()
	b.matches.mark(relay)
	time.Sleep(relayDownFor)
	restarted := time.Now()
	b.restart(t, m)
	b.checkResumedInTime(t, b.matches.countByKind(relay), b.waitResumed(t, relay, restarted, restarted.Sub(killed)))
	time.Sleep(500 * time.Millisecond)
	calls := p.stop()
	b.checkCalls(t, calls, p.skipped)
	down := calls.ofKind(allocating).between(killed, restarted)
	there := 0
	for _, s := range down {
		if s.relay == relay && s.at.Add(s.latency).Before(restarted) {
			there++
		}
	}
	b.table.checkRow(t, "hosts placed on the killed relay", fmt.Sprintf("%d of %d", there, len(down)), "0", there == 0 && len(down) > 0)
	well := down.lastFailureAfter(killed)
	b.table.checkTimeRow(t, "hosts are placed elsewhere after", ms(well), "6 s", well <= placedElsewhereWithin)
	b.waitCodesWork(t, restarted, b.matches.codes(relay), m.name+": join codes that work after the restart")
}

// waitResumed waits until all matches of a relay have resumed since mark, and
// returns how many did within 5 s after the restart. downFor is the time from
// mark to the restart.
func (b *testbed) waitResumed(t *testing.T, relay int, restarted time.Time, downFor time.Duration) (inTime [matchKinds]int) {
	t.Helper()
	all := b.matches.countByKind(relay)
	testkit.NoProblemWithin(t, waitTimeout, "the matches of the relay resume", func() string {
		if got := b.matches.resumed(time.Hour, relay); got != all {
			return fmt.Sprintf("%v of %v: %v", got, all, total(b.matches.counts(false)))
		}
		return ""
	})
	b.table.addRow(t, b.relays[relay].name+": all matches resumed", fmt.Sprintf("%d, after %s", sum(all), ms(time.Since(restarted))))
	return b.matches.resumed(downFor+resumeWithin, relay)
}

func (b *testbed) checkResumedInTime(t *testing.T, all, inTime [matchKinds]int) {
	t.Helper()
	for w, n := range all {
		b.table.checkTimeRow(t, "matches that had resumed 5 s after the restart, "+matchKindNames[w],
			fmt.Sprintf("%d of %d", inTime[w], n), "99 %",
			100*inTime[w] >= resumedPercent*n)
	}
}

// storeKilled kills the store and restarts it empty.
func (b *testbed) storeKilled(t *testing.T) {
	b.interruptStore(t, relayDownFor, func() error { b.store.Kill(); return nil }, b.store.start)
}

// storePauses stops the store's process, which keeps its connections.
func (b *testbed) storePauses(t *testing.T) {
	b.interruptStore(t, *storePause,
		func() error { return b.store.Signal(syscall.SIGSTOP) },
		func() error { return b.store.Signal(syscall.SIGCONT) })
}

func (b *testbed) interruptStore(t *testing.T, away time.Duration, down, up func() error) {
	t.Helper()
	before := b.settleCounts(t)
	once := newBalancer(b.net.players, parallelSetups, b.balancer.stalls)
	once.noRetry = true
	defer once.close()
	p := startProbe(probeConfig{balancer: once, codes: b.matches.codes(), region: eu, callWithoutStore: once.getMissingPage})
	time.Sleep(500 * time.Millisecond)
	if err := down(); err != nil {
		t.Fatal(err)
	}
	gone := time.Now()
	time.Sleep(away)
	b.checkNothingLost(t, before)
	back := time.Now()
	if err := up(); err != nil {
		t.Fatal(err)
	}
	b.waitCodesWork(t, back, b.matches.codes(), "join codes of before that work again")
	testkit.NoProblemWithin(t, waitTimeout, "hosts are placed again", func() string {
		if _, refused, err := b.countPlaced(t, eu, 0, 1); refused > 0 {
			return err.Error()
		}
		return ""
	})
	time.Sleep(max(0, recoverWithin-time.Since(back)))
	calls := p.stop()
	// The last calls may be answered after the store is back.
	b.checkRefusals(t, calls.between(gone, back.Add(-maxStoreCall())), gone)
	after := calls.between(back, time.Now())
	for k, name := range storeCallNames {
		well := after.ofKind(kind(k)).lastFailureAfter(back)
		b.table.checkTimeRow(t, name+" works again after", ms(well), "5 s", well <= recoverWithin)
	}
	wrong := calls.statuses()[http.StatusNotFound]
	b.table.checkRow(t, "valid codes that were answered 404", fmt.Sprint(wrong), "0", wrong == 0)
	b.checkNothingLost(t, before)
}

// checkRefusals: calls without the store were refused quickly with 503.
func (b *testbed) checkRefusals(t *testing.T, calls samples, gone time.Time) {
	t.Helper()
	looks := calls.ofKind(checking)
	calls = calls.exceptKind(checking)
	refused := calls.statuses()[http.StatusServiceUnavailable]
	b.table.checkRow(t, "calls answered 503 without the store", fmt.Sprintf("%d of %d", refused, len(calls)), "all",
		refused == len(calls) && refused > 0)
	if refused < len(calls) {
		t.Log(calls.statuses(), calls.firstError())
	}
	all := calls.latencies()
	b.table.checkTimeRow(t, "... within p50, p99, at most", formatQuantiles(all), "100 ms", lab.Quantile(all, 0.99) <= refuseWithin)
	slow, last := 0, time.Duration(0)
	for _, s := range calls {
		if s.latency > refuseWithin {
			slow, last = slow+1, s.at.Sub(gone)
		}
	}
	if slow > 0 {
		b.table.addRow(t, "... of which slower than 100 ms", fmt.Sprintf("%d, the last made %s after the failure", slow, ms(last)))
	}
	b.table.addRow(t, "... and calls that need no store", formatQuantiles(looks.latencies()))
}

func formatQuantiles(all []time.Duration) string {
	return fmt.Sprintf("%s, %s, %s", ms(lab.Quantile(all, 0.5)), ms(lab.Quantile(all, 0.99)), ms(lab.Quantile(all, 1)))
}

// relayDrains checks that a draining relay, the only one of its region, gets no
// new hosts and keeps its matches.
func (b *testbed) relayDrains(t *testing.T) {
	const relay, tries = 2, 30
	before := b.settleCounts(t)
	if _, err := b.ctl(b.net.relays[relay], "drain", "--deadline", "1h"); err != nil {
		t.Fatal(err)
	}
	there, refused, _ := b.countPlaced(t, us, relay, tries)
	b.table.checkRow(t, "hosts that ask for its region: refused, placed there", fmt.Sprintf("%d, %d of %d", refused, there, tries), "all, 0",
		refused == tries && there == 0)
	there, refused, err := b.countPlaced(t, "", relay, tries)
	b.table.checkRow(t, "hosts that ask for none: refused, placed there", fmt.Sprintf("%d, %d of %d", refused, there, tries), "0, 0",
		refused == 0 && there == 0)
	if err != nil {
		t.Log(err)
	}
	b.waitCodesWork(t, time.Now(), b.matches.codes(relay), "joins of its hosts that work")
	b.checkNothingLost(t, before)
	if _, err := b.ctl(b.net.relays[relay], "undrain"); err != nil {
		t.Fatal(err)
	}
	undrained := time.Now()
	testkit.NoProblemWithin(t, waitTimeout, "hosts are placed there again", func() string {
		if there, _, err := b.countPlaced(t, us, relay, 1); there == 0 {
			return fmt.Sprint(err)
		}
		return ""
	})
	b.table.addRow(t, "hosts are placed there again after undrain, after", ms(time.Since(undrained)))
}

// countPlaced allocates hosts in a region and counts those on a relay and those
// refused. why is one of the errors.
func (b *testbed) countPlaced(t *testing.T, region string, relay, tries int) (there, refused int, why error) {
	t.Helper()
	for range tries {
		a, err := b.balancer.Allocate(t.Context(), api.AllocateRequest{MaxConnections: 1, Region: region})
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

// waitReady waits until all API nodes consider a relay ready. Whether hosts are
// placed there depends on its load.
func (b *testbed) waitReady(t *testing.T, relay int) {
	t.Helper()
	testkit.NoProblemWithin(t, waitTimeout, "the API nodes list the relay as ready", func() string {
		for i := range apiCount {
			if states, err := b.states(i); err != nil || states[relay] != "ready" {
				return fmt.Sprint(states, err)
			}
		}
		return ""
	})
}

// rollingRestart drains and restarts all relays in turn, with a deadline before
// the end of the matches.
func (b *testbed) rollingRestart(t *testing.T) {
	p := startProbe(probeConfig{balancer: b.balancer, region: eu})
	var all, inTime [matchKinds]int
	for relay, m := range b.relays {
		if _, err := b.ctl(b.net.relays[relay], "drain", "--deadline", drainDeadline.String()); err != nil {
			t.Fatal(err)
		}
		testkit.NoProblemWithin(t, waitTimeout, "the API nodes list the relay as draining", func() string {
			if states, err := b.states(0); err != nil || states[relay] != "draining" {
				return fmt.Sprint(states, err)
			}
			return ""
		})
		if err := m.Wait(drainDeadline + waitTimeout); err != nil {
			t.Fatalf("%s: %v: %s", m.name, err, m.Log())
		}
		b.matches.mark(relay)
		restarted := time.Now()
		b.restart(t, m)
		all, inTime = addCounts(all, b.matches.countByKind(relay)), addCounts(inTime, b.waitResumed(t, relay, restarted, 0))
		b.waitCodesWork(t, restarted, b.matches.codes(relay), m.name+": join codes that work after the restart")
		b.waitReady(t, relay)
	}
	calls := p.stop()
	b.checkCalls(t, calls, p.skipped)
	b.checkResumedInTime(t, all, inTime)
	c := total(b.matches.counts(true))
	b.table.checkRow(t, "lost matches", fmt.Sprintf("%d of %d", c.failed, sum(all)), "0", c.failed == 0 && c.ended == 0)
}

func (b *testbed) restart(t *testing.T, m *machine) {
	t.Helper()
	if err := m.start(); err != nil {
		t.Fatal(err)
	}
}

// checkCalls checks that no call failed after the second try.
func (b *testbed) checkCalls(t *testing.T, calls samples, skipped int) {
	t.Helper()
	failed := calls.failed()
	b.table.checkRow(t, "calls that failed after a second try", fmt.Sprintf("%d of %d", len(failed), len(calls)), "0",
		len(failed) == 0 && len(calls) > 0)
	if err := calls.firstError(); err != nil {
		t.Log(calls.statuses(), err)
	}
	if skipped > 0 {
		t.Logf("%d calls were not made: too many were unanswered", skipped)
	}
}

// settleCounts returns the counters once two readings in a row have the same
// losses, so that nothing is in flight.
func (b *testbed) settleCounts(t *testing.T) (sums [matchKinds]playerCounts) {
	t.Helper()
	sums = b.matches.counts(true)
	testkit.NoProblemWithin(t, waitTimeout, "nothing is in flight", func() string {
		before := sums
		if sums = b.matches.counts(true); !sameLosses(before, sums) {
			return fmt.Sprint(total(before), total(sums))
		}
		return ""
	})
	return sums
}

func sameLosses(a, b [matchKinds]playerCounts) bool {
	for w := range a {
		if a[w].lost != b[w].lost {
			return false
		}
	}
	return true
}

func (b *testbed) checkNothingLost(t *testing.T, before [matchKinds]playerCounts) {
	t.Helper()
	after := b.matches.counts(true)
	// Datagrams that are still in flight arrive; lost ones do not.
	for deadline := time.Now().Add(waitTimeout / 2); !sameLosses(before, after) && time.Now().Before(deadline); {
		after = b.matches.counts(true)
	}
	for w, now := range after {
		lost, sent := int64(now.lost-before[w].lost), now.sent-before[w].sent
		b.table.checkRow(t, "datagrams lost, "+matchKindNames[w], fmt.Sprintf("%d of %d", lost, sent), "0", lost == 0 && sent > 0)
	}
}

func (b *testbed) waitCodesWork(t *testing.T, since time.Time, codes []string, what string) {
	t.Helper()
	n := len(codes)
	testkit.NoProblemWithin(t, waitTimeout, what, func() string {
		var err error
		if codes, err = b.failedCodes(codes); len(codes) == 0 {
			return ""
		}
		return fmt.Sprintf("%d of %d do not: %v", len(codes), n, err)
	})
	took := time.Since(since)
	b.table.checkTimeRow(t, what, fmt.Sprintf("%d, after %s", n, ms(took)), "5 s", took <= recoverWithin)
}

func (b *testbed) failedCodes(codes []string) (left []string, why error) {
	var mu sync.Mutex // guards the results
	var tasks sync.WaitGroup
	for w := range parallelSetups {
		tasks.Go(func() {
			for i := w; i < len(codes); i += parallelSetups {
				if _, err := b.balancer.Join(context.Background(), codes[i]); err != nil {
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
