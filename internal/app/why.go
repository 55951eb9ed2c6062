package app

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/ferryrelay/ferry/alloc"
	"github.com/ferryrelay/ferry/alloc/httpapi"
	"github.com/ferryrelay/ferry/engine"
	"github.com/ferryrelay/ferry/internal/admin"
	"github.com/ferryrelay/ferry/internal/sock"
	"github.com/ferryrelay/ferry/internal/timeline"
	"github.com/ferryrelay/ferry/proto"
)

const (
	// timelineEvents are the events that a relay keeps, about 12 MiB: those of the last 10,000
	// allocations.
	timelineEvents = 50_000
	// callEvents are those of an API process, which has no allocations: calls that it refused.
	callEvents = 5_000
)

// history writes what happens to allocations, and the calls that are refused, into a timeline,
// and explains it. Hooks of the relay and of the API call its methods.
type history struct {
	line    *timeline.Timeline
	relay   *engine.Server  // set before the relay runs; nil in an API process
	private *privateSources // set with relay
	// maxContent is the relay's, in bytes.
	maxContent int
	now        func() time.Time

	mu sync.Mutex // guards what follows
	// The join codes of live hosts, both ways. Two tenants may have the same code by
	// chance; byCode then has the newer one.
	byCode map[string]proto.AllocationID
	codes  map[proto.AllocationID]string
	// owners are those of live allocations that were reserved in this run, at most maxOwners.
	owners map[proto.AllocationID]owner
}

// owner is the project of an allocation, and the player, "" if this process did not serve the
// call: a relay of a fleet knows none.
type owner struct{ project, player string }

// maxOwners bounds the memory of owners to some 12 MB.
const maxOwners = 100_000

func newHistory(events int) *history {
	return &history{
		line: timeline.New(events), now: time.Now,
		byCode: map[string]proto.AllocationID{}, codes: map[proto.AllocationID]string{}, owners: map[proto.AllocationID]owner{},
	}
}

func (h *history) add(e timeline.Event) {
	if e.Project == "" {
		h.mu.Lock()
		e.Project = h.owners[e.ID].project
		h.mu.Unlock()
	}
	h.line.Add(e, h.now())
}

// refusedCall adds a call of the API that was refused to its project. Callers without a
// project, who have no valid token, must not fill the timeline.
func (h *history) refusedCall(r httpapi.Refusal) {
	if r.Tenant.Project != "" {
		h.add(timeline.Event{Project: r.Tenant.Project, Kind: timeline.CallRefused, Reason: fmt.Sprintf("%s: %d %s", r.Call, r.Status, r.Reason)})
	}
}

func (h *history) reserved(e engine.ReserveEvent) {
	h.mu.Lock()
	if len(h.owners) < maxOwners {
		h.owners[e.ID] = owner{project: e.Name.Project}
	}
	h.mu.Unlock()
	h.add(timeline.Event{ID: e.ID, Peer: e.Host, Kind: timeline.Reserved})
	if e.Role == alloc.RoleJoiner {
		h.add(timeline.Event{ID: e.Host, Peer: e.ID, Kind: timeline.Joined})
	}
}

// reservedFor keeps the player of a reservation that the API made.
func (h *history) reservedFor(e alloc.ReservationEvent) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if o, ok := h.owners[e.ID]; ok { // It has not ended in the meantime.
		o.player = e.Request.Caller.Player
		h.owners[e.ID] = o
	}
}

func (h *history) codeMade(e engine.CodeEvent) {
	h.add(timeline.Event{ID: e.Host, Kind: timeline.CodeMade})
	h.keepCode(e.Host, e.Code)
}

// keepCode keeps the join code of a live host, or of one that may come back.
func (h *history) keepCode(host proto.AllocationID, code string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.forgetCode(host)
	h.byCode[code], h.codes[host] = host, code
}

// forgetCode is called with the lock held.
func (h *history) forgetCode(host proto.AllocationID) {
	if code, ok := h.codes[host]; ok {
		delete(h.codes, host)
		if h.byCode[code] == host {
			delete(h.byCode, code)
		}
	}
}

func (h *history) bound(e engine.BindEvent) {
	h.add(timeline.Event{ID: e.ID, Endpoint: e.From, Kind: timeline.Bound})
}

func (h *history) linked(e engine.ConnectEvent) {
	h.add(timeline.Event{ID: e.Joiner, Peer: e.Host, Kind: timeline.Linked})
	h.add(timeline.Event{ID: e.Host, Peer: e.Joiner, Kind: timeline.Linked})
}

func (h *history) unlinked(e engine.DisconnectEvent) {
	h.add(timeline.Event{ID: e.From, Peer: e.To, Kind: timeline.Unlinked})
	h.add(timeline.Event{ID: e.To, Peer: e.From, Kind: timeline.Unlinked})
}

func (h *history) refused(e engine.RefuseEvent) {
	what := timeline.Event{ID: e.ID, Peer: e.Peer, Endpoint: e.From, Kind: timeline.MessageRefused, Reason: refusalText(e.Outcome)}
	switch {
	case e.Outcome == engine.DropUnvalidated: // for the path to the receiver, whose game it spoils
		what = timeline.Event{ID: e.Peer, Peer: e.ID, Kind: timeline.MessageDropped, Reason: what.Reason}
	case e.Message == proto.TypeBind:
		what.Kind = timeline.BindRefused
	case e.Message == proto.TypeConnectRequest:
		what.Kind = timeline.ConnectRefused
	}
	h.add(what)
}

func (h *history) ended(e engine.EndEvent) {
	h.add(timeline.Event{ID: e.ID, Project: e.Tenant.Project, Kind: timeline.Ended, Reason: e.Reason.String()})
	h.mu.Lock()
	defer h.mu.Unlock()
	h.forgetCode(e.ID)
	delete(h.owners, e.ID)
}

func (h *history) migrates(e engine.MigrateEvent) {
	h.add(timeline.Event{ID: e.Host, Peer: e.Candidate, Kind: timeline.Migrated})
}

// HostOf returns the host of a join code, in any case of letters.
func (h *history) HostOf(code string) (proto.AllocationID, bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	host, ok := h.byCode[strings.ToUpper(code)]
	return host, ok
}

// CodeOf returns the join code of a live host; "": it has none.
func (h *history) CodeOf(host proto.AllocationID) string {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.codes[host]
}

// PlayerOf returns the player of a live allocation, "" if it is not known.
func (h *history) PlayerOf(id proto.AllocationID) string {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.owners[id].player
}

// AllocationsOf returns at most so many live allocations of a player.
func (h *history) AllocationsOf(player string, most int) (all []proto.AllocationID) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for id, o := range h.owners {
		if o.player == player && len(all) < most {
			all = append(all, id)
		}
	}
	return all
}

// Why returns the events of an allocation, what they mean, and the same of the players that
// joined it.
func (h *history) Why(ctx context.Context, id proto.AllocationID) (admin.Why, error) {
	p, err := h.player(ctx, id)
	if err != nil {
		return admin.Why{}, err
	}
	answer := admin.Why{ID: id.String(), Known: p.Live || len(p.Events) > 0, Because: timeline.Explain(p), JoinCode: h.CodeOf(id), Player: h.PlayerOf(id)}
	if answer.Known {
		answer.Role = role(p.Host).String()
	}
	var joiners []proto.AllocationID
	for _, e := range p.Events {
		answer.Events = append(answer.Events, admin.EventOf(&e))
		if e.Kind == timeline.Joined {
			joiners = append(joiners, e.Peer)
		}
	}
	for _, joiner := range joiners[max(0, len(joiners)-whyPlayers):] {
		q, err := h.player(ctx, joiner)
		if err != nil {
			return admin.Why{}, err
		}
		answer.Players = append(answer.Players, admin.WhyPlayer{ID: joiner.String(), Player: h.PlayerOf(joiner), Because: timeline.Explain(q)})
	}
	return answer, nil
}

// whyPlayers is the largest number of players that an answer explains.
const whyPlayers = 100

func role(host bool) alloc.Role {
	if host {
		return alloc.RoleHost
	}
	return alloc.RoleJoiner
}

// player returns what is known of an allocation.
func (h *history) player(ctx context.Context, id proto.AllocationID) (timeline.Player, error) {
	live, _, err := h.relay.Allocations(ctx, engine.Filter{ID: id}, 0, 1)
	if err != nil {
		return timeline.Player{}, err
	}
	p := timeline.Player{Host: true, Events: h.line.Of(id), UDPPort: h.relay.Addr().Port(), Now: h.now()}
	if len(live) > 0 {
		p.Live, p.Links, p.Silent = true, live[0].Links, live[0].SinceReceived
		p.Host = live[0].Role == alloc.RoleHost
		p.LargeDrops, p.LargeMessages = live[0].LargeDrops, live[0].LargeMessages
		p.PathMTU, p.PathContent = h.path(&live[0])
	}
	for _, e := range p.Events {
		if e.Kind == timeline.Reserved {
			p.PrivateSources = h.private.droppedSince(e.Last)
		}
		if e.Kind == timeline.Reserved && !e.Peer.IsZero() {
			p.Host, p.HostEvents = false, h.line.Of(e.Peer)
		}
	}
	return p, nil
}

// path returns the largest packet that the path to an allocation takes, and the content in it,
// if that is less than the largest content: the kernel heeds it over IPv6. Over WebSocket
// TCP does.
func (h *history) path(a *engine.Allocation) (mtu, content int) {
	headers := ipv6Headers + proto.RelayOverhead
	if a.Kind == engine.KindDTLS {
		headers += dtlsOverhead
	}
	mtu, err := sock.PathMTU(a.Endpoint.Addr())
	if err != nil || mtu >= min(headers+h.maxContent, usualMTU) {
		return 0, 0
	}
	return mtu, mtu - headers
}

const (
	ipv6Headers  = 40 + 8 // of IPv6 and UDP
	dtlsOverhead = 37     // of a record
	usualMTU     = 1500   // of a path that is not narrow
)
