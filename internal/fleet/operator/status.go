package operator

import (
	"cmp"
	"slices"
	"time"
)

// Usage is the response of /usage.
type Usage struct {
	// Since is when counting began: the first start with this state directory.
	Since    time.Time      `json:"since"`
	Projects []ProjectUsage `json:"projects"`
	// Missing are the relays whose usage is not in the sum.
	Missing []Missing `json:"missing,omitempty"`
}

// ProjectUsage is the usage of one project and environment.
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
	// Datagrams and Bytes count relayed traffic.
	Datagrams uint64 `json:"datagrams"`
	Bytes     uint64 `json:"bytes"`
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
	Outcomes      map[string]uint64 `json:"outcomes"` // by outcome, without zeros
	Drops         map[string]uint64 `json:"drops"`    // by reason, without zeros
	Workers       []uint64          `json:"workers"`  // datagrams received by each worker of a UDP socket
	Intakes       []uint64          `json:"intakes"`  // messages received by each worker of a transport
	UnderLoad     int               `json:"workers_under_load"`
	// StateComplete: the state file has all that the next run must know.
	StateComplete bool `json:"state_complete"`
}
