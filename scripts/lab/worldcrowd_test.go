//go:build lab && linux

package lab

import (
	"fmt"
	"net/http"
	"net/netip"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/ferryrelay/ferry/alloc/api"
)

const (
	crowdPlayers = 150
	crowdCallers = 16               // API calls at once
	crowdRate    = 4                // messages per second to each peer
	crowdLimit   = 45 * time.Second // until all are in, on a slow machine
)

// TestWorldCrowd verifies that 150 players behind one address, as in a hall or a school,
// join two hosts: limits by address must not stop them.
func TestWorldCrowd(t *testing.T) {
	for _, c := range []struct {
		transport string
		kept      bool // each player's client keeps its connection to the API open
	}{{"udp", false}, {"udp", true}, {"dtls", false}, {"wss", true}} {
		t.Run(fmt.Sprintf("%s, kept %v", c.transport, c.kept), func(t *testing.T) {
			t.Parallel()
			row := make(worldRow, len(dimensions))
			row[dimRelay], row[dimAddress] = slices.Index(dimensions[dimRelay].values, "4"), slices.Index(dimensions[dimAddress].values, "nat")
			row[dimTransport] = slices.Index(dimensions[dimTransport].values, c.transport)
			// They start when all have joined, which takes long on a slow machine.
			g := newWorldGame(t, row, "--bind-timeout", "1m")
			if in, refused := g.crowd(c.kept); in < crowdPlayers {
				t.Errorf("%d of %d players are in; %d calls were refused: %v", in, crowdPlayers, len(refused), countErrors(refused))
			}
		})
	}
}

func (g *worldGame) crowd(kept bool) (in int, refused []error) {
	var hosts, players []*worldClient
	var codes []string
	at := g.host.local["4"]
	for i := range 2 {
		h := &worldClient{game: g, name: fmt.Sprint("host ", i), families: "4", in: g.net.Peers, local: map[string]netip.Addr{"4": at}}
		at = at.Next()
		client, err := h.api()
		g.must(err)
		h.alloc, err = client.Allocate(g.Context(), api.AllocateRequest{MaxConnections: 100})
		g.must(err)
		code, err := client.JoinCode(g.Context(), h.alloc.AllocationID)
		g.must(err)
		hosts, codes = append(hosts, h), append(codes, code)
	}
	at = FirstClient
	for i := range crowdPlayers {
		players = append(players, &worldClient{game: g, name: fmt.Sprint("player ", i), families: "4", in: g.net.Clients,
			local: map[string]netip.Addr{"4": at}})
		at = at.Next()
	}
	var mu sync.Mutex // guards refused
	var calls sync.WaitGroup
	places := make(chan struct{}, crowdCallers)
	for i, p := range players {
		calls.Go(func() {
			places <- struct{}{}
			defer func() { <-places }()
			client, err := p.api()
			if err == nil {
				client.HTTP.Transport.(familyNamer).RoundTripper.(*http.Transport).DisableKeepAlives = !kept
				p.alloc, err = client.Join(g.Context(), codes[i%2])
			}
			if err != nil {
				mu.Lock()
				refused = append(refused, err)
				mu.Unlock()
			}
		})
	}
	calls.Wait()
	for i, h := range hosts {
		var joined []api.Allocation
		for k, p := range players {
			if k%2 == i && p.alloc.AllocationID != "" {
				joined = append(joined, p.alloc)
				g.must(p.start(h.alloc))
			}
		}
		g.must(h.start(joined...))
	}
	for _, c := range append(slices.Clone(players), hosts...) {
		if c.client != nil {
			c.client.Play(crowdRate, 20)
		}
	}
	count := func() (n int) {
		for i, p := range players {
			if p.client == nil {
				continue
			}
			g.host = hosts[i%2]
			if down, up := g.streams(p); total(down).Received > 0 && total(up).Received > 0 {
				n++
			}
		}
		return n
	}
	g.wait(crowdLimit, func() bool { in = count(); return in == crowdPlayers })
	return in, refused
}

func countErrors(all []error) map[string]int {
	n := make(map[string]int)
	for _, err := range all {
		n[err.Error()]++
	}
	return n
}
