package timeline

import (
	"fmt"
	"time"
)

type Player struct {
	Host   bool    // it is a host's
	Events []Event // of it, see [Timeline.Of]
	// HostEvents are those of its host, if it is a joiner's and the host is known.
	HostEvents []Event
	// Live: it has not ended. Bound: it has an endpoint. Links are its open links, and Silent
	// is the time since its owner was last heard.
	Live, Bound bool
	Links       int
	Silent      time.Duration
	// Recovered: it came back after a restart of the relay. AwaitedLinks are its links of
	// before that may still come back.
	Recovered    bool
	AwaitedLinks int
	// Awaited: it is not live, and may come back. WasLive: it was live before the restart.
	Awaited, WasLive bool
	// HostLive and HostAwaited are the same of its host.
	HostLive, HostAwaited bool
	// Large are the messages to it that are too large for some.
	Large LargeMessages
	// Path is its path, if that takes less than the largest message needs. Zero: it takes all, as
	// far as the relay knows.
	Path NarrowPath
	// NameCut: only the beginning of its player's name is known.
	NameCut bool
	// Relay is what its relay is and does.
	Relay Relay
	Now   time.Time
}

// LargeMessages counts messages to a player: those that were larger than its transport carries, and those
// that were forwarded, but that not every client takes.
type LargeMessages struct{ Dropped, Forwarded uint32 }

// NarrowPath has the size in bytes of the largest packet that a path takes, and that of the content in it.
type NarrowPath struct{ MTU, Content int }

type Relay struct {
	// Began is when the relay began to run, and ReturnBy the time until which allocations of
	// the run before may come back.
	Began, ReturnBy time.Time
	UDPPort         uint16
	// DroppedPrivate: it has dropped datagrams from private networks since the player's
	// reservation. Over DTLS, they do not tell whose they are.
	DroppedPrivate bool
}

// silentAfter is from when on Explain says that a player is silent: clients send a PING
// each 3 s or more often.
const silentAfter = 4 * time.Second

// bindWithin is how long Explain waits for a BIND before it suspects the network.
const bindWithin = 3 * time.Second

// Explain says in one sentence why a player is not in its match, or that it is, and whether
// messages to it are too large.
func Explain(p Player) string {
	return p.explain() + p.explainLarge() + p.explainPath() + p.explainLimit() + p.explainName()
}

// largeCure is the setting of senders by which no message is too large.
const largeCure = ": set maxMessageSize 1363 on udp and 1377 on ws at the senders (Unity Transport 2.0.2 cannot)"

func (p *Player) explainLarge() string {
	switch {
	case p.Large.Dropped > 0:
		return fmt.Sprintf("; but %d messages to it were dropped, larger than its transport carries", p.Large.Dropped) + largeCure
	case p.Large.Forwarded > 0:
		return fmt.Sprintf("; but %d messages to it may be too large for its client, as over dtls for Unity Transport 2.x", p.Large.Forwarded) + largeCure
	}
	return ""
}

func (p *Player) explainPath() string {
	if !p.Live || p.Path.MTU == 0 {
		return ""
	}
	return fmt.Sprintf("; its path takes packets of %d bytes: content of more than %d bytes reaches it in fragments, which some networks drop", p.Path.MTU, p.Path.Content)
}

// limitFor is how long Explain reports a reservation that was refused for a player's limit.
const limitFor = time.Minute

func (p *Player) explainLimit() string {
	e := summarize(p.Events).limitReached
	switch {
	case e == nil || p.Now.Sub(e.Last) >= limitFor:
		return ""
	case p.Host && !e.Peer.IsZero():
		return "; a player could not join it " + p.times(e)
	}
	return "; a further reservation of its player was refused " + p.times(e)
}

func (p *Player) explainName() string {
	if !p.NameCut {
		return ""
	}
	return "; its player's name is cut, since connection data has no room for more: a search for the whole name in the console finds the match"
}

func (p *Player) explain() string {
	s := summarize(p.Events)
	switch {
	case !p.Live:
		return p.explainAbsent(&s)
	case !p.Bound && s.bound != nil:
		return fmt.Sprintf("bound %s, but another allocation has bound its endpoint since, so that it needs another BIND", p.ago(s.bound))
	case !p.Bound:
		return p.explainUnbound(&s)
	case s.bindRefused != nil && s.bindRefused.isAfter(s.bound) && p.Silent >= silentAfter:
		return "it was bound, but its later BIND is refused " + p.times(s.bindRefused)
	case p.Silent >= silentAfter:
		return p.since("bound", s.bound) + fmt.Sprintf(", but nothing has arrived from it for %s: its connection is lost, or the game has stopped",
			age(p.Silent))
	case p.Links > 0:
		return p.explainLinked(&s)
	case p.AwaitedLinks > 0:
		return p.explainReturned(&s)
	case !p.Host:
		return p.explainUnlinked(&s)
	case s.joined != nil:
		return p.since("bound", s.bound) + fmt.Sprintf(", but no player is linked: ask for %s, which joined %s", s.joined.Peer, p.ago(s.joined))
	case s.reserved == nil:
		return p.since("bound", s.bound) + ", and no player is linked; " + p.unknownBefore()
	}
	return p.since("bound", s.bound) + ", but no player has joined by its code"
}

// unknownBefore is said of an allocation whose first events are not known.
func (p *Player) unknownBefore() string {
	if p.Recovered {
		return "what happened before the relay's restart is not known"
	}
	return "its earlier events are too old to be kept, or of an earlier run"
}

func (p *Player) explainAbsent(s *summary) string {
	switch {
	case s.ended != nil:
		return p.explainEnd(s)
	case s.bindRefused != nil:
		return "it is not live: its BIND is refused " + p.times(s.bindRefused)
	case p.WasLive:
		return fmt.Sprintf("it was live before the relay's restart %s ago, and has not come back: it may for another %s, if its game still runs and reaches the relay",
			age(p.Now.Sub(p.Relay.Began)), age(p.Relay.ReturnBy.Sub(p.Now)))
	case p.Awaited:
		return fmt.Sprintf("nothing is known of it: if it was live before the relay's restart %s ago, it may come back for another %s",
			age(p.Now.Sub(p.Relay.Began)), age(p.Relay.ReturnBy.Sub(p.Now)))
	case s.last == nil:
		return fmt.Sprintf("nothing is known of it: it is of another relay, or it ended long ago, or before this one began %s ago", age(p.Now.Sub(p.Relay.Began)))
	}
	return "it is not live any more, and its end is not known"
}

// explainReturned is for one that came back after a restart, and whose links did not.
func (p *Player) explainReturned(s *summary) string {
	text := p.since("it came back", s.returned) + " after the relay's restart"
	host := summarize(p.HostEvents)
	switch {
	case p.Host:
		return text + fmt.Sprintf(", but %d of the players that were linked before are not linked again: a link comes back with the host's next message to a player that is back", p.AwaitedLinks)
	case host.ended != nil:
		return text + fmt.Sprintf(", but its host ended %s: %s", p.ago(host.ended), host.ended.Reason)
	case p.HostAwaited:
		return text + ", but its host has not: until then it is not linked"
	case !p.HostLive:
		return text + ", but its host is not live"
	}
	return text + "; a link that it had comes back with the host's next message to it, at the latest"
}

// fromPrivate is why nothing arrives, if the relay drops datagrams from private networks.
const fromPrivate = "the relay drops datagrams from private networks, as behind a container's proxy or a NAT that loops back, and this player may be among them: set allow_private_sources"

func (p *Player) explainEnd(s *summary) string {
	text := fmt.Sprintf("it ended %s: %s", p.ago(s.ended), s.ended.Reason)
	switch {
	case s.migrated != nil:
		return text + fmt.Sprintf("; the match goes on at the host %s", s.migrated.Peer)
	case s.bound != nil && s.linked == nil && s.connectRefused != nil:
		return text + ", not linked, since its CONNECT_REQUEST was refused " + p.times(s.connectRefused)
	case s.bound != nil:
		return text
	case s.bindRefused != nil && s.bindRefused.First.After(s.ended.Last):
		return text + ", and its BIND came too late " + p.times(s.bindRefused)
	case s.bindRefused != nil:
		return text + ", since its BIND was refused " + p.times(s.bindRefused)
	}
	if s.reserved == nil {
		return text
	}
	if p.Relay.DroppedPrivate {
		return text + ", since no BIND had arrived: " + fromPrivate
	}
	return text + fmt.Sprintf(", since no BIND had arrived: UDP port %d was probably blocked on its side", p.Relay.UDPPort)
}

func (p *Player) explainUnbound(s *summary) string {
	arrived := "joined"
	if p.Host {
		arrived = "allocated"
	}
	switch {
	case s.bindRefused != nil:
		return "its BIND is refused " + p.times(s.bindRefused)
	case s.reserved == nil:
		return "it is not bound; " + p.unknownBefore()
	case s.messageRefused != nil || s.connectRefused != nil:
		return fmt.Sprintf("%s %s, and other messages have arrived, but no BIND: BIND comes first, from the same socket", arrived, p.ago(s.reserved))
	}
	if p.Now.Sub(s.reserved.Last) < bindWithin {
		return fmt.Sprintf("%s %s, and no BIND has arrived yet: games send it at once and repeat it each second", arrived, p.ago(s.reserved))
	}
	if p.Relay.DroppedPrivate {
		return fmt.Sprintf("%s %s, but no BIND has arrived: ", arrived, p.ago(s.reserved)) + fromPrivate
	}
	return fmt.Sprintf("%s %s, but no BIND has arrived: UDP port %d is probably blocked on its side, or the game sends to another address",
		arrived, p.ago(s.reserved), p.Relay.UDPPort)
}

func (p *Player) explainLinked(s *summary) string {
	recent := func(e *Event) bool {
		return e != nil && e.isAfter(s.linked) && p.Now.Sub(e.Last) < time.Minute
	}
	switch {
	case recent(s.messageDropped):
		return "it plays, " + p.since("linked", s.linked) + ", but some messages to it are dropped " + p.times(s.messageDropped)
	case recent(s.messageRefused):
		return "it plays, " + p.since("linked", s.linked) + ", but some of its messages are refused " + p.times(s.messageRefused)
	}
	text := "it plays: bound, and " + p.since("linked", s.linked)
	if p.Host && p.AwaitedLinks > 0 {
		text += fmt.Sprintf("; %d of the players that were linked before the relay's restart are not linked again", p.AwaitedLinks)
	}
	return text
}

// explainUnlinked is for a joiner that is bound, heard and not linked.
func (p *Player) explainUnlinked(s *summary) string {
	host := summarize(p.HostEvents)
	switch {
	case host.ended != nil && s.connectRefused != nil:
		return fmt.Sprintf("bound, but its CONNECT_REQUEST names a host that ended %s: %s", p.ago(host.ended), host.ended.Reason)
	case host.ended != nil:
		return fmt.Sprintf("bound, but its host ended %s: %s", p.ago(host.ended), host.ended.Reason)
	case host.reserved != nil && host.bound == nil:
		return "bound, but its host is not bound yet, so that it cannot be linked"
	case s.connectRefused != nil && (s.unlinked == nil || s.connectRefused.Last.After(s.unlinked.Last)):
		return "bound, but its CONNECT_REQUEST is refused " + p.times(s.connectRefused)
	case s.unlinked != nil:
		return fmt.Sprintf("its link was closed %s, and it has not requested another one", p.ago(s.unlinked))
	case s.reserved == nil && s.returned == nil:
		return p.since("bound", s.bound) + ", but not linked; " + p.unknownBefore()
	case s.messageRefused != nil && s.messageRefused.isAfter(s.bound):
		return "bound, but no CONNECT_REQUEST has arrived, and other messages are refused " + p.times(s.messageRefused)
	case s.returned != nil:
		return p.since("it came back", s.returned) + " after the relay's restart without a link, and no CONNECT_REQUEST has arrived since: the game does not connect to the host"
	}
	return p.since("bound", s.bound) + ", but no CONNECT_REQUEST has arrived: the game does not connect to the host"
}

// since says what happened, and when, if the event is known.
func (p *Player) since(what string, e *Event) string {
	if e == nil {
		return what
	}
	return what + " " + p.ago(e)
}

func (p *Player) ago(e *Event) string { return age(p.Now.Sub(e.Last)) + " ago" }

// times says how often something was refused, when last and why.
func (p *Player) times(e *Event) string {
	n := "once"
	if e.Count > 1 {
		n = fmt.Sprintf("%d times", e.Count)
	}
	return fmt.Sprintf("(%s, the last %s): %s", n, p.ago(e), e.Reason)
}

type summary struct {
	last, reserved, returned, joined, bound, linked, unlinked, ended *Event

	migrated                       *Event
	bindRefused, connectRefused    *Event
	messageRefused, messageDropped *Event
	limitReached                   *Event
}

func summarize(events []Event) (s summary) {
	fields := [numKinds]**Event{
		Reserved: &s.reserved, Returned: &s.returned, Joined: &s.joined, Bound: &s.bound, Linked: &s.linked, Unlinked: &s.unlinked,
		Ended: &s.ended, Migrated: &s.migrated,
		BindRefused: &s.bindRefused, ConnectRefused: &s.connectRefused, MessageRefused: &s.messageRefused, MessageDropped: &s.messageDropped,
		LimitReached: &s.limitReached,
	}
	for i := range events {
		e := &events[i]
		s.last = e
		if f := fields[e.Kind]; f != nil && (*f == nil || !e.Last.Before((*f).Last)) {
			*f = e
		}
	}
	return s
}

func age(d time.Duration) string {
	switch d = max(d, 0); {
	case d < 2*time.Minute:
		return fmt.Sprintf("%d s", int(d.Seconds()))
	case d < 2*time.Hour:
		return fmt.Sprintf("%d min", int(d.Minutes()))
	}
	return fmt.Sprintf("%d h", int(d.Hours()))
}
