package operator

import (
	"net/url"
	"reflect"
	"strconv"
	"testing"
	"time"
)

// TestQueries: what ferry ctl or an API process sends is what the page reads.
func TestQueries(t *testing.T) {
	allocations := AllocationsQuery{
		Host: "a b/c", Tenant: "00000000000000ff", Project: "p&q", Environment: "e", Match: "m", Role: "host", Bound: "false", Transport: "ws",
		Cursor: 7, Limit: 3,
	}
	roundTrip(t, ListPlayers, allocations, "/allocations/a%20b%2Fc/players?bound=false&cursor=7&environment=e&limit=3&match=m&project=p%26q"+
		"&role=host&tenant=00000000000000ff&transport=ws")
	roundTrip(t, ListAllocations, ListAllocations.Default, "/allocations?limit=100")
	roundTrip(t, ListMatches, MatchesQuery{Search: "x", Sort: "rate", Order: "desc", Offset: 9000, Limit: 1000},
		"/matches?limit=1000&offset=9000&order=desc&q=x&sort=rate")
	roundTrip(t, ListTimeline, TimelineQuery{Project: "p"}, "/timeline?limit=0&project=p")
	roundTrip(t, ListPlayerUsage, PlayersQuery{Project: "p", Environment: "e", Sort: "live", Top: 5},
		"/usage/players?environment=e&project=p&sort=live&top=5")
	roundTrip(t, ListWhy, NameQuery{"QX7KPD"}, "/why/QX7KPD")
	roundTrip(t, ListAffected, BanQuery{Prefix: "2001:db8::/48", For: "1h0m0s"}, "/bans/affected?for=1h0m0s&prefix=2001%3Adb8%3A%3A%2F48")
	roundTrip(t, ListNodes, NoQuery{}, "/nodes")
}

func roundTrip[Q, A any](t *testing.T, l *List[Q, A], q Q, target string) {
	t.Helper()
	if got := l.Target(q); got != target {
		t.Errorf("asks %s, want %s", got, target)
	}
	at, err := url.Parse(target)
	if err != nil {
		t.Fatal(err)
	}
	name := func(name string) string {
		for i, f := range fields(q) {
			if f.Tag.Get("path") == name {
				return reflect.ValueOf(q).Field(i).String()
			}
		}
		return ""
	}
	if got, err := l.Parse(at.Query(), name); err != nil || !reflect.DeepEqual(got, q) {
		t.Errorf("%s: reads %+v, %v, want %+v", target, got, err, q)
	}
}

// merge is the answer of a fleet whose relays "1", "2", ... answer with these parts.
func merge[Q, A any](l *List[Q, A], q Q, missing []Missing, parts ...A) (all A) {
	for i := range parts {
		if l.Merge(&all, &parts[i], &Node{ID: strconv.Itoa(i + 1)}) {
			break
		}
	}
	if l.Finish != nil {
		l.Finish(&all, &q, missing)
	}
	return all
}

// TestMerge: each listing of a fleet is the sum of what its relays answer, or the first of them in order.
func TestMerge(t *testing.T) {
	away := []Missing{{}, {Relay: "3"}}
	first, second := time.Unix(1000, 0), time.Unix(2000, 0)
	check := func(got, want any) {
		t.Helper()
		if !reflect.DeepEqual(got, want) {
			t.Errorf("%+v\nwant %+v", got, want)
		}
	}
	check(merge(ListUsage, NoQuery{}, away,
		Usage{Since: second, Projects: []ProjectUsage{{Others: true, Bytes: 3}, {Tenant: "ff", Players: 2, PlayerSeconds: 1.5, Datagrams: 9}}},
		Usage{Since: first, Projects: []ProjectUsage{{Tenant: "ff", Project: "p", Players: 1, PlayerSeconds: 1, Datagrams: 1}, {Tenant: "ee"}}},
	), Usage{Since: first, Missing: away, Projects: []ProjectUsage{
		{Others: true, Bytes: 3}, {Tenant: "ff", Project: "p", Players: 3, PlayerSeconds: 2.5, Datagrams: 10}, {Tenant: "ee"},
	}})
	player := func(digest string, n int, bytes uint64) PlayerUsage {
		return PlayerUsage{Digest: digest, PlayerCounts: PlayerCounts{n, n, 2 * float64(n), 3 * uint64(n), bytes}}
	}
	check(merge(ListPlayerUsage, PlayersQuery{Sort: "bytes", Top: 2}, nil,
		PlayersUsage{Since: second, Others: PlayerCounts{Bytes: 1}, Players: []PlayerUsage{
			player("a", 1, 10), player("b", 1, 25), player("c", 1, 5),
		}},
		PlayersUsage{Since: first, Others: PlayerCounts{Bytes: 1}, Players: []PlayerUsage{player("a", 1, 20)}},
	), PlayersUsage{Since: first, Players: []PlayerUsage{player("a", 2, 30), player("b", 1, 25)}, Others: player("c", 1, 7).PlayerCounts})
	match := func(relay, id string, age float64) Match {
		return Match{Relay: relay, Host: Allocation{ID: id, Age: age}}
	}
	found := []Matches{
		{Total: 40, Matches: []Match{match("", "d", 1), match("", "b", 3)}}, {Total: 2, Matches: []Match{match("", "c", 2), match("", "a", 3)}},
	}
	check(merge(ListMatches, MatchesQuery{Sort: "age", Order: "asc", Offset: 1, Limit: 2}, nil, found...),
		Matches{Total: 42, Matches: []Match{match("2", "c", 2), match("2", "a", 3)}})
	check(merge(ListMatches, MatchesQuery{Sort: "age", Order: "desc", Limit: 1}, away, found...),
		Matches{Total: 42, Matches: []Match{match("2", "a", 3)}, Truncated: true, Missing: away})
	check(merge(ListMatches, ListMatches.Default, nil), Matches{Matches: []Match{}})
	event := func(relay string, at int64) WhyEvent { return WhyEvent{Relay: relay, Last: time.Unix(at, 0)} }
	check(merge(ListTimeline, TimelineQuery{Limit: 3}, away, ProjectTimeline{Events: []WhyEvent{event("", 4), event("", 1)}},
		ProjectTimeline{Events: []WhyEvent{event("", 3), event("", 2)}}),
		ProjectTimeline{Events: []WhyEvent{event("1", 4), event("2", 3), event("2", 2)}, Missing: away})
	check(merge(ListWhy, NameQuery{}, nil, Why{Awaited: true}, Why{}, Why{Known: true}, Why{Known: true, Role: "host"}),
		Why{Relay: "3", Known: true})
	check(merge(ListAffected, BanQuery{}, away, Affected{Hosts: 1, Others: 2}, Affected{Hosts: 1, Joiners: 3, WebSockets: 4, Shared: 5}),
		Affected{Hosts: 2, Others: 2, Joiners: 3, WebSockets: 4, Shared: 5, MissingRelays: 1})
}
