package admin

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/ferryrelay/ferry/alloc"
	"github.com/ferryrelay/ferry/engine"
	"github.com/ferryrelay/ferry/internal/fleet/operator"
	"github.com/ferryrelay/ferry/internal/server/operator/history"
	"github.com/ferryrelay/ferry/proto"
)

const (
	// maxRead is how many allocations of one relay a search reads: 100 MB at most.
	maxRead = 200_000
	// matchesFor is how long what was read answers further searches, so that many browsers
	// cost as much as one; or readShare times as long as reading took, if that is longer.
	matchesFor = 2 * time.Second
	readShare  = 20
	// maxOfPlayer is how many allocations of one player a search finds.
	maxOfPlayer = 100
	// maxMatchOffset is the largest sum of offset and limit.
	maxMatchOffset = 10_000
)

type matchQuery struct {
	search        string
	sort          string
	ascending     bool
	offset, limit int
}

// matchKey is what matches are sorted by, of a relay's own and of those that relays have sent alike.
type matchKey struct {
	age, heard, bytes    float64
	players              int
	project, environment string
}

var matchSorts = map[string]func(a, b matchKey) int{
	"age":     func(a, b matchKey) int { return cmp.Compare(a.age, b.age) },
	"players": func(a, b matchKey) int { return cmp.Compare(a.players, b.players) },
	"heard":   func(a, b matchKey) int { return cmp.Compare(a.heard, b.heard) },
	"rate":    func(a, b matchKey) int { return cmp.Compare(a.bytes, b.bytes) },
	"project": func(a, b matchKey) int {
		return cmp.Or(cmp.Compare(a.project, b.project), cmp.Compare(a.environment, b.environment))
	},
}

func keyOfRead(m *readMatch) matchKey {
	return matchKey{seconds(m.Age), seconds(m.SinceReceived), m.bytes, m.Links, m.Name.Project, m.Name.Environment}
}

func keyOfMatch(m *operator.Match) matchKey {
	return matchKey{m.Host.Age, m.Host.Heard, m.Bytes, m.Host.Connections, m.Host.Project, m.Host.Environment}
}

func parseMatchQuery(query url.Values) (matchQuery, error) {
	m := matchQuery{sort: "age", ascending: true, limit: operator.DefaultRows}
	err := parse(query, map[string]func(string) error{
		"q": func(text string) error { m.search = strings.TrimSpace(text); return nil },
		"sort": func(text string) error {
			if _, ok := matchSorts[text]; !ok {
				return fmt.Errorf("%q is not one of age, heard, players, project, rate", text)
			}
			m.sort = text
			return nil
		},
		"order": func(text string) error {
			if text != "asc" && text != "desc" {
				return fmt.Errorf("%q is not one of asc, desc", text)
			}
			m.ascending = text == "asc"
			return nil
		},
		"offset": func(text string) error {
			n, err := number(text, maxMatchOffset-operator.MaxRows)
			m.offset = int(n)
			return err
		},
		"limit": func(text string) error {
			n, err := number(text, operator.MaxRows)
			m.limit = int(n)
			return err
		},
	})
	return m, err
}

type readMatch struct {
	engine.Allocation
	datagrams, bytes float64
}

type traffic struct{ datagrams, bytes uint64 }

type matchIndex struct {
	relay   Relay
	history History
	now     func() time.Time

	reading   chan struct{} // capacity 1: who reads allocations, or what was read, has sent to it
	matches   []readMatch
	sent      map[proto.AllocationID]traffic
	truncated bool
	read      time.Time // zero: never
	until     time.Time // when it is read again
}

func newMatchIndex(relay Relay, history History, now func() time.Time) *matchIndex {
	return &matchIndex{relay: relay, history: history, now: now, reading: make(chan struct{}, 1)}
}

// all returns the matches of the relay, which the caller must not change.
func (x *matchIndex) all(ctx context.Context) ([]readMatch, bool, error) {
	select {
	case x.reading <- struct{}{}:
	case <-ctx.Done():
		return nil, false, fmt.Errorf("%w: another search reads the matches: %w", alloc.ErrUnavailable, ctx.Err())
	}
	defer func() { <-x.reading }()
	began := x.now()
	if began.Before(x.until) {
		return x.matches, x.truncated, nil
	}
	var hosts []readMatch
	sent := make(map[proto.AllocationID]traffic, len(x.sent))
	sums := make(map[proto.AllocationID]traffic)
	truncated, err := history.EachAllocation(ctx, x.relay, engine.Filter{}, maxRead, func(a engine.Allocation) {
		before, sum := x.sent[a.ID], sums[a.Match]
		sum.datagrams += a.SentDatagrams - before.datagrams
		sum.bytes += a.SentBytes - before.bytes
		sent[a.ID], sums[a.Match] = traffic{a.SentDatagrams, a.SentBytes}, sum
		if a.Role == alloc.RoleHost {
			hosts = append(hosts, readMatch{Allocation: a})
		}
	})
	if err != nil {
		return nil, false, err
	}
	for i := range hosts {
		sum, span := sums[hosts[i].ID], hosts[i].Age
		if !x.read.IsZero() {
			span = min(span, began.Sub(x.read))
		}
		if seconds := span.Seconds(); seconds > 0 {
			hosts[i].datagrams, hosts[i].bytes = float64(sum.datagrams)/seconds, float64(sum.bytes)/seconds
		}
	}
	x.matches, x.sent, x.truncated, x.read = hosts, sent, truncated, began
	x.until = began.Add(max(matchesFor, readShare*x.now().Sub(began)))
	return hosts, truncated, nil
}

func (x *matchIndex) search(ctx context.Context, m matchQuery) (operator.Matches, error) {
	hosts, truncated, err := x.all(ctx)
	if err != nil {
		return operator.Matches{}, err
	}
	selects, err := x.selector(ctx, m.search)
	if err != nil {
		return operator.Matches{}, err
	}
	var selected []*readMatch
	for i := range hosts {
		if h := &hosts[i]; selects(&h.Allocation) {
			selected = append(selected, h)
		}
	}
	found := operator.Matches{Truncated: truncated, Total: len(selected), Matches: []operator.Match{}}
	page := sortAndCut(selected, m, keyOfRead, func(a, b *readMatch) int { return bytes.Compare(a.ID[:], b.ID[:]) })
	for _, h := range page {
		found.Matches = append(found.Matches, operator.Match{Host: allocationOf(h.Allocation, x.history),
			Datagrams: h.datagrams, Bytes: h.bytes})
	}
	return found, nil
}

func sortAndCut[M any](all []*M, m matchQuery, keyOf func(*M) matchKey, byID func(a, b *M) int) []*M {
	by := matchSorts[m.sort]
	slices.SortFunc(all, func(a, b *M) int {
		order := by(keyOf(a), keyOf(b))
		if !m.ascending {
			order = -order
		}
		if order == 0 {
			order = byID(a, b)
		}
		return order
	})
	from := min(m.offset, len(all))
	return all[from:min(from+m.limit, len(all))]
}

// selector returns what a search looks for: the id of an allocation, a join code, a player,
// an address or prefix of a player, or a part of a project's name.
func (x *matchIndex) selector(ctx context.Context, text string) (func(*engine.Allocation) bool, error) {
	if text == "" {
		return func(*engine.Allocation) bool { return true }, nil
	}
	if id, err := proto.ParseAllocationID(text); err == nil {
		match := id
		page, _, err := x.relay.Allocations(ctx, engine.Filter{ID: id}, 0, 1)
		if err == nil && len(page) > 0 {
			match = page[0].Match
		}
		return func(a *engine.Allocation) bool { return a.ID == match }, err
	}
	if prefix, ok := operator.ParsePrefix(text); ok {
		matches := map[proto.AllocationID]bool{}
		_, err := history.EachAllocation(ctx, x.relay, engine.Filter{Binding: engine.OnlyBound}, maxRead, func(a engine.Allocation) {
			if prefix.Contains(a.Endpoint.Addr().Unmap()) {
				matches[a.Match] = true
			}
		})
		return func(a *engine.Allocation) bool { return matches[a.ID] }, err
	}
	matches := map[proto.AllocationID]bool{}
	if x.history != nil {
		if host, ok := x.history.HostOf(text); ok {
			matches[host] = true
		}
		if err := x.matchesOf(ctx, text, matches); err != nil {
			return nil, err
		}
	}
	name := strings.ToLower(text)
	return func(a *engine.Allocation) bool {
		return matches[a.ID] || strings.Contains(strings.ToLower(a.Name.Project+"/"+a.Name.Environment), name)
	}, nil
}

func (x *matchIndex) matchesOf(ctx context.Context, player string, matches map[proto.AllocationID]bool) error {
	found := 0
	for _, id := range x.history.AllocationsOf(player) {
		page, _, err := x.relay.Allocations(ctx, engine.Filter{ID: id}, 0, 1)
		if err == nil && len(page) > 0 {
			page, _, err = x.relay.Allocations(ctx, engine.Filter{ID: id, Player: alloc.HashPlayer(page[0].Name, player)}, 0, 1)
		}
		if err != nil {
			return err
		}
		if len(page) > 0 {
			matches[page[0].Match] = true
			if found++; found == maxOfPlayer {
				break
			}
		}
	}
	return nil
}

func matchPages(mux *http.ServeMux, relay *RelayConfig) {
	index := newMatchIndex(relay.Engine, relay.History, time.Now)
	mux.HandleFunc("GET /matches", func(w http.ResponseWriter, r *http.Request) {
		var found operator.Matches
		m, err := parseMatchQuery(r.URL.Query())
		if err == nil {
			err = withTimeout(r.Context(), func(ctx context.Context) (err error) {
				found, err = index.search(ctx, m)
				return err
			})
		}
		writeAnswer(w, found, err)
	})
}

func matchesOfFleet(mux *http.ServeMux, fleet relays) {
	mux.HandleFunc("GET /matches", func(w http.ResponseWriter, r *http.Request) {
		var found operator.Matches
		m, err := parseMatchQuery(r.URL.Query())
		if err == nil {
			found, err = askFleetMatches(r, fleet, m)
		}
		writeAnswer(w, found, err)
	})
}

// askFleetMatches merges the first matches of all relays that answer. If others are missing, the list
// also says that it is truncated.
func askFleetMatches(r *http.Request, fleet relays, m matchQuery) (found operator.Matches, err error) {
	first := m.offset + m.limit
	if first > operator.MaxRows {
		return found, fmt.Errorf("%w: offset: a fleet shows the first %d matches: narrow the search", errQuery, operator.MaxRows)
	}
	query := url.Values{"q": {m.search}, "sort": {m.sort}, "order": {"desc"}, "limit": {strconv.Itoa(first)}}
	if m.ascending {
		query.Set("order", "asc")
	}
	var all []*operator.Match
	err = withTimeout(r.Context(), func(ctx context.Context) (err error) {
		found.Missing, err = askRelays(ctx, fleet, "/matches?"+query.Encode(), func(relay operator.Node, part operator.Matches) bool {
			for i := range part.Matches {
				part.Matches[i].Relay = relay.ID
				all = append(all, &part.Matches[i])
			}
			found.Total += part.Total
			found.Truncated = found.Truncated || part.Truncated
			return false
		})
		return err
	})
	found.Truncated = found.Truncated || len(found.Missing) > 0
	found.Matches = []operator.Match{} // not null
	page := sortAndCut(all, m, keyOfMatch, func(a, b *operator.Match) int { return cmp.Compare(a.Host.ID, b.Host.ID) })
	for _, match := range page {
		found.Matches = append(found.Matches, *match)
	}
	return found, err
}
