//go:build lab && linux

package lab

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ferryrelay/ferry/alloc/api"
	"github.com/ferryrelay/ferry/internal/test/testkit"
)

const (
	fewFiles = 64
	// heldConns is the number of silent connections, enough to replace those that
	// the relay closes.
	heldConns   = 600
	alarmWithin = 15 * time.Second
	// smallDisk is the size in bytes of a disk for an identity and about a thousand
	// allocations.
	smallDisk  = 256 << 10
	beyondDisk = 6000
)

func (l *lab) holdConnections(n int) (release func()) {
	l.Helper()
	var conns []net.Conn
	err := l.net.Clients.Do(func() error {
		for range n {
			conn, err := net.Dial("tcp", RelayAddr.String())
			if err != nil {
				return err
			}
			conns = append(conns, conn)
		}
		return nil
	})
	release = func() {
		for _, conn := range conns {
			// It may be closed already.
			_ = conn.Close()
		}
		conns = nil
	}
	l.Cleanup(release)
	if err != nil {
		l.Fatal(err)
	}
	return release
}

// TestDiskAtStart verifies that a relay with an identity starts on a full or
// read-only disk with its previous matches, and knows the fault.
func TestDiskAtStart(t *testing.T) {
	l := newLab(t, nil)
	f, _ := l.fleet(l.players(30, 30))
	state := l.relay.StateDir()
	identity, err := os.ReadFile(filepath.Join(state, "identity"))
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		name  string
		spoil func() error
	}{
		{"full", func() error { _, err := FillDisk(state); return err }},
		{"read-only", func() error { return ReadOnly(state) }},
	} {
		l.cfg.Prepare = func() error {
			if err := PrivateDisk(state, smallDisk); err != nil {
				return err
			}
			return errors.Join(os.WriteFile(filepath.Join(state, "identity"), identity, 0o600),
				os.WriteFile(filepath.Join(state, "lock"), nil, 0o600), c.spoil())
		}
		if err := l.relay.Stop(); err != nil {
			t.Fatal(err)
		}
		l.start()
		testkit.Eventually(t, c.name+": nothing can be stored", func() bool { return l.metric("ferry_state_file_complete") == 0 })
		l.requireTraffic(f, 10*time.Second)
		l.requireNoFailures(f.Counts())
		if _, err := l.relay.API(l.net.Clients, 0).Allocate(t.Context(), api.AllocateRequest{MaxConnections: 1}); err != nil {
			t.Errorf("%s: %v", c.name, err)
		}
		t.Logf("%s: %v", c.name, f.Counts())
	}
}

// backends is the number of API tokens that allocate: each may make 6,000 calls
// per minute.
const backends = 100

// TestMemoryCap verifies that a relay limited to 256 MiB answers 503 under a
// flood and maximum allocations and is never killed.
func TestMemoryCap(t *testing.T) {
	limit := int64(*memoryCap) * mebi
	if why := Missing(); why == "" {
		if probe, err := NewMemoryCap(limit); err == nil {
			probe.Remove()
		} else if os.Getenv("CI") == "true" {
			t.Fatal(err)
		} else {
			t.Skip(err)
		}
	}
	var bound MemoryCap
	l := newLab(t, func(c *RelayConfig) {
		var err error
		if bound, err = NewMemoryCap(limit); err != nil {
			t.Fatal(err)
		}
		c.Cap, c.Tokens, c.Flags = &bound, backends, []string{"--bind-timeout", "1h"}
	})
	f, _ := l.fleet(l.players(10, 30))
	rubbish := l.spoofedPackets(func() []byte { return Malformed(l.rng) })
	got := new(apiResults)
	for range maxAllocationRounds {
		before := got.full.Load()
		pressure := l.startAllocating(*memoryDuration, got)
		l.flood(20_000, *memoryDuration, rubbish)
		pressure()
		if !*long || before > 0 {
			break // the memory was full before this round
		}
	}
	kills, err := bound.Kills()
	if err != nil {
		t.Fatal(err)
	}
	peak, err := bound.Peak()
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("%d allocations made, %d refused with 503, %d with 429, %d otherwise; peak %d MiB, RSS %d MiB, %d killed",
		got.made.Load(), got.full.Load(), got.limited.Load(), got.other.Load(), peak/mebi, l.rss()/mebi, kills)
	if kills != 0 || !l.relay.Alive() {
		t.Errorf("the kernel killed %d processes", kills)
	}
	if got.other.Load() != 0 {
		t.Errorf("%d answers were neither 201 nor 503 nor 429, such as: %v", got.other.Load(), got.firstError())
	}
	if got.made.Load() == 0 {
		t.Error("nothing was allocated")
	}
	if *long && got.full.Load() == 0 {
		t.Error("never answered 503: the pressure was too low to decide anything")
	}
	l.requireNoFailures(f.Counts())
	l.requireTraffic(f, 10*time.Second)
	recordAttack(t, attackResult{
		attack: "allocations up to a memory limit, and a flood", rate: fmt.Sprintf("%d allocations", got.made.Load()),
		honest: "all matches continue", state: fmt.Sprintf("%d of %d MiB", peak/mebi, *memoryCap),
	})
}

type apiResults struct {
	made, full, limited, other atomic.Int64
	err                        atomic.Pointer[error]
}

func (a *apiResults) firstError() error {
	if e := a.err.Load(); e != nil {
		return *e
	}
	return nil
}

func (a *apiResults) record(err error) {
	var problem *api.Problem
	switch {
	case err == nil:
		a.made.Add(1)
	case errors.As(err, &problem) && problem.Status == http.StatusServiceUnavailable:
		a.full.Add(1)
	case errors.As(err, &problem) && problem.Status == http.StatusTooManyRequests:
		a.limited.Add(1)
	case errors.Is(err, context.DeadlineExceeded):
	default:
		a.other.Add(1)
		a.err.CompareAndSwap(nil, &err)
	}
}

// maxAllocationRounds bounds the rounds of the long form: a slow machine needs
// several to fill the memory.
const maxAllocationRounds = 6

func (l *lab) startAllocating(d time.Duration, got *apiResults) (wait func()) {
	ctx, cancel := context.WithTimeout(l.Context(), d)
	var done sync.WaitGroup
	for w := range 4 {
		done.Go(func() {
			var callers []*api.Client
			for b := w; b < backends; b += 4 {
				callers = append(callers, l.relay.API(l.net.Clients, b))
			}
			for i := 0; ctx.Err() == nil; i++ {
				_, err := callers[i%len(callers)].Allocate(ctx, api.AllocateRequest{MaxConnections: 100})
				if ctx.Err() == nil {
					got.record(err)
				}
			}
		})
	}
	return func() {
		done.Wait()
		cancel()
	}
}

const (
	slowEach    = 20
	honestEvery = 20 * time.Millisecond
)

var firstAttacker = netip.AddrFrom4([4]byte{198, 18, 128, 1})

// TestSlowCallers verifies that the API serves regular callers while thousands
// of clients from many addresses send one byte per second.
func TestSlowCallers(t *testing.T) {
	// With a trusted proxy set, the limit per address applies to all other addresses.
	l := newLab(t, func(c *RelayConfig) { c.Flags = []string{"--trusted-proxies", "192.0.2.1/32"} })
	f, _ := l.fleet(l.players(20, 30))
	baseline, failed := l.measureCalls(*slowDuration / 4)
	if failed > 0 {
		t.Fatalf("%d of %d callers were not served before the attack", failed, len(baseline)+failed)
	}
	before := f.Settle()
	slow := NewSlowClients(l.net.Clients, RelayAddr, firstAttacker, *slowCallers, slowEach)
	l.background(slow.Run)
	testkit.Eventually(t, "the slow clients are connected", func() bool { return slow.Open()+slow.Closed() >= *slowCallers })
	took, failed := l.measureCalls(*slowDuration)
	got := f.Settle().Since(before)
	t.Logf("%d slow clients, %d disconnected so far; regular: %d served, %d not, p50 %v, p99 %v, longest %v; baseline p50 %v, p99 %v",
		slow.Open(), slow.Closed(), len(took), failed, Quantile(took, 0.5), Quantile(took, 0.99), Quantile(took, 1),
		Quantile(baseline, 0.5), Quantile(baseline, 0.99))
	t.Logf("%v; RSS %d MiB, %d descriptors; closed for the limit %.0f, for that of an address %.0f", got, l.rss()/mebi, l.files(),
		l.metric(`ferry_http_connections_refused_total{reason="evicted_total"}`),
		l.metric(`ferry_http_connections_refused_total{reason="evicted_address"}`))
	if float64(failed) > 0.01*float64(failed+len(took)) {
		t.Errorf("%d of %d regular callers were not served, goal 1 %%", failed, failed+len(took))
	}
	if p99 := Quantile(took, 0.99); *long && p99 > 250*time.Millisecond {
		t.Errorf("p99 of regular callers %v, goal 250 ms", p99)
	}
	testkit.Eventually(t, "slow clients are disconnected", func() bool { return slow.Closed() > 0 })
	l.requireNoFailures(f.Counts())
	l.requireTraffic(f, 10*time.Second)
	recordAttack(t, attackResult{
		attack: "slow API requests", rate: fmt.Sprintf("%d connections", *slowCallers), p99: Quantile(took, 0.99),
		honest: fmt.Sprintf("%d of %d API calls", len(took), len(took)+failed), state: fmt.Sprintf("%d connections", slow.Open()),
	})
}

func (l *lab) measureCalls(d time.Duration) (took []time.Duration, failed int) {
	l.Helper()
	from, within := FirstClient, 4*time.Second // shorter than the relay's limit for a slow connection
	if *long {
		within = 2 * time.Second
	}
	for end := time.Now().Add(d); time.Now().Before(end); time.Sleep(honestEvery) {
		begin := time.Now()
		if l.caller(from, within).getRegions(l.Context()) {
			took = append(took, time.Since(begin))
		} else {
			failed++
		}
		if from = from.Next(); !from.Less(firstAttacker) {
			from = FirstClient
		}
	}
	slices.Sort(took)
	return took, failed
}

// apiCaller is an API client that uses a new connection for each call.
type apiCaller struct{ *api.Client }

func (l *lab) caller(from netip.Addr, within time.Duration) apiCaller {
	c := l.relay.API(l.net.Clients, 0)
	c.HTTP = &http.Client{Timeout: within, Transport: &http.Transport{
		DisableKeepAlives: true,
		DialContext: func(ctx context.Context, network, addr string) (conn net.Conn, err error) {
			err = l.net.Clients.Do(func() error {
				d := net.Dialer{LocalAddr: &net.TCPAddr{IP: from.AsSlice()}}
				conn, err = d.DialContext(ctx, network, addr)
				return err
			})
			return conn, err
		},
	}}
	return apiCaller{c}
}

func (c apiCaller) getRegions(ctx context.Context) bool {
	_, err := c.Regions(ctx)
	return err == nil
}
