//go:build lab && linux

package lab

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
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

// connHolders hold idle TCP connections to the API, and open those anew that the relay closes.
type connHolders struct {
	to      netip.AddrPort
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
				_, _ = io.WriteString(conn, idleRequest)
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
	h := &connHolders{to: to, sources: sources}
	l.background(func(ctx context.Context) {
		if err := h.run(ctx, l.net.Clients); err != nil {
			l.Error(err)
		}
	})
	testkit.Eventually(l.T, "all connections were opened", func() bool { return int(h.opened.Load()) >= len(sources) })
	return h
}

// callsFrom makes API calls with the tokens of players, each over a new connection, from
// addresses in turn, and returns how many were served.
func (l *lab) callsFrom(at ...netip.Addr) (served int, took []time.Duration) {
	l.Helper()
	for i := range callsOfRow {
		c := l.caller(at[i%len(at)], 5*time.Second)
		c.Token = playerSecret(i % apiPlayers)
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
	served, took := l.callsFrom(at...)
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
		c.addPlayers()
	})
	var from []netip.Addr
	for i := range 256 {
		from = append(from, netip.MustParseAddr(fmt.Sprintf("2001:db8:66:%x00::1", i)))
	}
	h := l.holdAPI(RelayAddr6, slices.Repeat(from, 32))
	l.recordCalls("idle API connections of a /48", h, successive(FirstClient6, 8)...)
	l.recordCalls("the same, neighbours in the /48", h, from...)
}

const apiPlayers = 8

func playerSecret(n int) string { return fmt.Sprint("laboratory-attack-token-", n) }

// addPlayers appends the tokens of apiPlayers players to the file of a relay, and makes the
// limits per address apply: no client is a proxy.
func (c *RelayConfig) addPlayers() {
	var text strings.Builder
	for i := range apiPlayers {
		fmt.Fprintf(&text, "  - secret: %s\n    project: game\n    environment: test\n    player: %d\n    kind: player\n", playerSecret(i), i)
	}
	text.WriteString("player_per_minute: 100000\n")
	c.Flags = append(c.Flags, "--trusted-proxies", "192.0.2.1/32")
	path := filepath.Join(c.Dir, "ferry.yaml")
	c.Prepare = func() error {
		f, err := os.OpenFile(path, os.O_APPEND|os.O_WRONLY, 0)
		if err != nil {
			return err
		}
		_, err = f.WriteString(text.String())
		return errors.Join(err, f.Close())
	}
}
