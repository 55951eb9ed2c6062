package operator

import "time"

// Load is the traffic and the matches of a relay, or of several, at one time.
type Load struct {
	At time.Time `json:"at"`
	// DatagramsIn to Drops are per second: over the last ten seconds, or the mean of a minute.
	DatagramsIn  float64 `json:"datagrams_in"`
	DatagramsOut float64 `json:"datagrams_out"`
	BytesIn      float64 `json:"bytes_in"`
	BytesOut     float64 `json:"bytes_out"`
	Drops        float64 `json:"drops"`
	// P99 is that of the round trips through the relay over a minute, in milliseconds; of several
	// relays the longest. 0: not known.
	P99         float64 `json:"p99"`
	Allocations int     `json:"allocations"`
	Matches     int     `json:"matches"`
	Players     int     `json:"players"`
	Links       int     `json:"links"`
	Seats       int     `json:"seats"`
	Relays      int     `json:"relays"`
}

// Add adds the load of other relays.
func (l *Load) Add(part *Load) {
	l.DatagramsIn, l.DatagramsOut = l.DatagramsIn+part.DatagramsIn, l.DatagramsOut+part.DatagramsOut
	l.BytesIn, l.BytesOut, l.Drops = l.BytesIn+part.BytesIn, l.BytesOut+part.BytesOut, l.Drops+part.Drops
	l.P99 = max(l.P99, part.P99)
	l.Allocations, l.Matches, l.Players = l.Allocations+part.Allocations, l.Matches+part.Matches, l.Players+part.Players
	l.Links, l.Seats, l.Relays = l.Links+part.Links, l.Seats+part.Seats, l.Relays+part.Relays
}

// Condition is a part of a process and its state.
type Condition struct {
	Name string `json:"name"`
	// State is "ok", "note" (it is meant to be so, and will pass) or "problem".
	State string `json:"state"`
	Text  string `json:"text"`
	// Page is the page of the console that has more, empty: none.
	Page string `json:"page,omitempty"`
	// Since is when it got this state, as far as the process knows.
	Since time.Time `json:"since,omitzero"`
}

// Summary is the response of /summary: what a relay tells the console of an API process.
type Summary struct {
	Host       string      `json:"host"` // the name of the machine
	Load       Load        `json:"load"`
	Conditions []Condition `json:"conditions,omitempty"`
}
