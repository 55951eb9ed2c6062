// Package history records what happens to the allocations of a relay, and the calls of the API that
// were refused, and explains it to the operator. It sums what each player has used. A [Directory] finds
// live allocations by join code and by player.
package history

import (
	"context"
	"encoding/gob"
	"fmt"
	"log/slog"
	"os"
	"slices"
	"time"

	"github.com/ferryrelay/ferry/alloc"
	"github.com/ferryrelay/ferry/alloc/httpapi"
	"github.com/ferryrelay/ferry/engine"
	"github.com/ferryrelay/ferry/internal/base/periodic"
	"github.com/ferryrelay/ferry/internal/privateapi"
	"github.com/ferryrelay/ferry/internal/server/events"
	"github.com/ferryrelay/ferry/internal/server/operator/timeline"
	"github.com/ferryrelay/ferry/proto"
)

const (
	// relayEvents are the events that a relay keeps, about 12 MiB: those of the last 10,000
	// allocations.
	relayEvents = 50_000
	// callEvents are those of an API process, which has no allocations: calls that it refused.
	callEvents = 5_000
	// handOverWithin bounds a hand-over to another process.
	handOverWithin = 10 * time.Second
)

type Config struct {
	Directory *Directory // required
	// Relay is the one that is explained. Nil: there is none, and only calls are recorded.
	Relay *engine.Server
	// MaxContent is that of the relay, in bytes.
	MaxContent int
	// RecoverFor is for how long, since the relay began, allocations of the run before may come
	// back.
	RecoverFor time.Duration
	Logger     *slog.Logger // required
}

type History struct {
	*Directory
	cfg      Config
	line     *timeline.Timeline
	private  *privateSources // nil without a relay
	accounts *accounts
	began    time.Time
}

// New returns a history that begins now.
func New(cfg Config) *History {
	h := &History{Directory: cfg.Directory, cfg: cfg, began: time.Now()}
	h.accounts = newAccounts(h.began)
	if cfg.Relay == nil {
		h.line = timeline.New(callEvents)
		return h
	}
	h.line = timeline.New(relayEvents)
	h.private = &privateSources{stats: cfg.Relay.Stats, log: cfg.Logger, now: time.Now}
	return h
}

// Timeline returns the events.
func (h *History) Timeline() *timeline.Timeline { return h.line }

// Run logs datagrams from private networks that the relay drops, until ctx ends.
func (h *History) Run(ctx context.Context) {
	if h.private != nil {
		periodic.Run(ctx, privateLookEvery, h.private.look)
	}
}

// Subscribe records the events of a stream. Who asks the Directory about an allocation that ends subscribes
// before.
func (h *History) Subscribe(s *events.Stream) {
	s.Reserve.Subscribe(h.recordReserve)
	s.Return.Subscribe(func(e engine.ReserveEvent) {
		h.keepOwner(&e)
		h.add(timeline.Event{ID: e.ID, Peer: e.Host, Kind: timeline.Returned})
	})
	s.Code.Subscribe(func(e privateapi.CodeEvent) {
		h.KeepCode(e.Host, e.Code)
		h.add(timeline.Event{ID: e.Host, Kind: timeline.CodeMade})
	})
	s.Bind.Subscribe(func(e engine.BindEvent) { h.add(timeline.Event{ID: e.ID, Endpoint: e.From, Kind: timeline.Bound}) })
	s.Connect.Subscribe(func(e engine.ConnectEvent) { h.addBoth(timeline.Linked, e.Joiner, e.Host) })
	s.Disconnect.Subscribe(func(e engine.DisconnectEvent) { h.addBoth(timeline.Unlinked, e.From, e.To) })
	s.Refuse.Subscribe(h.recordRefuse)
	s.PlayerLimit.Subscribe(h.recordPlayerLimit)
	s.Migrate.Subscribe(func(e engine.MigrateEvent) {
		h.add(timeline.Event{ID: e.Host, Peer: e.NewHost, Kind: timeline.Migrated})
	})
	s.End.Subscribe(func(e engine.EndEvent) {
		h.add(timeline.Event{ID: e.ID, Project: e.Tenant.Project, Kind: timeline.Ended, Reason: h.endText(e.Reason)})
		h.countEnd(e)
		h.forget(e.ID)
	})
	s.Call.Subscribe(h.recordCall)
}

func (h *History) add(e timeline.Event) {
	if e.Project == "" {
		e.Project = h.OwnerOf(e.ID).Project
	}
	h.line.Add(e, time.Now())
}

func (h *History) addBoth(k timeline.Kind, a, b proto.AllocationID) {
	h.add(timeline.Event{ID: a, Peer: b, Kind: k})
	h.add(timeline.Event{ID: b, Peer: a, Kind: k})
}

// recordCall adds a call of the API that was refused to its project. Callers without a
// project, who have no valid token, must not fill the timeline.
func (h *History) recordCall(r httpapi.Request) {
	if r.Tenant.Project != "" {
		why := fmt.Sprintf("%s: %d %s", r.Call, r.Status, r.Refusal)
		h.add(timeline.Event{Project: r.Tenant.Project, Kind: timeline.CallRefused, Reason: why})
	}
}

func (h *History) recordReserve(e engine.ReserveEvent) {
	h.keepOwner(&e)
	h.add(timeline.Event{ID: e.ID, Peer: e.Host, Kind: timeline.Reserved})
	if e.Role == alloc.RoleJoiner {
		h.add(timeline.Event{ID: e.Host, Peer: e.ID, Kind: timeline.Joined})
	}
}

func (h *History) recordRefuse(e privateapi.RefuseEvent) {
	what := timeline.Event{ID: e.ID, Peer: e.Peer, Endpoint: e.From, Kind: timeline.MessageRefused, Reason: RefusalText(e.Outcome)}
	switch {
	case e.Outcome == "unvalidated": // for the path to the receiver, whose game it spoils
		what = timeline.Event{ID: e.Peer, Peer: e.ID, Kind: timeline.MessageDropped, Reason: what.Reason}
	case e.Message == proto.TypeBind:
		what.Kind = timeline.BindRefused
	case e.Message == proto.TypeConnectRequest:
		what.Kind = timeline.ConnectRefused
	}
	h.add(what)
}

// recordPlayerLimit reports a reservation that was refused at the player's own allocation, and at the
// host that the player would join.
func (h *History) recordPlayerLimit(e privateapi.PlayerLimitEvent) {
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
var limitReasons = map[string]string{
	"hosts":            "the player has as many live hosts at this relay as one may (player_hosts)",
	"joiners":          "the player has as many live joins at this relay as one may (twice player_hosts)",
	"joiners_per_host": "the player has as many live joins at this host as one may (player_seats_per_host)",
	"seats":            "the player's live hosts at this relay have as many seats as those of one player may (player_hosts times max_connections and one)",
}

func (h *History) endText(why engine.EndReason) string {
	if why == engine.EndLost {
		return fmt.Sprintf("it did not come back within %d s of the relay's restart", int(h.cfg.RecoverFor.Seconds()))
	}
	return why.String()
}

type handed struct {
	Owners   map[proto.AllocationID]Owner
	Events   []timeline.Event
	Accounts kept // zero from a process of an earlier version
}

// HandOver writes everything to the process that takes over, and closes the file. A process of an
// earlier version does not read it.
func (h *History) HandOver(to *os.File) error {
	defer to.Close()
	if err := to.SetWriteDeadline(time.Now().Add(handOverWithin)); err != nil {
		return err
	}
	return gob.NewEncoder(to).Encode(handed{h.allOwners(), h.line.All(), h.accounts.all()})
}

// TakeOver reads what the process before this one hands over, and closes the file.
func (h *History) TakeOver(from *os.File) error {
	defer from.Close()
	var all handed
	if err := gob.NewDecoder(from).Decode(&all); err != nil {
		return err
	}
	h.restore(all.Owners, func(id proto.AllocationID) bool {
		return slices.ContainsFunc(h.line.Of(id), func(e timeline.Event) bool { return e.Kind == timeline.Ended })
	})
	h.line.Restore(all.Events)
	h.accounts.restore(all.Accounts)
	return nil
}
