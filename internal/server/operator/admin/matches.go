package admin

import (
	"bytes"
	"context"
	"fmt"
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
)

func keyOfRead(m *readMatch) operator.MatchKey {
	return operator.MatchKey{Age: seconds(m.Age), Heard: seconds(m.SinceReceived), Bytes: m.bytes, Players: m.Links,
		Project: m.Name.Project, Environment: m.Name.Environment}
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

func (x *matchIndex) search(ctx context.Context, q operator.MatchesQuery) (operator.Matches, error) {
	hosts, truncated, err := x.all(ctx)
	if err != nil {
		return operator.Matches{}, err
	}
	selects, err := x.selector(ctx, strings.TrimSpace(q.Search))
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
	byID := func(a, b *readMatch) int { return bytes.Compare(a.ID[:], b.ID[:]) }
	for _, h := range operator.SortMatches(selected, &q, keyOfRead, byID) {
		found.Matches = append(found.Matches, operator.Match{Host: allocationOf(h.Allocation, x.history),
			Datagrams: h.datagrams, Bytes: h.bytes})
	}
	return found, nil
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
		_, err := history.EachAllocation(ctx, x.relay, engine.Filter{Bound: true}, maxRead, func(a engine.Allocation) {
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
