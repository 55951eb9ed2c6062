package process

import (
	"context"
	"encoding/gob"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/ferryrelay/ferry/alloc"
	"github.com/ferryrelay/ferry/alloc/httpapi"
	"github.com/ferryrelay/ferry/engine"
	"github.com/ferryrelay/ferry/internal/net/sock"
	"github.com/ferryrelay/ferry/internal/server/operator/admin"
	"github.com/ferryrelay/ferry/internal/server/operator/timeline"
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
	// recoverFor is for how long, since the relay began, allocations of the run before may
	// come back.
	recoverFor time.Duration
	began      time.Time
	now        func() time.Time

	mu sync.Mutex // guards what follows
	// The join codes of live hosts, both ways. Two tenants may have the same code by
	// chance; byCode then has the newer one.
	byCode map[string]proto.AllocationID
	codes  map[proto.AllocationID]string
	// owners are those of live allocations, at most maxOwners.
	owners map[proto.AllocationID]owner
}

// owner is the project of an allocation, and the player, "" if it is not known. Cut: Player is
// only the beginning of its name.
type owner struct {
	Project, Player string
	Cut             bool
}

// ellipsis ends a name that is displayed and of which only the beginning is known.
const ellipsis = "…"

// maxOwners bounds the memory of owners to some 12 MB.
const maxOwners = 100_000

func newHistory(events int) *history {
	return &history{
		line: timeline.New(events), began: time.Now(), now: time.Now,
		byCode: map[string]proto.AllocationID{}, codes: map[proto.AllocationID]string{}, owners: map[proto.AllocationID]owner{},
	}
}

func (h *history) add(e timeline.Event) {
	if e.Project == "" {
		h.mu.Lock()
		e.Project = h.owners[e.ID].Project
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
	h.keepOwner(e.ID, owner{e.Name.Project, e.Player, e.PlayerCut})
	h.add(timeline.Event{ID: e.ID, Peer: e.Host, Kind: timeline.Reserved})
	if e.Role == alloc.RoleJoiner {
		h.add(timeline.Event{ID: e.Host, Peer: e.ID, Kind: timeline.Joined})
	}
}

// returned is called for an allocation that came back after a restart.
func (h *history) returned(e engine.ReturnEvent) {
	h.keepOwner(e.ID, owner{e.Name.Project, e.Player, e.PlayerCut})
	h.add(timeline.Event{ID: e.ID, Peer: e.Host, Kind: timeline.Returned})
}

func (h *history) keepOwner(id proto.AllocationID, o owner) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if len(h.owners) < maxOwners {
		h.owners[id] = o
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

// atLimit reports a reservation that was refused at the player's own allocation, and at the
// host that the player would join.
func (h *history) atLimit(e engine.PlayerLimitEvent) {
	what := timeline.Event{ID: e.Newest, Kind: timeline.LimitReached, Reason: limitReasons[e.Limit]}
	if !e.Newest.IsZero() {
		h.add(what)
	}
	if !e.Host.IsZero() {
		what.ID, what.Peer = e.Host, e.Newest
		h.add(what)
	}
}

// limitReasons say why a player may not have another allocation.
var limitReasons = [engine.NumPlayerLimits]string{
	engine.PlayerHosts:   "the player has as many live hosts at this relay as one may (player_hosts)",
	engine.PlayerJoiners: "the player has as many live joins at this relay as one may (player_joiners)",
	engine.PlayerSeats:   "the player's live hosts at this relay have as many seats as those of one player may (player_seats)",
}

func (h *history) ended(e engine.EndEvent) {
	h.add(timeline.Event{ID: e.ID, Project: e.Tenant.Project, Kind: timeline.Ended, Reason: h.endText(e.Reason)})
	h.mu.Lock()
	defer h.mu.Unlock()
	h.forgetCode(e.ID)
	delete(h.owners, e.ID)
}

// endText says why an allocation ended.
func (h *history) endText(why engine.EndReason) string {
	if why == engine.EndLost {
		return fmt.Sprintf("it did not come back within %d s of the relay's restart", int(h.recoverFor.Seconds()))
	}
	return why.String()
}

func (h *history) migrates(e engine.MigrateEvent) {
	h.add(timeline.Event{ID: e.Host, Peer: e.NewHost, Kind: timeline.Migrated})
}

// handedHistory is what a process hands over to the one that replaces it.
type handedHistory struct {
	Owners map[proto.AllocationID]owner
	Events []timeline.Event
}

// handOver writes everything to the process that takes over. One of an earlier version does not
// read it.
func (h *history) handOver(to *os.File) error {
	defer to.Close()
	if err := to.SetWriteDeadline(time.Now().Add(handOverWithin)); err != nil {
		return err
	}
	h.mu.Lock()
	handed := handedHistory{Owners: maps.Clone(h.owners)}
	h.mu.Unlock()
	handed.Events = h.line.All()
	return gob.NewEncoder(to).Encode(handed)
}

// takeOver reads what the process before this one hands over.
func (h *history) takeOver(from *os.File) error {
	defer from.Close()
	var handed handedHistory
	if err := gob.NewDecoder(from).Decode(&handed); err != nil {
		return err
	}
	h.mu.Lock()
	for id, o := range handed.Owners {
		ended := func(e timeline.Event) bool { return e.Kind == timeline.Ended }
		if _, known := h.owners[id]; !known && !slices.ContainsFunc(h.line.Of(id), ended) && len(h.owners) < maxOwners {
			h.owners[id] = o
		}
	}
	h.mu.Unlock()
	h.line.Restore(handed.Events)
	return nil
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

func (h *history) ownerOf(id proto.AllocationID) owner {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.owners[id]
}

// PlayerOf returns the player of a live allocation, "" if it is not known, with an ellipsis if
// only the beginning is.
func (h *history) PlayerOf(id proto.AllocationID) string {
	o := h.ownerOf(id)
	if o.Cut {
		return o.Player + ellipsis
	}
	return o.Player
}

// AllocationsOf returns the live allocations that may be of a player: of some only the beginning
// of the player's name is known.
func (h *history) AllocationsOf(player string) (all []proto.AllocationID) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for id, o := range h.owners {
		if o.Player == player || o.Cut && strings.HasPrefix(player, o.Player) {
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
	answer := admin.Why{
		ID: id.String(), Role: p.role(), Known: p.Live || p.WasLive || len(p.Events) > 0, Awaited: p.Awaited,
		Because: timeline.Explain(p.Player), JoinCode: h.CodeOf(id), Player: h.PlayerOf(id),
	}
	var joiners []proto.AllocationID
	for _, e := range p.Events {
		answer.Events = append(answer.Events, admin.EventOf(&e))
		if e.Kind == timeline.Joined {
			joiners = append(joiners, e.Peer)
		}
	}
	if p.Live && p.Host { // Those whose events are not known too.
		live, _, err := h.relay.Allocations(ctx, engine.Filter{Match: id, Role: alloc.RoleJoiner}, 0, whyPlayers)
		if err != nil {
			return admin.Why{}, err
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
			return admin.Why{}, err
		}
		answer.Players = append(answer.Players, admin.WhyPlayer{ID: joiner.String(), Player: h.PlayerOf(joiner), Because: timeline.Explain(q.Player)})
	}
	return answer, nil
}

// whyPlayers is the largest number of players that an answer explains.
const whyPlayers = 100

// known is what is known of an allocation.
type known struct {
	timeline.Player
	match proto.AllocationID // the host, zero if it is not known
}

// role returns the role of the allocation, "" if it is not known.
func (p *known) role() string {
	switch {
	case p.Host:
		return alloc.RoleHost.String()
	case !p.match.IsZero():
		return alloc.RoleJoiner.String()
	}
	return ""
}

// player returns what is known of an allocation.
func (h *history) player(ctx context.Context, id proto.AllocationID) (p known, err error) {
	live, _, err := h.relay.Allocations(ctx, engine.Filter{ID: id}, 0, 1)
	if err != nil {
		return p, err
	}
	p.Events, p.UDPPort, p.Now = h.line.Of(id), h.relay.Addr().Port(), h.now()
	p.Began, p.ReturnBy, p.NameCut = h.began, h.began.Add(h.recoverFor), h.ownerOf(id).Cut
	for _, e := range p.Events {
		switch e.Kind {
		case timeline.Reserved:
			p.PrivateSources = h.private.droppedSince(e.Last)
			fallthrough
		case timeline.Returned:
			p.match, p.Host = e.Peer, e.Peer.IsZero()
		}
	}
	if len(live) > 0 {
		a := &live[0]
		p.Live, p.Bound, p.Links, p.Silent = true, a.Kind != engine.KindNone, a.Links, a.SinceReceived
		p.Recovered, p.AwaitedLinks = a.Recovered, a.AwaitedLinks
		p.Host, p.match = a.Role == alloc.RoleHost, a.Match
		p.LargeDrops, p.LargeMessages = a.LargeDrops, a.LargeMessages
		p.PathMTU, p.PathContent = h.path(a)
	} else {
		awaited, err := h.relay.Awaited(ctx, id)
		if err != nil {
			return p, err
		}
		p.Awaited, p.WasLive = awaited.Possible, awaited.Certain
		p.Host = p.Host || awaited.Role == alloc.RoleHost
	}
	if p.Host || p.match.IsZero() {
		return p, nil
	}
	p.HostEvents = h.line.Of(p.match)
	host, err := h.relay.Awaited(ctx, p.match)
	if err != nil {
		return p, err
	}
	p.HostLive, p.HostAwaited = host.Live, host.Possible
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
