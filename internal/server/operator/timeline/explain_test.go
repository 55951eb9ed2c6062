package timeline

import (
	"strings"
	"testing"
	"time"

	"github.com/ferryrelay/ferry/proto"
)

// TestExplain plants causes, and expects each to be named.
func TestExplain(t *testing.T) {
	at := func(kind Kind, second int, reason string) Event {
		when := began.Add(time.Duration(second) * time.Second)
		return Event{Kind: kind, Reason: reason, First: when, Last: when, Count: 3}
	}
	events := func(list ...Event) []Event { return list }
	liveHost := events(at(Reserved, 0, ""), at(Bound, 1, ""))
	for name, c := range map[string]struct {
		player Player
		want   string
	}{
		"unknown": {Player{}, "nothing is known of it"},
		"blocked": {Player{Events: events(at(Reserved, 8, "")), HostEvents: liveHost},
			"joined 12 s ago, but no BIND has arrived: UDP port 7777 is probably blocked"},
		"blocked host": {Player{Host: true, Events: events(at(Reserved, 8, ""))}, "allocated 12 s ago, but no BIND has arrived"},
		"private source": {Player{Relay: Relay{DroppedPrivate: true}, Events: events(at(Reserved, 8, "")), HostEvents: liveHost},
			"no BIND has arrived: the relay drops datagrams from private networks, as behind a container's proxy or a NAT that loops back, and this player may be among them: set allow_private_sources"},
		"was private": {Player{Relay: Relay{DroppedPrivate: true}, Events: events(at(Reserved, 0, ""), at(Ended, 17, "expired"))},
			"since no BIND had arrived: the relay drops datagrams from private networks"},
		"wrong key": {Player{Events: events(at(Reserved, 8, ""), at(BindRefused, 10, "its signature is wrong"))},
			"its BIND is refused (3 times, the last 10 s ago): its signature is wrong"},
		"at a limit": {Player{Host: true, Bound: true, Links: 1, Events: events(at(Bound, 5, ""), at(Linked, 6, ""),
			at(LimitReached, 18, "it has 4 hosts"))}, "it plays: bound, and linked 14 s ago; a further reservation of its player was refused (3 times, the last 2 s ago): it has 4 hosts"},
		"join at a limit": {Player{Host: true, Bound: true, Events: events(at(Bound, 1, ""), at(Reserved, 0, ""),
			Event{Kind: LimitReached, Peer: proto.AllocationID{7}, Reason: "8 joins", Last: began.Add(18 * time.Second), Count: 1})},
			"but no player has joined by its code; a player could not join it (once, the last 2 s ago): 8 joins"},
		"cut name": {Player{NameCut: true, Events: events(at(Reserved, 8, "")), HostEvents: liveHost},
			"; its player's name is cut, since connection data has no room for more"},
		"just joined": {Player{Events: events(at(Reserved, 19, "")), HostEvents: liveHost}, "joined 1 s ago, and no BIND has arrived yet"},
		"gave up": {Player{Events: events(at(Bound, 5, ""), at(ConnectRefused, 6, "the host is full"), at(Ended, 17, "closed"))},
			"it ended 3 s ago: closed, not linked, since its CONNECT_REQUEST was refused (3 times, the last 14 s ago): the host is full"},
		"never bound": {Player{Events: events(at(Reserved, 0, ""), at(Ended, 17, "expired"))},
			"it ended 3 s ago: expired, since no BIND had arrived: UDP port 7777"},
		"never let in": {Player{Events: events(at(Reserved, 0, ""), at(BindRefused, 1, "old nonce"), at(Ended, 17, "expired"))},
			"it ended 3 s ago: expired, since its BIND was refused (3 times, the last 19 s ago): old nonce"},
		"late bind": {Player{Events: events(at(Reserved, 0, ""), at(Ended, 17, "expired"), at(BindRefused, 18, "it has ended"))},
			"it ended 3 s ago: expired, and its BIND came too late (3 times, the last 2 s ago): it has ended"},
		"expired": {Player{Events: events(at(Reserved, 0, ""), at(Bound, 1, ""), at(Ended, 17, "expired"))},
			"it ended 3 s ago: expired"},
		"live, evicted": {Player{Live: true}, "its earlier events are too old"},
		"silent":        {Player{Silent: 9 * time.Second, Events: events(at(Bound, 1, ""))}, "nothing has arrived from it for 9 s"},
		"cannot return": {Player{Silent: 9 * time.Second, Events: events(at(Bound, 1, ""), at(BindRefused, 5, "old nonce"))},
			"its later BIND is refused"},
		"no BIND": {Player{Events: events(at(Reserved, 8, ""), at(MessageRefused, 9, "not bound"))},
			"joined 12 s ago, and other messages have arrived, but no BIND"},
		"early RELAY": {Player{Events: events(at(Bound, 5, ""), at(MessageRefused, 6, "no link")), HostEvents: liveHost},
			"bound, but no CONNECT_REQUEST has arrived, and other messages are refused (3 times, the last 14 s ago): no link"},
		"ended host": {Player{Events: events(at(Bound, 5, ""), at(ConnectRefused, 18, "not found")),
			HostEvents: events(at(Bound, 0, ""), at(Ended, 17, "closed"))}, "its CONNECT_REQUEST names a host that ended 3 s ago: closed"},
		"quota": {Player{Links: 1, Events: events(at(Bound, 5, ""), at(Linked, 6, ""), at(MessageRefused, 18, "above a limit"))},
			"it plays, linked 14 s ago, but some of its messages are refused (3 times, the last 2 s ago): above a limit"},
		"limited path": {Player{Links: 1, Events: events(at(Bound, 5, ""), at(Linked, 6, ""), at(MessageRefused, 17, "above a limit"),
			at(MessageDropped, 18, "its path"))}, "it plays, linked 14 s ago, but some messages to it are dropped (3 times, the last 2 s ago): its path"},
		"no request": {Player{Events: events(at(Reserved, 1, ""), at(Bound, 5, "")), HostEvents: liveHost},
			"bound 15 s ago, but no CONNECT_REQUEST has arrived"},
		"full": {Player{Events: events(at(Bound, 5, ""), at(ConnectRefused, 6, "the host is full")), HostEvents: liveHost},
			"bound, but its CONNECT_REQUEST is refused (3 times, the last 14 s ago): the host is full"},
		"host has ended": {Player{Events: events(at(Bound, 5, "")), HostEvents: events(at(Bound, 0, ""), at(Ended, 17, "closed"))},
			"bound, but its host ended 3 s ago: closed"},
		"host not bound": {Player{Events: events(at(Bound, 5, "")), HostEvents: events(at(Reserved, 0, ""))}, "its host is not bound yet"},
		"plays": {Player{Links: 1, Events: events(at(Bound, 5, ""), at(Linked, 6, "")), HostEvents: liveHost},
			"it plays: bound, and linked 14 s ago"},
		"too large": {Player{Links: 1, Large: LargeMessages{3, 9}, Events: events(at(Bound, 5, ""), at(Linked, 6, ""))},
			"linked 14 s ago; but 3 messages to it were dropped, larger than its transport carries: set maxMessageSize 1363 on udp"},
		"maybe too large": {Player{Large: LargeMessages{Forwarded: 9}, Events: events(at(Bound, 5, ""), at(Linked, 6, ""), at(Unlinked, 18, ""))},
			"and it has not requested another one; but 9 messages to it may be too large for its client"},
		"narrow path": {Player{Live: true, Links: 1, Path: NarrowPath{1280, 1194}, Events: events(at(Bound, 5, ""), at(Linked, 6, ""))},
			"linked 14 s ago; its path takes packets of 1280 bytes: content of more than 1194 bytes reaches it in fragments, which some networks drop"},
		"left": {Player{Events: events(at(Bound, 5, ""), at(Linked, 6, ""), at(Unlinked, 18, "")), HostEvents: liveHost},
			"its link was closed 2 s ago"},
		"nobody joins":     {Player{Host: true, Events: events(at(Reserved, 0, ""), at(Bound, 1, ""))}, "no player has joined by its code"},
		"joined, no links": {Player{Host: true, Events: events(at(Bound, 1, ""), at(Joined, 2, ""))}, "no player is linked"},
		"host plays":       {Player{Host: true, Links: 1, Events: events(at(Bound, 1, ""), at(Joined, 2, ""), at(Linked, 3, ""))}, "it plays"},
	} {
		c.player.Relay.UDPPort, c.player.Relay.Began, c.player.Now = 7777, began.Add(-time.Hour), began.Add(20*time.Second)
		if s := summarize(c.player.Events); s.last != nil && s.ended == nil { // It is live, with all its events.
			c.player.Live, c.player.Bound = true, s.bound != nil
			if s.reserved == nil {
				c.player.Events = append(events(at(Reserved, 0, "")), c.player.Events...)
			}
		}
		if got := Explain(c.player); !strings.Contains(got, c.want) {
			t.Errorf("%s: %q, want %q", name, got, c.want)
		}
	}
	for d, want := range map[time.Duration]string{-time.Second: "0 s", 90 * time.Second: "90 s", 5 * time.Minute: "5 min",
		3 * time.Hour: "3 h"} {
		if got := age(d); got != want {
			t.Errorf("%v: %s", d, got)
		}
	}
}

// TestExplainUnknown: of what happened before a restart, or has left the timeline, nothing is
// claimed.
func TestExplainUnknown(t *testing.T) {
	t.Parallel()
	at := func(kind Kind, second int, reason string) Event {
		when := began.Add(time.Duration(second) * time.Second)
		return Event{Kind: kind, Reason: reason, First: when, Last: when, Count: 1}
	}
	back := []Event{at(Returned, 5, ""), at(Bound, 5, "")}
	with := func(more ...Event) []Event { return append(back[:2:2], more...) }
	for name, c := range map[string]struct {
		player Player
		want   string
	}{
		"unknown": {Player{}, "nothing is known of it: it is of another relay, or it ended long ago, or before this one began 20 s ago"},
		"not back": {Player{Awaited: true, WasLive: true},
			"it was live before the relay's restart 20 s ago, and has not come back: it may for another 40 s"},
		"perhaps not back": {Player{Awaited: true}, "nothing is known of it: if it was live before the relay's restart 20 s ago, it may come back for another 40 s"},
		"lost":             {Player{Events: []Event{at(Ended, 15, "it did not come back")}}, "it ended 5 s ago: it did not come back"},
		"ended before": {Player{Events: []Event{at(BindRefused, 15, "it has ended")}},
			"it is not live: its BIND is refused (once, the last 5 s ago): it has ended"},
		"end not known": {Player{Events: []Event{at(Bound, 1, "")}}, "it is not live any more, and its end is not known"},
		"quiet host": {Player{Host: true, Live: true, Bound: true, Recovered: true, AwaitedLinks: 2, Events: back},
			"it came back 15 s ago after the relay's restart, but 2 of the players that were linked before are not linked again: a link comes back with the host's next message"},
		"host, some linked": {Player{Host: true, Live: true, Bound: true, Recovered: true, AwaitedLinks: 2, Links: 1,
			Events: with(at(Linked, 8, ""))}, "it plays: bound, and linked 12 s ago; 2 of the players that were linked before the relay's restart are not linked again"},
		"host without links": {Player{Host: true, Live: true, Bound: true, Recovered: true, Events: back},
			"bound 15 s ago, and no player is linked; what happened before the relay's restart is not known"},
		"host that was joined": {Player{Host: true, Live: true, Bound: true, Recovered: true, Events: with(at(Joined, 7, ""))},
			"which joined 13 s ago"},
		"quiet joiner": {Player{Live: true, Bound: true, Recovered: true, AwaitedLinks: 1, HostLive: true, Events: back},
			"it came back 15 s ago after the relay's restart; a link that it had comes back with the host's next message to it"},
		"host not back": {Player{Live: true, Bound: true, Recovered: true, AwaitedLinks: 1, HostAwaited: true, Events: back},
			"after the relay's restart, but its host has not: until then it is not linked"},
		"host lost": {Player{Live: true, Bound: true, Recovered: true, AwaitedLinks: 1, Events: back,
			HostEvents: []Event{at(Ended, 15, "it did not come back")}}, "but its host ended 5 s ago: it did not come back"},
		"host gone": {Player{Live: true, Bound: true, Recovered: true, AwaitedLinks: 1, Events: back}, "but its host is not live"},
		"was not linked": {Player{Live: true, Bound: true, Recovered: true, HostLive: true, Events: back},
			"it came back 15 s ago after the relay's restart without a link, and no CONNECT_REQUEST has arrived since"},
		"linked again": {Player{Live: true, Bound: true, Recovered: true, Links: 1, Events: with(at(Linked, 8, ""))},
			"it plays: bound, and linked 12 s ago"},
		"silent since": {Player{Live: true, Bound: true, Recovered: true, AwaitedLinks: 1, Silent: 9 * time.Second, Events: back},
			"nothing has arrived from it for 9 s"},
		"plays, no events": {Player{Live: true, Bound: true, Links: 1}, "it plays: bound, and linked"},
		"refused, no events": {Player{Live: true, Bound: true, Links: 1, Events: []Event{at(MessageRefused, 18, "above a limit")}},
			"it plays, linked, but some of its messages are refused (once, the last 2 s ago)"},
		"silent, no events": {Player{Live: true, Bound: true, Links: 1, Silent: 9 * time.Second},
			"bound, but nothing has arrived from it for 9 s"},
		"host, no events": {Player{Live: true, Host: true, Bound: true},
			"bound, and no player is linked; its earlier events are too old to be kept"},
		"joiner, no events": {Player{Live: true, Bound: true, HostLive: true},
			"bound, but not linked; its earlier events are too old to be kept"},
		"roamed, no events": {Player{Live: true, Bound: true, Links: 1, Host: true, Events: []Event{at(Bound, 18, "")}},
			"it plays: bound, and linked"},
		"host of a roamed one": {Player{Live: true, Bound: true, HostLive: true, Events: []Event{at(Bound, 3, "")},
			HostEvents: []Event{at(Joined, 18, "")}}, "bound 17 s ago, but not linked"},
		"its endpoint taken": {Player{Live: true, Links: 1, Events: []Event{at(Reserved, 1, ""), at(Bound, 3, "")}},
			"another allocation has bound its endpoint since"},
	} {
		c.player.Relay, c.player.Now = Relay{UDPPort: 7777, Began: began, ReturnBy: began.Add(time.Minute)}, began.Add(20*time.Second)
		if got := Explain(c.player); !strings.Contains(got, c.want) {
			t.Errorf("%s: %q, want %q", name, got, c.want)
		}
	}
}
