package demo

import (
	"math/big"
	"net"

	"github.com/HdrHistogram/hdrhistogram-go"

	"github.com/ferryrelay/ferry/client"
)

// player is one player, and the host's side of it.
type player struct {
	match   *match
	number  int
	session *client.Session
	host    net.Conn // the host, as the player sees it

	toHost, fromHost tally
	// roundTrip holds nanoseconds. It belongs to receive until that has ended.
	roundTrip *hdrhistogram.Histogram
}

// maxRoundTrip is the longest round-trip time that is recorded, in
// nanoseconds; longer ones count as this.
const maxRoundTrip = 10e9

func newPlayer(m *match, number int) *player {
	return &player{match: m, number: number, roundTrip: hdrhistogram.New(1000, maxRoundTrip, 3)}
}

// receive is the player: it counts what comes from the host until the session
// ends.
func (p *player) receive() {
	var own, echoes big.Int // their numbers
	var b [2 * size]byte
	for {
		n, err := p.host.Read(b[:])
		if err != nil {
			return // The session's own end is noticed where it runs.
		}
		d, ok := parse(b[:n])
		switch {
		case ok && d.kind == fromHost:
			p.fromHost.count(&own, d.number, p.match.count)
		case ok && d.kind == echo:
			if p.fromHost.count(&echoes, d.number, p.match.count) {
				// Values within the bounds are never refused.
				_ = p.roundTrip.RecordValue(min(max(p.match.now()-d.sent, 0), maxRoundTrip))
			}
		default:
			p.fromHost.strange.Add(1)
		}
	}
}

// serve is the host: it returns what the player sends and counts it.
func (p *player) serve(peer net.Conn) {
	var numbers big.Int
	var b [2 * size]byte
	for {
		n, err := peer.Read(b[:])
		if err != nil {
			return
		}
		d, ok := parse(b[:n])
		if !ok || d.kind != fromPlayer {
			p.toHost.strange.Add(1)
			continue
		}
		p.fromHost.sent.Add(1)
		d.kind = echo
		d.put((*[size]byte)(b[:size]))
		if _, err := peer.Write(b[:size]); err != nil {
			return
		}
		p.toHost.count(&numbers, d.number, p.match.count)
	}
}
