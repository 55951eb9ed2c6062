package operator

import (
	"cmp"
	"slices"
	"time"
)

type Usage struct {
	// Since is when counting began: the first start with this state directory.
	Since    time.Time      `json:"since"`
	Projects []ProjectUsage `json:"projects"`
	Missing  []Missing      `json:"missing,omitempty"`
}

type ProjectUsage struct {
	// Project and Environment are empty if they are unknown, as after a restart.
	// Tenant is a digest of both, in hexadecimal.
	Project     string `json:"project,omitempty"`
	Environment string `json:"environment,omitempty"`
	Tenant      string `json:"tenant,omitempty"`
	// Others is set for the sum of those without counters of their own, see
	// engine.Usage.
	Others        bool    `json:"others,omitempty"`
	Allocations   int     `json:"allocations"`
	Hosts         int     `json:"hosts"`
	Players       int     `json:"players"` // bound, including hosts
	PlayerSeconds float64 `json:"player_seconds"`
	Datagrams     uint64  `json:"datagrams"`
	Bytes         uint64  `json:"bytes"`
}

// Add adds the usage of another relay. The sum begins with the first of both.
func (u *Usage) Add(part *Usage) {
	if u.Since.IsZero() || part.Since.Before(u.Since) {
		u.Since = part.Since
	}
	for _, p := range part.Projects {
		same := func(q ProjectUsage) bool { return q.Tenant == p.Tenant && q.Others == p.Others }
		i := slices.IndexFunc(u.Projects, same)
		if i < 0 {
			u.Projects = append(u.Projects, p)
			continue
		}
		q := &u.Projects[i]
		q.Project, q.Environment = cmp.Or(q.Project, p.Project), cmp.Or(q.Environment, p.Environment)
		q.Allocations, q.Hosts, q.Players = q.Allocations+p.Allocations, q.Hosts+p.Hosts, q.Players+p.Players
		q.PlayerSeconds += p.PlayerSeconds
		q.Datagrams, q.Bytes = q.Datagrams+p.Datagrams, q.Bytes+p.Bytes
	}
}

// PlayersUsage is the response of /usage/players.
type PlayersUsage struct {
	// Since is when counting began: the start of the process, or of the first of those of which it
	// is an upgrade.
	Since   time.Time     `json:"since"`
	Players []PlayerUsage `json:"players"`
	// Others is the sum of all other players: beyond the parameter top, those that sent least of
	// very many, and those without a name.
	Others  PlayerCounts `json:"others"`
	Missing []Missing    `json:"missing,omitempty"`
}

type PlayerUsage struct {
	// Player is the name for which the API reserved; one that ends with an ellipsis is cut.
	// Digest is that of project, environment and all of the name, in hexadecimal.
	Player      string `json:"player"`
	Digest      string `json:"digest"`
	Project     string `json:"project"`
	Environment string `json:"environment"`
	PlayerCounts
}

type PlayerCounts struct {
	Allocations int `json:"allocations"` // since counting began
	Live        int `json:"live"`        // of these now
	// PlayerSeconds is the sum of the time from the reservation of each allocation that was bound to
	// its end, or to now.
	PlayerSeconds float64 `json:"player_seconds"`
	// Datagrams and Bytes are what the player sent and the relay forwarded, without UDP and IP
	// headers.
	Datagrams uint64 `json:"datagrams"`
	Bytes     uint64 `json:"bytes"`
}

// Add adds other counts.
func (c *PlayerCounts) Add(more PlayerCounts) {
	c.Allocations, c.Live = c.Allocations+more.Allocations, c.Live+more.Live
	c.PlayerSeconds += more.PlayerSeconds
	c.Datagrams, c.Bytes = c.Datagrams+more.Datagrams, c.Bytes+more.Bytes
}

// PlayerSorts are what players can be sorted by, the largest first.
var PlayerSorts = map[string]func(a, b *PlayerCounts) int{
	"allocations": func(a, b *PlayerCounts) int { return cmp.Compare(b.Allocations, a.Allocations) },
	"bytes":       func(a, b *PlayerCounts) int { return cmp.Compare(b.Bytes, a.Bytes) },
	"datagrams":   func(a, b *PlayerCounts) int { return cmp.Compare(b.Datagrams, a.Datagrams) },
	"live":        func(a, b *PlayerCounts) int { return cmp.Compare(b.Live, a.Live) },
	"seconds":     func(a, b *PlayerCounts) int { return cmp.Compare(b.PlayerSeconds, a.PlayerSeconds) },
}

// SortAndCut sorts the players by one of PlayerSorts, and adds those beyond the first ones to Others.
func (u *PlayersUsage) SortAndCut(sort string, top int) {
	by := PlayerSorts[sort]
	slices.SortFunc(u.Players, func(a, b PlayerUsage) int {
		return cmp.Or(by(&a.PlayerCounts, &b.PlayerCounts), cmp.Compare(a.Digest, b.Digest))
	})
	for i := top; i < len(u.Players); i++ {
		u.Others.Add(u.Players[i].PlayerCounts)
	}
	u.Players = u.Players[:min(top, len(u.Players))]
	if u.Players == nil {
		u.Players = []PlayerUsage{} // not null
	}
}

// Add adds the usage of another relay. The sum begins with the first of both.
func (u *PlayersUsage) Add(part *PlayersUsage) {
	if u.Since.IsZero() || part.Since.Before(u.Since) {
		u.Since = part.Since
	}
	u.Others.Add(part.Others)
	at := make(map[string]int, len(u.Players))
	for i := range u.Players {
		at[u.Players[i].Digest] = i
	}
	for _, p := range part.Players {
		if i, known := at[p.Digest]; known {
			u.Players[i].Add(p.PlayerCounts)
		} else {
			u.Players = append(u.Players, p)
		}
	}
}

// Stats is the response of /stats: gauges, and counters since the start.
type Stats struct {
	Now           time.Time         `json:"now"`
	Since         time.Time         `json:"since"`
	Allocations   int               `json:"allocations"`
	Bound         int               `json:"bound"`
	Links         int               `json:"links"`
	Seats         int               `json:"seats"`
	Draining      bool              `json:"draining"`
	Received      uint64            `json:"datagrams_in"`
	ReceivedBytes uint64            `json:"bytes_in"`
	Sent          uint64            `json:"datagrams_out"`
	SentBytes     uint64            `json:"bytes_out"`
	SendFailed    uint64            `json:"send_failed"`
	KernelDrops   uint64            `json:"kernel_drops"`
	Outcomes      map[string]uint64 `json:"outcomes"`  // by outcome, without zeros
	Drops         map[string]uint64 `json:"drops"`     // by reason, without zeros
	Workers       []uint64          `json:"workers"`   // datagrams received by each worker of a UDP socket
	Intakes       []uint64          `json:"intakes"`   // messages received by each worker of a transport
	FastPath      uint64            `json:"fast_path"` // datagrams that the kernel relayed
	UnderLoad     int               `json:"workers_under_load"`
	// StateComplete: the state file has all that the next run must know.
	StateComplete bool `json:"state_complete"`
}
