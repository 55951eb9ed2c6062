//go:build lab && linux

package lab

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ferryrelay/ferry/internal/test/testkit"
)

const (
	// idleRequest leaves its connection idle: it needs no token.
	idleRequest = "GET / HTTP/1.1\r\nHost: x\r\n\r\n"
	// reconnects bounds the connections that holders open anew, per second.
	reconnects = 500
	callsOfRow = 60
)

// connHolders hold TCP connections to the API, each with a request, and open those anew that
// the relay closes.
type connHolders struct {
	to      netip.AddrPort
	request string
	sources []netip.Addr // one for each connection

	open, opened, closed atomic.Int64
}

func (h *connHolders) run(ctx context.Context, ns Namespace) error {
	free := make(chan netip.Addr, len(h.sources))
	for _, from := range h.sources {
		free <- from
	}
	return ns.Do(func() error {
		d := net.Dialer{Timeout: 2 * time.Second}
		for n := 0; ; n++ {
			var from netip.Addr
			select {
			case <-ctx.Done():
				return nil
			case from = <-free:
			}
			if n >= len(h.sources) {
				pause(ctx, time.Second/reconnects)
			}
			d.LocalAddr = &net.TCPAddr{IP: from.AsSlice()}
			conn, err := d.DialContext(ctx, "tcp", h.to.String())
			if err != nil {
				free <- from
				pause(ctx, time.Second/reconnects)
				continue
			}
			h.opened.Add(1)
			h.open.Add(1)
			go func() {
				stop := context.AfterFunc(ctx, func() { _ = conn.Close() })
				_, _ = io.WriteString(conn, h.request)
				_, _ = io.Copy(io.Discard, conn) // until it ends
				stop()
				_ = conn.Close()
				h.open.Add(-1)
				h.closed.Add(1)
				free <- from
			}()
		}
	})
}

func (l *lab) holdAPI(to netip.AddrPort, sources []netip.Addr) *connHolders {
	l.Helper()
	h := &connHolders{to: to, request: idleRequest, sources: sources}
	l.background(func(ctx context.Context) {
		if err := h.run(ctx, l.net.Clients); err != nil {
			l.Error(err)
		}
	})
	testkit.Eventually(l.T, "all connections were opened", func() bool { return int(h.opened.Load()) >= len(sources) })
	return h
}

// callsFrom makes API calls with the tokens of a project's players, each over a new
// connection, from addresses in turn, and returns how many were served.
func (l *lab) callsFrom(project string, at ...netip.Addr) (served int, took []time.Duration) {
	l.Helper()
	for i := range callsOfRow {
		c := l.as(fmt.Sprintf("%s-%d", project, i%apiPlayers), at[i%len(at)], "")
		begin := time.Now()
		if _, err := c.Regions(l.Context()); err == nil {
			served++
			took = append(took, time.Since(begin))
		} else if served+1 == i {
			l.Log(err) // the first one
		}
		pause(l.Context(), honestEvery)
	}
	slices.Sort(took)
	return served, took
}

func (l *lab) recordCalls(attack string, h *connHolders, at ...netip.Addr) {
	l.Helper()
	served, took := l.callsFrom("game", at...)
	recordAttack(l.T, attackResult{
		attack: attack, rate: fmt.Sprintf("%d connections", len(h.sources)), p99: Quantile(took, 0.99),
		honest: fmt.Sprintf("%d of %d API calls", served, callsOfRow), damage: served < callsOfRow,
		state: fmt.Sprintf("%d connections, %d closed", h.open.Load(), h.closed.Load()),
	})
	if h.closed.Load() == 0 {
		l.Error("no connection of the attacker was closed: this run decides nothing")
	}
}

func successive(first netip.Addr, n int) (all []netip.Addr) {
	for ; len(all) < n; first = first.Next() {
		all = append(all, first)
	}
	return all
}

// directly makes the limits per address apply: no client is a proxy. It adds the tokens of
// players of some projects.
func (c *RelayConfig) directly(projects ...string) {
	c.Flags = append(c.Flags, "--trusted-proxies", "192.0.2.1/32")
	c.extend("player", apiTenants(projects...), "player_per_minute: 100000\n")
}

// TestAttackAPIConnections verifies that idle connections without a token, more than the API
// holds, shut out neither other addresses nor neighbours with a token.
func TestAttackAPIConnections(t *testing.T) {
	l := newLab(t, func(c *RelayConfig) { c.directly("game") })
	from := successive(firstAttacker, 64)
	h := l.holdAPI(RelayAddr, slices.Repeat(from, 128))
	l.recordCalls("idle API connections of 64 addresses", h, successive(FirstClient, 8)...)
	l.recordCalls("the same, neighbours at these addresses", h, from...)
}

// TestAttackAPINeighbours verifies that idle connections of one address, more than it may
// have, do not shut out its neighbours with a token.
func TestAttackAPINeighbours(t *testing.T) {
	l := newLab(t, func(c *RelayConfig) { c.directly("game") })
	h := l.holdAPI(RelayAddr, slices.Repeat([]netip.Addr{firstAttacker}, 600))
	l.recordCalls("idle API connections, a neighbour behind the same NAT", h, firstAttacker)
}

// TestAttackAPIPrefix verifies that one IPv6 network, a /48 with all its /56s, does not shut
// out others, nor its neighbours with a token.
func TestAttackAPIPrefix(t *testing.T) {
	l := newLabIn(t, func() (*Network, error) {
		n, err := NewNetwork()
		if err != nil {
			return nil, err
		}
		err = errors.Join(n.AddIPv6(), n.Clients.IP("-6 route add local 2001:db8:66::/48 dev lo"),
			n.Relay.IP("-6 route add 2001:db8:66::/48 via 2001:db8:1::2"))
		if err != nil {
			return nil, errors.Join(err, n.Close())
		}
		return n, nil
	}, func(c *RelayConfig) {
		c.Addr = RelayAddr6
		c.directly("game")
	})
	var from []netip.Addr
	for i := range 256 {
		from = append(from, netip.MustParseAddr(fmt.Sprintf("2001:db8:66:%x00::1", i)))
	}
	h := l.holdAPI(RelayAddr6, slices.Repeat(from, 32))
	l.recordCalls("idle API connections of a /48", h, successive(FirstClient6, 8)...)
	l.recordCalls("the same, neighbours in the /48", h, from...)
}

// TestAttackAPIToken verifies that one valid token shuts no other player out, at the same
// address either.
func TestAttackAPIToken(t *testing.T) {
	l := newLab(t, func(c *RelayConfig) { c.directly("game", "attacker") })
	h := &connHolders{to: RelayAddr, sources: slices.Repeat([]netip.Addr{firstAttacker}, 600), request: "GET /v1/regions HTTP/1.1\r\n" +
		"Host: x\r\nAuthorization: Bearer " + secretOf("attacker-0") + "\r\n\r\n"}
	l.background(func(ctx context.Context) { _ = h.run(ctx, l.net.Clients) })
	testkit.Eventually(t, "all connections were opened", func() bool { return int(h.opened.Load()) >= len(h.sources) })
	l.recordCalls("API connections with one token, a neighbour", h, firstAttacker)
}

const balancerConns = 50

// balancerIdle is how long a balancer keeps a connection: longer than other callers may.
func balancerIdle() time.Duration {
	if *long {
		return 70 * time.Second
	}
	return 32 * time.Second
}

// TestBalancer verifies that a balancer that is a trusted proxy may reuse its connections
// after a pause, while API connections beyond the limit come from another address. A call on
// a connection that the relay has closed is what a balancer answers with status 502.
func TestBalancer(t *testing.T) {
	proxy := FirstClient
	l := newLab(t, func(c *RelayConfig) {
		c.Flags = []string{"--trusted-proxies", proxy.String()}
		c.extend("player", apiTenants("game"), "player_per_minute: 100000\n")
	})
	var conns []*balancerConn
	dial := func(from netip.Addr) *balancerConn {
		c := &balancerConn{}
		err := l.net.Clients.Do(func() (err error) {
			d := net.Dialer{LocalAddr: &net.TCPAddr{IP: from.AsSlice()}}
			c.Conn, err = d.DialContext(t.Context(), "tcp", RelayAddr.String())
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = c.Close() })
		c.answers = bufio.NewReader(c)
		return c
	}
	for range balancerConns {
		c := dial(proxy)
		if err := c.call(); err != nil {
			t.Fatal(err)
		}
		conns = append(conns, c)
	}
	direct := dial(FirstClient.Next())
	if err := direct.call(); err != nil {
		t.Fatal(err)
	}
	begin := time.Now()
	h := l.holdAPI(RelayAddr, slices.Repeat(successive(firstAttacker, 64), 80))
	time.Sleep(time.Until(begin.Add(balancerIdle())))
	failed := 0
	for _, c := range conns {
		if err := c.call(); err != nil {
			failed++
			t.Log(err)
		}
	}
	recordAttack(t, attackResult{
		attack: "a balancer's connections, beside idle API connections", rate: fmt.Sprintf("%d after %v", balancerConns, balancerIdle()),
		honest: fmt.Sprintf("%d of %d calls were 502", failed, balancerConns), damage: failed > 0,
		state: fmt.Sprintf("%d connections, %d closed", h.open.Load(), h.closed.Load()),
	})
	if direct.call() == nil {
		t.Error("an idle connection that is not the balancer's is still open")
	}
}

type balancerConn struct {
	net.Conn
	answers *bufio.Reader
}

func (c *balancerConn) call() error {
	_ = c.SetDeadline(time.Now().Add(5 * time.Second))
	_, err := fmt.Fprintf(c, "GET /v1/regions HTTP/1.1\r\nHost: x\r\nX-Forwarded-For: 192.0.2.9\r\nAuthorization: Bearer %s\r\n\r\n", secretOf("game-0"))
	if err != nil {
		return err
	}
	resp, err := http.ReadResponse(c.answers, nil)
	if err != nil {
		return err
	}
	if _, err := io.Copy(io.Discard, resp.Body); err != nil {
		return err
	}
	if resp.StatusCode != http.StatusOK {
		return fmt.Errorf("status %d", resp.StatusCode)
	}
	return nil
}
