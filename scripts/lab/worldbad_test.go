//go:build lab && linux

package lab

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/ferryrelay/ferry/alloc/api"
	"github.com/ferryrelay/ferry/internal/test/testkit"
)

// recoversWithin is how long a bad day may last after its cause is gone.
const recoversWithin = 60 * time.Second

// TestWorldBadDays takes something from a relay that plays, and gives it back. Players
// notice nothing, an operator finds a line and a metric, and everything is as before, without
// a restart, a minute after it is back.
func TestWorldBadDays(t *testing.T) {
	for _, day := range []struct {
		name string
		run  func(t *testing.T)
	}{
		{"the disk is full", fullDiskDay},
		{"no descriptor is left", noDescriptorDay},
	} {
		t.Run(day.name, func(t *testing.T) {
			t.Parallel()
			day.run(t)
		})
	}
}

// until waits until cond holds, and logs and returns how long that took.
func (l *lab) until(what string, within time.Duration, cond func() bool) time.Duration {
	l.Helper()
	begin := time.Now()
	for !cond() {
		if time.Since(begin) > within {
			l.Errorf("not within %v: %s", within, what)
			break
		}
		time.Sleep(20 * time.Millisecond)
	}
	l.Logf("%s: after %v", what, time.Since(begin).Round(10*time.Millisecond))
	return time.Since(begin)
}

// metricIs returns whether a metric has a value; false while there is no answer.
func (l *lab) metricIs(name string, want float64) func() bool {
	return func() bool {
		all, err := l.relay.Metrics()
		return err == nil && all[name] == want
	}
}

// fullDiskDay: the disk of the state directory is full, and free again. Then the process is
// killed, and the next one knows all that the first one did.
func fullDiskDay(t *testing.T) {
	l := newLab(t, func(c *RelayConfig) {
		state := filepath.Join(c.Dir, stateName)
		err := os.Mkdir(state, 0o700)
		if err == nil {
			err = unix.Mount("tmpfs", state, "tmpfs", 0, fmt.Sprintf("size=%d,mode=0700", smallDisk))
		}
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = unix.Unmount(state, unix.MNT_DETACH) })
		c.Tokens, c.Flags = 4, []string{"--bind-timeout", "5m"}
	})
	f, codes := l.fleet(l.players(10, 30))
	filler, err := FillDisk(l.relay.StateDir())
	if err != nil {
		t.Fatal(err)
	}
	n, before := 0, f.SettleTo(0)
	for ; n < beyondDisk && (n%100 != 0 || l.metric("ferry_state_file_complete") == 1); n++ {
		if _, err := l.relay.API(l.net.Clients, n%4).Allocate(t.Context(), api.AllocateRequest{MaxConnections: 1}); err != nil {
			t.Fatal(err)
		}
	}
	l.until("the relay knows that it cannot store", 10*time.Second, l.metricIs("ferry_state_file_complete", 0))
	if got := f.SettleTo(before.Lost()).Since(before); got.Lost() != 0 || got.Sent == 0 {
		t.Errorf("%d of %d datagrams were lost", got.Lost(), got.Sent)
	}
	// What happens meanwhile must not be lost either.
	calls := l.relay.API(l.net.Clients, 0)
	late, err := calls.Allocate(t.Context(), api.AllocateRequest{MaxConnections: 1})
	if err != nil {
		t.Fatal(err)
	}
	lateCode, err := calls.JoinCode(t.Context(), late.AllocationID)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Remove(filler); err != nil {
		t.Fatal(err)
	}
	l.until("the state file is complete again", recoversWithin, l.metricIs("ferry_state_file_complete", 1))
	l.requireTraffic(f, 10*time.Second)

	l.relay.Kill()
	l.start()
	if n := l.metric("ferry_state_file_complete"); n != 1 {
		t.Errorf("the next run: ferry_state_file_complete is %v", n)
	}
	l.requireTraffic(f, 20*time.Second)
	l.requireNoFailures(f.Counts())
	l.requireJoinCodes(codes[:5])
	// Its host has not come back yet: the code is known, and its player is to try again.
	var problem *api.Problem
	if _, err := l.relay.API(l.net.Clients, 0).Join(t.Context(), lateCode); !errors.As(err, &problem) ||
		problem.Status != http.StatusServiceUnavailable {
		t.Errorf("a code of while the disk was full: %v, want 503", err)
	}
}

func (l *lab) processorTime() time.Duration {
	l.Helper()
	tasks, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/schedstat", l.relay.cmd.Process.Pid))
	if err != nil || len(tasks) == 0 {
		l.Fatal("no threads", err)
	}
	var total, n int64
	for _, task := range tasks {
		if raw, err := os.ReadFile(task); err == nil { // It may have ended.
			fmt.Sscan(string(raw), &n)
			total += n
		}
	}
	return time.Duration(total)
}

// noDescriptorDay: silent connections hold all descriptors. /livez answers, players and the
// processor notice nothing, one line tells it, and the API is back when they are gone.
func noDescriptorDay(t *testing.T) {
	l := newLab(t, nil)
	f, codes := l.fleet(l.players(5, 30))
	if err := l.relay.LimitFiles(fewFiles); err != nil {
		t.Fatal(err)
	}
	before := f.SettleTo(0)
	idle := l.processorTime()
	time.Sleep(2 * time.Second)
	idle = l.processorTime() - idle
	release := l.holdConnections(heldConns)
	testkit.Eventually(t, "no descriptor is left", func() bool { return l.files() >= fewFiles })
	if l.caller(firstAttacker, 2*time.Second).getRegions(t.Context()) {
		t.Error("the API answers: this day decides nothing")
	}
	begin, used, live, missed := time.Now(), l.processorTime(), 0, 0
	for time.Since(begin) < 4*time.Second {
		if l.isLive() {
			live, missed = live+1, 0
		} else if missed++; missed == 2 { // An orchestrator restarts a process after three.
			t.Errorf("/livez does not answer: %s", l.relay.Log())
			break
		}
		time.Sleep(200 * time.Millisecond)
	}
	used = time.Duration(float64(l.processorTime()-used) * 2 / time.Since(begin).Seconds())
	t.Logf("/livez answered %d times; %v of processor time in 2 s, %v before", live, used.Round(time.Millisecond),
		idle.Round(time.Millisecond))
	if used > idle+time.Second { // A loop without waits takes 2 s and more.
		t.Errorf("it spins: %v of processor time in 2 s, %v before", used, idle)
	}
	if n := l.metric("ferry_accept_failed_total"); n == 0 {
		t.Error("the metric does not show it")
	}
	if n := strings.Count(l.relay.Log(), `"attempts":`); n != 1 {
		t.Errorf("%d lines: %s", n, l.relay.Log())
	}
	got := f.SettleTo(before.Lost()).Since(before)
	recordAttack(t, attackResult{
		attack: "silent API connections", rate: fmt.Sprintf("%d connections", heldConns), honest: delivered(got),
		state: fmt.Sprintf("all %d descriptors", fewFiles), damage: got.Lost() != 0 || got.Sent == 0,
	})
	release()
	l.until("the API is back", recoversWithin, func() bool { return l.caller(firstAttacker, 2*time.Second).getRegions(t.Context()) })
	l.until("a line says so", recoversWithin, func() bool { return strings.Contains(l.relay.Log(), "connections are accepted again") })
	l.requireNoFailures(f.Counts())
	l.requireJoinCodes(codes[:5])
}

func (l *lab) isLive() bool {
	ctx, cancel := context.WithTimeout(l.Context(), 5*time.Second)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+adminAddr+"/livez", nil)
	if err != nil {
		l.Fatal(err)
	}
	resp, err := l.relay.admin.Do(req)
	if err != nil {
		l.Log(err)
		return false
	}
	_ = resp.Body.Close()
	return resp.StatusCode == http.StatusOK
}
