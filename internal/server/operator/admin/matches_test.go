package admin

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"net/url"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/ferryrelay/ferry/alloc"
	"github.com/ferryrelay/ferry/engine"
	"github.com/ferryrelay/ferry/internal/fleet/operator"
	"github.com/ferryrelay/ferry/internal/test/testkit"
	"github.com/ferryrelay/ferry/proto"
)

// manyMatches is a relay with so many hosts, each with a player, and counts its pages.
type manyMatches struct {
	fakeRelay
	hosts, pages, reads int
	age                 time.Duration // of all; 0: they differ
}

func matchID(i int, role byte) proto.AllocationID {
	return proto.AllocationID{role, byte(i >> 16), byte(i >> 8), byte(i)}
}

func (r *manyMatches) Allocations(_ context.Context, f engine.Filter, at uint32, limit int) (page []engine.Allocation,
	next uint32, err error) {
	r.pages++
	for i := int(at); i < 2*r.hosts; i++ {
		if len(page) == limit {
			return page, uint32(i), nil
		}
		a := engine.Allocation{
			ID: matchID(i/2, 1), Match: matchID(i/2, 1), Role: alloc.RoleHost, Transport: "udp4",
			Endpoint:      netip.AddrPortFrom(netip.AddrFrom4([4]byte{192, 0, byte(i >> 9), byte(i >> 1)}), 7),
			SentDatagrams: uint64(i * r.reads), SentBytes: uint64(100 * i * r.reads),
			Age: cmp.Or(r.age, time.Duration(i*7919%r.hosts)*time.Second), Links: i / 2 % 5,
			Name: alloc.Tenant{Project: fmt.Sprint("Game", i/2%3), Environment: "live"},
		}
		if i%2 == 1 {
			a.ID, a.Role = matchID(i/2, 2), alloc.RoleJoiner
			a.Endpoint = netip.AddrPortFrom(netip.AddrFrom4([4]byte{198, 51, byte(i >> 9), byte(i >> 1)}), 7)
		}
		if f.Role != alloc.RoleNone && a.Role != f.Role || !f.ID.IsZero() && a.ID != f.ID {
			continue
		}
		page = append(page, a)
	}
	return page, 0, nil
}

func searchMatches(t *testing.T, h http.Handler, query string, want int) (found operator.Matches) {
	t.Helper()
	r := httptest.NewRequest("GET", "/matches?"+query, nil)
	r.Host = "127.0.0.1"
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	if w.Code != want {
		t.Fatalf("%s: %d %s", query, w.Code, w.Body)
	}
	if want == http.StatusOK {
		if err := json.Unmarshal(w.Body.Bytes(), &found); err != nil {
			t.Fatal(err)
		}
	}
	return found
}

// TestMatches: 10,000 matches, searched and sorted, in pages.
func TestMatches(t *testing.T) {
	t.Parallel()
	testkit.OneGoroutine(t)
	relay := &manyMatches{hosts: 10_000}
	h := New(Config{Relay: &RelayConfig{Engine: relay}})
	search := func(query string) operator.Matches { return searchMatches(t, h, query, http.StatusOK) }

	seen := map[string]bool{}
	last := -1.0
	for offset := 0; offset < 9000; offset += 1000 {
		page := search(fmt.Sprintf("offset=%d&limit=1000", offset))
		if page.Total != 10_000 || len(page.Matches) != 1000 {
			t.Fatalf("%d of %d at %d", len(page.Matches), page.Total, offset)
		}
		for _, m := range page.Matches {
			if seen[m.Host.ID] || m.Host.Role != "host" || m.Host.Age < last {
				t.Fatalf("%+v after age %v", m, last)
			}
			seen[m.Host.ID], last = true, m.Host.Age
		}
	}
	if got := search("sort=players&order=desc&limit=1"); got.Matches[0].Host.Connections != 4 {
		t.Errorf("most players: %+v", got)
	}
	for query, want := range map[string]int{
		"q=" + matchID(7, 1).String():                1,
		"q=" + matchID(7, 2).String():                1, // by its player
		"q=" + matchID(7, 3).String():                0,
		"q=game1":                                    3333,
		"q=" + url.QueryEscape("game2/live"):         3333,
		"q=192.0.0.9":                                1,
		"q=198.51.0.9":                               1,
		"q=" + url.QueryEscape("198.51.3.0/24"):      256,
		"q=" + url.QueryEscape("2001:db8::/32"):      0,
		"q=nothing":                                  0,
		"q=" + url.QueryEscape("::ffff:198.51.0.9"):  1,
		"q=" + url.QueryEscape(" 198.51.0.9 "):       1,
		"q=game1&sort=project&order=asc&limit=1":     3333,
		"q=game1&sort=heard&order=asc&offset=3333":   3333,
		"q=game1&sort=heard&order=asc&offset=100000": -1,
		"sort=size":                                  -1,
		"order=up":                                   -1,
		"limit=1001":                                 -1,
		"page=2":                                     -1,
	} {
		if want < 0 {
			searchMatches(t, h, query, http.StatusBadRequest)
			continue
		}
		if got := search(query); got.Total != want || got.Truncated || got.Matches == nil {
			t.Errorf("%s: %d matches, want %d", query, got.Total, want)
		}
	}
	moment := time.Now()
	index := newMatchIndex(relay, nil, func() time.Time { return moment })
	relay.pages = 0
	for range 9 {
		if _, err := index.search(t.Context(), operator.MatchesQuery{Sort: "age", Order: "desc", Limit: 1}); err != nil {
			t.Fatal(err)
		}
	}
	if relay.pages != 20 {
		t.Errorf("%d pages of 1,000 allocations were read for nine searches in a moment, want 20", relay.pages)
	}
	relay.hosts = maxRead/2 + 1
	if got, more, err := newMatchIndex(relay, nil, time.Now).all(t.Context()); err != nil || !more || len(got) != maxRead/2 {
		t.Errorf("%d hosts, more: %v, %v", len(got), more, err)
	}
}

// TestMatchRates: the traffic of a match per second is that of its members between two reads, or since it
// began.
func TestMatchRates(t *testing.T) {
	t.Parallel()
	now := time.Now()
	relay := &manyMatches{hosts: 20, reads: 1000, age: 500 * time.Second}
	index := newMatchIndex(relay, nil, func() time.Time { return now })
	search := func() operator.Matches {
		found, err := index.search(t.Context(), operator.MatchesQuery{Sort: "rate", Order: "desc", Limit: 100})
		if err != nil {
			t.Fatal(err)
		}
		return found
	}
	has := func(seconds, reads float64) {
		t.Helper()
		for i, m := range search().Matches {
			// Host 2n and its player 2n+1 have sent that many datagrams each in a read.
			want := reads * float64(2*(19-i)*2+1) / seconds
			if m.Datagrams != want || m.Bytes != 100*want {
				t.Fatalf("match %d: %v datagrams/s, %v bytes/s, want %v", i, m.Datagrams, m.Bytes, want)
			}
		}
	}
	has(500, 1000)
	for range 3 {
		now = now.Add(4 * time.Second)
		relay.reads++
		has(4, 1)
	}
	now = now.Add(time.Hour)
	relay.reads, relay.age = relay.reads+1, 2*time.Second
	has(2, 1)
}

// stuckRelay answers no listing until free is closed.
type stuckRelay struct {
	manyMatches
	asked, free chan struct{}
}

func (r *stuckRelay) Allocations(ctx context.Context, f engine.Filter, at uint32, limit int) ([]engine.Allocation, uint32, error) {
	r.asked <- struct{}{}
	<-r.free
	return r.manyMatches.Allocations(ctx, f, at, limit)
}

// TestMatchesWait: a search that another one keeps waiting ends with its own time-out, and the others share
// what was read.
func TestMatchesWait(t *testing.T) {
	t.Parallel()
	relay := &stuckRelay{manyMatches: manyMatches{hosts: 20}, asked: make(chan struct{}, 1), free: make(chan struct{})}
	index := newMatchIndex(relay, nil, time.Now)
	var searches sync.WaitGroup
	defer searches.Wait()
	defer close(relay.free)
	search := func() {
		if got, _, err := index.all(context.Background()); err != nil || len(got) != 20 {
			t.Errorf("%d matches, %v", len(got), err)
		}
	}
	searches.Go(search)
	<-relay.asked // A second listing would wait at it for ever.
	searches.Go(search)
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
	defer cancel()
	ended := make(chan error)
	go func() { _, _, err := index.all(ctx); ended <- err }()
	select {
	case err := <-ended:
		if !errors.Is(err, alloc.ErrUnavailable) {
			t.Errorf("it ended with %v", err)
		}
	case <-time.After(testkit.WaitLimit):
		t.Error("it waits beyond its time-out")
		go func() { <-ended }()
	}
}

// fleetOfMatches answers for relays by the id of each. One does not answer.
type fleetOfMatches struct {
	fakeFleet
	pages map[string]http.Handler
}

func (f *fleetOfMatches) Page(ctx context.Context, relay, target string) (operator.Page, error) {
	if f.pages[relay] == nil {
		return operator.Page{}, alloc.ErrUnavailable
	}
	return RenderPage(ctx, f.pages[relay], target, 1<<20), nil
}

// TestMergedPages: an API process merges the pages of its relays, and names those that are not in the sum: those that do
// not answer, and those of a version without the page. It has no answer if no relay answers, or if it does not know which
// relays there are.
func TestMergedPages(t *testing.T) {
	t.Parallel()
	relay := func(since int64) http.Handler {
		return RelayPages(&RelayConfig{Engine: &manyMatches{hosts: 30}, Since: time.Unix(3000, 0), UsageSince: time.Unix(since, 0),
			History: playersOf{usage: operator.PlayersUsage{Players: []operator.PlayerUsage{{Digest: "a"}}}}})
	}
	fleet := &fleetOfMatches{pages: map[string]http.Handler{
		"one": relay(2000), "two": relay(1000), "old": RelayPages(&RelayConfig{Engine: new(fakeRelay)}),
	}}
	nodes := operator.Nodes{Nodes: []operator.Node{{ID: "one", Role: "relay"}, {ID: "two", Role: "relay"}, {ID: "api", Role: "api"}}}
	h := New(Config{Fleet: fleet, Nodes: func(context.Context) (operator.Nodes, error) { return nodes, nil }})
	searchMatches(t, h, "offset=901&limit=100", http.StatusBadRequest)
	if got := searchMatches(t, h, "limit=10&offset=50", http.StatusOK); got.Total != 60 || len(got.Matches) != 10 || got.Truncated {
		t.Errorf("%d of %d matches, truncated: %t", len(got.Matches), got.Total, got.Truncated)
	}
	page := func(path string, status int, wants ...string) {
		t.Helper()
		w := get(h, "GET", path)
		for _, want := range wants {
			if w.Code != status || !strings.Contains(w.Body.String(), want) {
				t.Errorf("%s: %d %s, want %d %s", path, w.Code, w.Body, status, want)
			}
		}
	}
	page("/usage", http.StatusOK, `{"since":"`+time.Unix(1000, 0).Format(time.RFC3339)+`","projects":[{"others":true,`, `"players":4,`)
	heard := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	nodes.Nodes = append(nodes.Nodes, operator.Node{ID: "dead", Role: "relay", Region: "eu", State: operator.StateDead, LastHeartbeat: heard},
		operator.Node{ID: "old", Role: "relay", Region: "us"})
	page("/usage/players", http.StatusOK, `"players":[{"player":"","digest":"a"`,
		`"missing":[{"relay":"dead","region":"eu","reason":"dead, last heard at 2026-01-02T03:04:05Z"},`+
			`{"relay":"old","region":"us","reason":"its version does not have this page"}]`)
	page("/matches", http.StatusOK, `"truncated":true,"missing":[{"relay":"dead"`)
	nodes.StoreAway = heard
	page("/usage", http.StatusOK, `"missing":[{"reason":"the store has not answered since 2026-01-02T03:04:05Z`)
	fleet.pages = nil
	page("/usage", http.StatusServiceUnavailable, "unavailable")
	nodes.Nodes = nodes.Nodes[2:3]
	page("/usage", http.StatusServiceUnavailable, "it is not known which relays there are")
}

type playersOf struct {
	History
	usage operator.PlayersUsage
}

func (h playersOf) PlayerUsage(context.Context, string, string) (operator.PlayersUsage, error) {
	return h.usage, nil
}

func (h playersOf) CodeOf(proto.AllocationID) string   { return "" }
func (h playersOf) PlayerOf(proto.AllocationID) string { return "" }
