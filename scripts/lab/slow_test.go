//go:build lab && linux

package lab

import (
	"context"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/ferryrelay/ferry/alloc/api"
	"github.com/ferryrelay/ferry/internal/testkit"
)

const (
	// slowEach is how many slow callers come from one address.
	slowEach = 20
	// honestEvery is the time between two honest callers, who come once each.
	honestEvery = 20 * time.Millisecond
)

// firstAttacker is the first address of AttackerReplyRange.
var firstAttacker = netip.AddrFrom4([4]byte{198, 18, 128, 1})

// TestSlowCallers is F26 and H3: thousands of callers from many addresses send
// a byte a second, and whoever has something to say is served.
func TestSlowCallers(t *testing.T) {
	// That a proxy is named makes the limit per address hold for all others.
	l := newLab(t, func(c *RelayConfig) { c.Flags = []string{"--trusted-proxies", "192.0.2.1/32"} })
	f, _ := l.fleet(l.players(20, 30))
	calm, failed := l.honest(*slowDuration / 4)
	if failed > 0 {
		t.Fatalf("%d of %d callers were not served before the attack", failed, len(calm)+failed)
	}
	before := f.Settle()
	slow := NewSlowCallers(l.net.Clients, RelayAddr, firstAttacker, *slowCallers, slowEach)
	l.background(slow.Run)
	testkit.Eventually(t, "the slow callers have come", func() bool { return slow.Open()+slow.Cut() >= *slowCallers })
	took, failed := l.honest(*slowDuration)
	got := f.Settle().Since(before)
	t.Logf("%d slow callers, %d cut off so far; honest: %d served, %d not, p50 %v, p99 %v, longest %v; calm p50 %v, p99 %v",
		slow.Open(), slow.Cut(), len(took), failed, Quantile(took, 0.5), Quantile(took, 0.99), Quantile(took, 1),
		Quantile(calm, 0.5), Quantile(calm, 0.99))
	t.Logf("%v; RSS %d MiB, %d descriptors; refused %.0f for all, %.0f for one address", got, l.rss()/mebi, l.files(),
		l.metric(`ferry_http_connections_refused_total{reason="total"}`), l.metric(`ferry_http_connections_refused_total{reason="address"}`))
	if float64(failed) > 0.01*float64(failed+len(took)) {
		t.Errorf("%d of %d honest callers were not served, goal 1 %%", failed, failed+len(took))
	}
	if p99 := Quantile(took, 0.99); *long && p99 > 250*time.Millisecond {
		t.Errorf("p99 of honest callers %v, goal 250 ms", p99)
	}
	testkit.Eventually(t, "slow callers are cut off", func() bool { return slow.Cut() > 0 })
	l.unharmed(f.Counts())
	l.alive(f, 10*time.Second)
}

// honest lets callers come for a time, each from another address and over a
// connection of its own. It returns how long it took, in order of length, and
// how many were not served.
func (l *lab) honest(d time.Duration) (took []time.Duration, failed int) {
	l.Helper()
	from, within := FirstClient, 4*time.Second // Less than what a slow caller keeps its place for.
	if *long {
		within = 2 * time.Second
	}
	for end := time.Now().Add(d); time.Now().Before(end); time.Sleep(honestEvery) {
		begin := time.Now()
		if l.caller(from, within).regions(l.Context()) {
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

// oneCall is a client that calls once, from an address of clients.
type oneCall struct{ *api.Client }

func (l *lab) caller(from netip.Addr, within time.Duration) oneCall {
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
	return oneCall{c}
}

func (c oneCall) regions(ctx context.Context) bool {
	_, err := c.Regions(ctx)
	return err == nil
}
