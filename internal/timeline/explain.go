package timeline

import (
	"fmt"
	"time"
)

// Player is what is known of an allocation, for [Explain].
type Player struct {
	Host   bool    // it is a host's
	Events []Event // of it, see [Timeline.Of]
	// HostEvents are those of its host, if it is a joiner's and the host is known.
	HostEvents []Event
	// UDPPort is the relay's, which players have to reach.
	UDPPort uint16
	Now     time.Time
}

// Explain says in one sentence why a player is not in its match, or that it is.
func Explain(p Player) string {
	s := summary(p.Events)
	if s.last == nil {
		return "nothing is known of it: it is of another relay or run, or ended long ago"
	}
	ago := func(e *Event) string { return age(p.Now.Sub(e.Last)) + " ago" }
	arrived := "joined"
	if p.Host {
		arrived = "allocated"
	}
	switch {
	case s.ended != nil:
		return fmt.Sprintf("it ended %s: %s", ago(s.ended), s.ended.Reason)
	case s.bound == nil && s.refused != nil:
		return fmt.Sprintf("its BIND is refused: %s (%d times, the last %s)", s.refused.Reason, s.refused.Count, ago(s.refused))
	case s.bound == nil && s.reserved != nil:
		return fmt.Sprintf("%s %s, and no BIND has arrived: UDP port %d is probably blocked on the player's side, or the game sends to another address",
			arrived, ago(s.reserved), p.UDPPort)
	case p.Host && s.linked == nil && s.joined == nil:
		return fmt.Sprintf("bound %s, and nobody has joined by its code yet", ago(s.bound))
	case p.Host && s.linked == nil:
		return fmt.Sprintf("bound %s, and no player is linked: ask for the players that have joined", ago(s.bound))
	case s.linked != nil && !s.apart():
		return fmt.Sprintf("it plays: bound, and linked %s", ago(s.linked))
	case s.apart():
		return fmt.Sprintf("its link was closed %s, and it has not asked for another one", ago(s.unlinked))
	}
	host := summary(p.HostEvents)
	switch {
	case host.ended != nil:
		return fmt.Sprintf("bound, but its host ended %s: %s", ago(host.ended), host.ended.Reason)
	case host.last != nil && host.bound == nil:
		return "bound, but its host has not bound yet, so that it cannot be linked"
	case s.refused != nil && s.refused.Last.After(s.bound.Last):
		return fmt.Sprintf("bound, but its CONNECT_REQUEST is refused: %s (%d times, the last %s)", s.refused.Reason, s.refused.Count, ago(s.refused))
	}
	return fmt.Sprintf("bound %s, and no CONNECT_REQUEST has arrived: the game does not connect to the host", ago(s.bound))
}

// lately has the newest event of each kind.
type lately struct{ last, reserved, joined, bound, linked, unlinked, refused, ended *Event }

func summary(events []Event) (s lately) {
	for i := range events {
		e := &events[i]
		s.last = e
		switch e.Kind {
		case Reserved:
			s.reserved = e
		case Joined:
			s.joined = e
		case Bound:
			s.bound = e
		case Linked:
			s.linked = e
		case Unlinked:
			s.unlinked = e
		case Refused:
			s.refused = e
		case Ended:
			s.ended = e
		}
	}
	return s
}

// apart reports whether the last link was closed.
func (s *lately) apart() bool {
	return s.unlinked != nil && (s.linked == nil || s.unlinked.Last.After(s.linked.Last))
}

// age is a duration as a person says it.
func age(d time.Duration) string {
	switch d = max(d, 0); {
	case d < 2*time.Minute:
		return fmt.Sprintf("%d s", int(d.Seconds()))
	case d < 2*time.Hour:
		return fmt.Sprintf("%d min", int(d.Minutes()))
	}
	return fmt.Sprintf("%d h", int(d.Hours()))
}
