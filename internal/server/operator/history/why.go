package history

import (
	"context"
	"slices"
	"time"

	"github.com/ferryrelay/ferry/alloc"
	"github.com/ferryrelay/ferry/engine"
	"github.com/ferryrelay/ferry/internal/fleet/operator"
	"github.com/ferryrelay/ferry/internal/net/sock"
	"github.com/ferryrelay/ferry/internal/privateapi"
	"github.com/ferryrelay/ferry/internal/server/operator/timeline"
	"github.com/ferryrelay/ferry/proto"
)

// Why returns the events of an allocation, what they mean, and the same of the players that
// joined it.
func (h *History) Why(ctx context.Context, id proto.AllocationID) (operator.Why, error) {
	p, err := h.player(ctx, id)
	if err != nil {
		return operator.Why{}, err
	}
	answer := operator.Why{
		ID: id.String(), Role: p.role(), Known: p.Live || p.WasLive || len(p.Events) > 0, Awaited: p.Awaited,
		Because: timeline.Explain(p.Player), JoinCode: h.CodeOf(id), Player: h.PlayerOf(id),
	}
	var joiners []proto.AllocationID
	for _, e := range p.Events {
		answer.Events = append(answer.Events, e.Row())
		if e.Kind == timeline.Joined {
			joiners = append(joiners, e.Peer)
		}
	}
	if p.Live && p.Host { // Those whose events are not known too.
		live, _, err := h.cfg.Relay.Allocations(ctx, engine.Filter{Match: id, Role: alloc.RoleJoiner}, 0, whyPlayers)
		if err != nil {
			return operator.Why{}, err
		}
		for i := range live {
			if !slices.Contains(joiners, live[i].ID) {
				joiners = append(joiners, live[i].ID)
			}
		}
	}
	for _, joiner := range joiners[max(0, len(joiners)-whyPlayers):] {
		q, err := h.player(ctx, joiner)
		if err != nil {
			return operator.Why{}, err
		}
		answer.Players = append(answer.Players, operator.WhyPlayer{ID: joiner.String(), Player: h.PlayerOf(joiner),
			Because: timeline.Explain(q.Player)})
	}
	return answer, nil
}

// whyPlayers is the largest number of players that an answer explains.
const whyPlayers = 100

type known struct {
	timeline.Player
	match proto.AllocationID // the host, zero if it is not known
}

func (p *known) role() string {
	switch {
	case p.Host:
		return alloc.RoleHost.String()
	case !p.match.IsZero():
		return alloc.RoleJoiner.String()
	}
	return ""
}

func (h *History) player(ctx context.Context, id proto.AllocationID) (p known, err error) {
	live, _, err := h.cfg.Relay.Allocations(ctx, engine.Filter{ID: id}, 0, 1)
	if err != nil {
		return p, err
	}
	p.Events, p.NameCut, p.Now = h.line.Of(id), h.OwnerOf(id).Cut, time.Now()
	p.Relay = timeline.Relay{Began: h.began, ReturnBy: h.began.Add(h.cfg.RecoverFor), UDPPort: h.cfg.Relay.Addr().Port()}
	for _, e := range p.Events {
		switch e.Kind {
		case timeline.Reserved:
			p.Relay.DroppedPrivate = h.private.droppedSince(e.Last)
			fallthrough
		case timeline.Returned:
			p.match, p.Host = e.Peer, e.Peer.IsZero()
		}
	}
	if len(live) > 0 {
		a := &live[0]
		p.Live, p.Bound, p.Links, p.Silent = true, a.Transport != "", a.Links, a.SinceReceived
		p.Recovered, p.AwaitedLinks = a.Recovered, a.AwaitedLinks
		p.Host, p.match = a.Role == alloc.RoleHost, a.Match
		p.Large, p.Path = timeline.LargeMessages{Dropped: a.LargeDrops, Forwarded: a.LargeMessages}, h.narrowPath(a)
	} else {
		presence, role, err := h.cfg.Relay.Private().Presence(ctx, id)
		if err != nil {
			return p, err
		}
		p.WasLive = presence == privateapi.Awaited
		p.Awaited = mayReturn(presence)
		p.Host = p.Host || role == alloc.RoleHost
	}
	if p.Host || p.match.IsZero() {
		return p, nil
	}
	p.HostEvents = h.line.Of(p.match)
	host, _, err := h.cfg.Relay.Private().Presence(ctx, p.match)
	if err != nil {
		return p, err
	}
	p.HostLive, p.HostAwaited = host == privateapi.Live, mayReturn(host)
	return p, nil
}

func mayReturn(p privateapi.Presence) bool {
	return p == privateapi.Awaited || p == privateapi.MayComeBack
}

// narrowPath returns the path to an allocation, if it takes less than the largest content: the kernel heeds
// that over IPv6. Over WebSocket TCP does.
func (h *History) narrowPath(a *engine.Allocation) timeline.NarrowPath {
	if a.Endpoint.Port() == 0 {
		return timeline.NarrowPath{}
	}
	headers := ipv6Headers + proto.RelayOverhead
	if a.Transport == "dtls" {
		headers += dtlsOverhead
	}
	mtu, err := sock.PathMTU(a.Endpoint.Addr())
	if err != nil || mtu >= min(headers+h.cfg.MaxContent, usualMTU) {
		return timeline.NarrowPath{}
	}
	return timeline.NarrowPath{MTU: mtu, Content: mtu - headers}
}

const (
	ipv6Headers  = 40 + 8 // of IPv6 and UDP
	dtlsOverhead = 37     // of a record
	usualMTU     = 1500   // of a path that is not narrow
)
