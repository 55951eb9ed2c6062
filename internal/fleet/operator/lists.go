package operator

import (
	"cmp"
	"fmt"
	"slices"
)

type NoQuery struct{}

// AllocationsQuery selects allocations.
type AllocationsQuery struct {
	Host        string `path:"id"` // of /allocations/ID/players
	Tenant      string `query:"tenant"`
	Project     string `query:"project"`
	Environment string `query:"environment"`
	Match       string `query:"match"`
	Role        string `query:"role" oneof:"host joiner"`
	Bound       string `query:"bound" oneof:"true false"`
	Transport   string `query:"transport"`
	Cursor      uint32 `query:"cursor,omitempty"`
	Limit       int    `query:"limit" max:"1000"`
}

// IDQuery names an allocation by its id.
type IDQuery struct {
	ID string `path:"id"`
}

// NameQuery names an allocation by its id or join code.
type NameQuery struct {
	Name string `path:"name"`
}

// MatchesQuery searches for matches.
type MatchesQuery struct {
	Search string `query:"q"`
	Sort   string `query:"sort" oneof:"age heard players project rate"`
	Order  string `query:"order" oneof:"asc desc"`
	Offset int    `query:"offset" max:"9000"`
	Limit  int    `query:"limit" max:"1000"`
}

// PlayersQuery selects the usage of players.
type PlayersQuery struct {
	Project     string `query:"project"`
	Environment string `query:"environment"`
	Sort        string `query:"sort" oneof:"allocations bytes datagrams live seconds"`
	Top         int    `query:"top" max:"1000"`
}

// TimelineQuery selects the last events of a project.
type TimelineQuery struct {
	Project string `query:"project"`
	Limit   int    `query:"limit" max:"1000"`
}

// BanQuery describes a ban.
type BanQuery struct {
	Player      string `query:"player"`
	Project     string `query:"project"`
	Environment string `query:"environment"`
	Prefix      string `query:"prefix"`
	For         string `query:"for"`
	Reason      string `query:"reason"`
}

// The listings.
var (
	ListNodes       = &List[NoQuery, Nodes]{Path: "/nodes"}
	ListBans        = &List[NoQuery, Bans]{Path: "/bans"}
	ListCanaries    = &List[NoQuery, Canaries]{Path: "/canaries"}
	ListSettings    = &List[NoQuery, Settings]{Path: "/config"}
	ListLogLevel    = &List[NoQuery, LogLevel]{Path: "/log-level"}
	ListFastPath    = &List[NoQuery, FastPath]{Path: "/fast-path"}
	ListDrain       = &List[NoQuery, DrainState]{Path: "/drain"}
	ListStats       = &List[NoQuery, Stats]{Path: "/stats"}
	ListSummary     = &List[NoQuery, Summary]{Path: "/summary"}
	ListAllocation  = &List[IDQuery, Allocation]{Path: "/allocations/{id}"}
	ListAllocations = &List[AllocationsQuery, Allocations]{Path: "/allocations", Default: AllocationsQuery{Limit: DefaultRows}}
	ListPlayers     = &List[AllocationsQuery, Allocations]{Path: "/allocations/{id}/players", Default: ListAllocations.Default}

	ListUsage = &List[NoQuery, Usage]{
		Path:  "/usage",
		Merge: func(all, part *Usage, _ *Node) bool { all.Add(part); return false },
		Finish: func(all *Usage, _ *NoQuery, missing []Missing) {
			all.Projects, all.Missing = append([]ProjectUsage{}, all.Projects...), missing // not null
		},
	}
	// ListPlayerUsage is the sum of the first players of each relay.
	ListPlayerUsage = &List[PlayersQuery, PlayersUsage]{
		Path: "/usage/players", Default: PlayersQuery{Sort: "bytes", Top: DefaultRows},
		Check: func(q *PlayersQuery) error {
			if q.Environment != "" && q.Project == "" {
				return fmt.Errorf("%w: environment: needs a project", ErrQuery)
			}
			return nil
		},
		Ask:   func(q PlayersQuery) (PlayersQuery, error) { q.Top = MaxRows; return q, nil },
		Merge: func(all, part *PlayersUsage, _ *Node) bool { all.Add(part); return false },
		Finish: func(all *PlayersUsage, q *PlayersQuery, missing []Missing) {
			all.Missing = missing
			all.SortAndCut(q.Sort, q.Top)
		},
	}
	// ListTimeline has the events of all relays, and those of the API process.
	ListTimeline = &List[TimelineQuery, ProjectTimeline]{
		Path: "/timeline", Default: TimelineQuery{Limit: DefaultRows},
		Check: func(q *TimelineQuery) error {
			if q.Project == "" {
				return fmt.Errorf("%w: project is missing", ErrQuery)
			}
			return nil
		},
		Merge: func(all, part *ProjectTimeline, of *Node) bool {
			for _, e := range part.Events {
				e.Relay = of.ID
				all.Events = append(all.Events, e)
			}
			return false
		},
		Finish: func(all *ProjectTimeline, q *TimelineQuery, missing []Missing) {
			all.Missing = missing
			slices.SortStableFunc(all.Events, func(a, b WhyEvent) int { return b.Last.Compare(a.Last) })
			all.Events = all.Events[:min(q.Limit, len(all.Events))]
		},
	}
	// ListWhy is the answer of the relay that knows the allocation, or of one to which it may return.
	ListWhy = &List[NameQuery, Why]{
		Path: "/why/{name}",
		Merge: func(all, part *Why, of *Node) bool {
			if part.Known || part.Awaited {
				*all = *part
				all.Relay = of.ID
			}
			return part.Known
		},
	}
	// ListMatches has the first matches of all relays that answer. If others are missing, it is truncated as well.
	ListMatches = &List[MatchesQuery, Matches]{
		Path: "/matches", Default: MatchesQuery{Sort: "age", Order: "asc", Limit: DefaultRows},
		Ask: func(q MatchesQuery) (MatchesQuery, error) {
			q.Offset, q.Limit = 0, q.Offset+q.Limit
			if q.Limit > MaxRows {
				return q, fmt.Errorf("%w: offset: a fleet shows the first %d matches: narrow the search", ErrQuery, MaxRows)
			}
			return q, nil
		},
		Merge: func(all, part *Matches, of *Node) bool {
			for i := range part.Matches {
				part.Matches[i].Relay = of.ID
			}
			all.Matches, all.Total = append(all.Matches, part.Matches...), all.Total+part.Total
			all.Truncated = all.Truncated || part.Truncated
			return false
		},
		Finish: func(all *Matches, q *MatchesQuery, missing []Missing) {
			all.Missing, all.Truncated = missing, all.Truncated || len(missing) > 0
			byID := func(a, b Match) int { return cmp.Compare(a.Host.ID, b.Host.ID) }
			all.Matches = SortMatches(append([]Match{}, all.Matches...), q, keyOfMatch, byID) // not null
		},
	}
	// ListAffected is the sum of all relays.
	ListAffected = &List[BanQuery, Affected]{
		Path:  "/bans/affected",
		Merge: func(all, part *Affected, _ *Node) bool { all.Add(*part); return false },
		Finish: func(all *Affected, _ *BanQuery, missing []Missing) {
			for _, m := range missing {
				if m.Relay != "" {
					all.MissingRelays++
				}
			}
		},
	}
)

// MatchKey is what matches are sorted by, those that a relay reads and those that relays have sent alike.
type MatchKey struct {
	Age, Heard, Bytes    float64
	Players              int
	Project, Environment string
}

var matchSorts = map[string]func(a, b MatchKey) int{
	"age":     func(a, b MatchKey) int { return cmp.Compare(a.Age, b.Age) },
	"players": func(a, b MatchKey) int { return cmp.Compare(a.Players, b.Players) },
	"heard":   func(a, b MatchKey) int { return cmp.Compare(a.Heard, b.Heard) },
	"rate":    func(a, b MatchKey) int { return cmp.Compare(a.Bytes, b.Bytes) },
	"project": func(a, b MatchKey) int {
		return cmp.Or(cmp.Compare(a.Project, b.Project), cmp.Compare(a.Environment, b.Environment))
	},
}

func keyOfMatch(m Match) MatchKey {
	return MatchKey{m.Host.Age, m.Host.Heard, m.Bytes, m.Host.Connections, m.Host.Project, m.Host.Environment}
}

// SortMatches sorts matches and returns those that a query asks for. Equal ones are in the order of byID.
func SortMatches[M any](all []M, q *MatchesQuery, keyOf func(M) MatchKey, byID func(a, b M) int) []M {
	by := matchSorts[q.Sort]
	slices.SortFunc(all, func(a, b M) int {
		order := by(keyOf(a), keyOf(b))
		if q.Order == "desc" {
			order = -order
		}
		return cmp.Or(order, byID(a, b))
	})
	from := min(q.Offset, len(all))
	return all[from:min(from+q.Limit, len(all))]
}
