//go:build lab && linux

package fleet

import (
	"context"
	"net/netip"
	"strings"
	"sync"
	"time"

	"github.com/ferryrelay/ferry/alloc/api"
	"github.com/ferryrelay/ferry/scripts/lab"
)

// way is how the two players of a match reach their relay.
type way uint8

const (
	udp     way = iota // on the few sockets of a lab.Fleet; all others are visits
	dtls               // both
	ws                 // both by WebSocket
	crossed            // the host by DTLS, who joins by WebSocket
	wayCount
)

var wayNames = [wayCount]string{udp: "udp", dtls: "dtls", ws: "ws", crossed: "dtls to ws"}

// transports are the API's names of what host and joiner use.
var transports = [wayCount][2]string{udp: {"udp", "udp"}, dtls: {"dtls", "dtls"}, ws: {"wss", "wss"}, crossed: {"dtls", "wss"}}

// mix is the ways of matches, in turn: a connection of its own and its crypto
// cost a player of the laboratory much more than a place on a shared socket.
var mix = [...]way{udp, udp, dtls, udp, udp, ws, udp, udp, crossed, udp}

const (
	// visitRange is the third byte of the first address of visits, behind those
	// of all fleets.
	visitRange = 128
	// watchEvery is the precision of the time after which a visit resumed.
	watchEvery = 20 * time.Millisecond
)

// visit is a match of two players with a connection each.
type visit struct {
	way          way
	relay        int
	host, player *lab.GameClient
	marked       time.Time
	resumed      time.Duration // after the mark; 0: not yet
}

// visits are all of them. Its methods may be called while run runs.
type visits struct {
	from lab.Namespace
	rate int
	come chan *visit

	mu      sync.Mutex // guards the following fields
	all     []*visit
	players [2]netip.Addr // of the next host and who joins it
}

func newVisits(from lab.Namespace, rate int) *visits {
	first := func(side byte) netip.Addr { return netip.AddrFrom4([4]byte{198, side, visitRange, 1}) }
	return &visits{from: from, rate: rate, come: make(chan *visit), players: [2]netip.Addr{first(hostRange), first(joinerRange)}}
}

// add lets a match begin.
func (v *visits) add(ctx context.Context, by way, relay int, host, joiner api.Allocation) error {
	v.mu.Lock()
	at := v.players
	v.players = [2]netip.Addr{at[0].Next(), at[1].Next()}
	v.mu.Unlock()
	one := &visit{
		way: by, relay: relay,
		host: v.gameClient(transports[by][0], at[0], relay, host, joiner), player: v.gameClient(transports[by][1], at[1], relay, joiner, host),
	}
	select {
	case v.come <- one:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// gameClient is a player on a relay. If the API directs it to a wss proxy, it connects to
// the relay by ws itself.
func (v *visits) gameClient(transport string, at netip.Addr, relay int, own, peer api.Allocation) *lab.GameClient {
	return lab.NewGameClient(lab.GameClientConfig{
		Transport: strings.Replace(transport, "wss", "ws", 1), Namespace: v.from, Local: at,
		Relay:  netip.AddrPortFrom(netip.MustParseAddr(relayAddr(relay)), playerPort),
		Player: own, Peer: [16]byte(peer.AllocationIDBytes), Rate: v.rate,
	})
}

// run plays until ctx ends.
func (v *visits) run(ctx context.Context) {
	var playing sync.WaitGroup
	defer playing.Wait()
	watch := time.NewTicker(watchEvery)
	defer watch.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case one := <-v.come:
			playing.Go(func() { one.host.Run(ctx) })
			playing.Go(func() { one.player.Run(ctx) })
			v.mu.Lock()
			v.all = append(v.all, one)
			v.mu.Unlock()
		case <-watch.C:
			v.watch()
		}
	}
}

// watch notes which matches have carried traffic both ways since their mark.
func (v *visits) watch() {
	v.mu.Lock()
	defer v.mu.Unlock()
	for _, one := range v.all {
		if one.resumed == 0 && !one.host.FirstArrival().IsZero() && !one.player.FirstArrival().IsZero() {
			one.resumed = time.Since(one.marked)
		}
	}
}

// mark begins to look at when the matches of a relay resume.
func (v *visits) mark(relay int) {
	v.mu.Lock()
	defer v.mu.Unlock()
	for _, one := range v.all {
		if one.relay == relay {
			one.host.Mark()
			one.player.Mark()
			one.marked, one.resumed = time.Now(), 0
		}
	}
}

// resumed returns how many matches of a relay have done so within the time after
// the mark, by way.
func (v *visits) resumed(relay int, within time.Duration) (n [wayCount]int) {
	v.mu.Lock()
	defer v.mu.Unlock()
	for _, one := range v.all {
		if one.relay == relay && one.resumed > 0 && one.resumed <= within {
			n[one.way]++
		}
	}
	return n
}

// counts returns what the players have lived through, by way. With settle the
// games stop for a moment, until nothing is under way or half a second has
// passed.
func (v *visits) counts(settle bool) [wayCount]seen {
	if !settle {
		return v.sum()
	}
	v.pause(true)
	defer v.pause(false)
	sums := v.sum()
	for range 50 {
		time.Sleep(10 * time.Millisecond)
		if sums = v.sum(); total(sums).lost == 0 {
			break
		}
	}
	return sums
}

func (v *visits) sum() (sums [wayCount]seen) {
	v.mu.Lock()
	defer v.mu.Unlock()
	for _, one := range v.all {
		s := &sums[one.way]
		for _, x := range []*lab.GameClient{one.host, one.player} {
			c := x.Counts()
			s.players++
			if c.Received > 0 {
				s.playing++
			}
			s.sent += c.Sent
			s.lost += c.Sent - c.Received
			s.ended += uint64(c.Fatal)
			s.connections += c.Connections
		}
	}
	return sums
}

func (v *visits) pause(on bool) {
	v.mu.Lock()
	defer v.mu.Unlock()
	for _, one := range v.all {
		one.host.Pause(on)
		one.player.Pause(on)
	}
}
