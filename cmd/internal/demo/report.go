package demo

import "fmt"

// Report is what came of a match.
type Report struct {
	OK       bool     `json:"ok"`
	Error    string   `json:"error,omitempty"`
	JoinCode string   `json:"joinCode"`
	Seconds  float64  `json:"seconds"`
	Rate     int      `json:"rate"` // datagrams a second, player and direction
	Players  []Player `json:"players"`
}

// Player is one player's row. The direction to the player holds the host's own
// datagrams and the echoes.
type Player struct {
	Player     int       `json:"player"`
	Allocation string    `json:"allocation"`
	ToHost     Direction `json:"toHost"`
	FromHost   Direction `json:"fromHost"`
	// RoundTrip is player, relay, host, relay, player.
	RoundTrip RoundTrip `json:"roundTrip"`
}

// Direction counts datagrams of one direction.
type Direction struct {
	Sent       uint64 `json:"sent"`
	Received   uint64 `json:"received"`
	Lost       uint64 `json:"lost"`
	Duplicates uint64 `json:"duplicates"`
	// Strange counts datagrams with wrong content.
	Strange uint64 `json:"strange"`
}

// RoundTrip sums up round-trip times, in milliseconds.
type RoundTrip struct {
	Count int64   `json:"count"`
	P50   float64 `json:"p50Milliseconds"`
	P99   float64 `json:"p99Milliseconds"`
}

// report sums up the match. The players have left.
func (m *match) report() Report {
	m.leave()
	r := Report{JoinCode: m.code, Seconds: m.options.Duration.Seconds(), Rate: rate, Players: []Player{}}
	for _, p := range m.players {
		r.Players = append(r.Players, Player{
			Player: p.number, Allocation: p.session.ID().String(),
			ToHost: p.toHost.direction(), FromHost: p.fromHost.direction(),
			RoundTrip: RoundTrip{
				Count: p.roundTrip.TotalCount(),
				P50:   float64(p.roundTrip.ValueAtPercentile(50)) / 1e6,
				P99:   float64(p.roundTrip.ValueAtPercentile(99)) / 1e6,
			},
		})
	}
	return r
}

func (r Report) verdict() error {
	var lost, strange, sent uint64
	for _, p := range r.Players {
		lost += p.ToHost.Lost + p.FromHost.Lost
		strange += p.ToHost.Strange + p.FromHost.Strange
		sent += p.ToHost.Sent + p.FromHost.Sent
	}
	if lost > 0 || strange > 0 {
		return fmt.Errorf("%w: %d of %d were lost, %d were damaged", ErrLost, lost, sent, strange)
	}
	return nil
}
