// Package bans keeps the bans of one process, in a file or in the store of its fleet, and applies them to
// its relay.
package bans

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"math"
	"net/netip"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/ferryrelay/ferry/alloc"
	"github.com/ferryrelay/ferry/alloc/httpapi"
	"github.com/ferryrelay/ferry/engine"
	"github.com/ferryrelay/ferry/internal/base/keyfile"
	"github.com/ferryrelay/ferry/internal/base/periodic"
	"github.com/ferryrelay/ferry/internal/fleet/operator"
	"github.com/ferryrelay/ferry/internal/fleet/redisstore"
	"github.com/ferryrelay/ferry/internal/privateapi"
	"github.com/ferryrelay/ferry/internal/server/events"
	"github.com/ferryrelay/ferry/internal/server/operator/admin"
	"github.com/ferryrelay/ferry/internal/server/operator/ban"
	"github.com/ferryrelay/ferry/internal/server/operator/history"
	"github.com/ferryrelay/ferry/proto"
)

// bansEvery is how often a process ends bans whose time is over, and in a fleet reads those of
// other processes.
const bansEvery = 2 * time.Second

type Store interface {
	SetBan(ctx context.Context, id, text string, until time.Time, most int) error
	RestoreBans(ctx context.Context, all []redisstore.Ban, number uint64) (bool, error)
	DeleteBan(ctx context.Context, id string) (bool, error)
	Bans(ctx context.Context) (bans []redisstore.Ban, number uint64, err error)
}

type Relay interface {
	SetBannedSources([]netip.Prefix)
	Allocations(context.Context, engine.Filter, uint32, int) ([]engine.Allocation, uint32, error)
	Kick(context.Context, proto.AllocationID) error
	End(context.Context, proto.AllocationID) error
}

type WebSocket interface {
	SetBannedSources([]netip.Prefix)
	Private() privateapi.WebSocket
}

// Config says where the bans are, and to what they apply.
type Config struct {
	Store     Store     // nil: this process alone has the bans
	Writes    bool      // this process may change them
	File      string    // without a store; empty: the bans end with the process
	Relay     Relay     // nil: there is none
	WebSocket WebSocket // nil: there is none
	// Tokens returns the static tokens in force, and Anonymous says that players need none.
	Tokens    func() []httpapi.Token
	Anonymous bool
	Logger    *slog.Logger
}

// Keeper keeps and applies the bans of this process: of its API, and of its relay. Any goroutine may call
// its methods.
type Keeper struct {
	cfg Config
	now func() time.Time

	list atomic.Pointer[ban.List]

	changing gate            // of changes of list, with the calls of the store for them
	number   uint64          // of the last change of the store that was read; for who is in changing
	applying gate            // of apply
	applied  map[string]bool // for who is in applying
	due      chan struct{}   // capacity 1: again has a ban

	mu     sync.Mutex      // guards what follows; held during no call
	again  map[string]bool // ids of bans to be applied once more
	failed bool            // the store did not answer last time
	began  time.Time
	read   time.Time // when the store was last read; zero: never
}

// gate lets one goroutine at a time do what takes long. The others wait no longer than their context.
type gate chan struct{}

func newGate() gate { return make(gate, 1) }

func (g gate) enter(ctx context.Context) error {
	select {
	case g <- struct{}{}:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("%w: another change is not done: %w", alloc.ErrUnavailable, ctx.Err())
	}
}

func (g gate) leave() { <-g }

// openBans reads the file, if there is one. It refuses one that it cannot read: the operator
// relies on the bans.
func openBans(file string) ([]operator.Ban, error) {
	if file == "" {
		return nil, nil
	}
	content, err := os.ReadFile(file)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	var all []operator.Ban
	if err == nil {
		err = json.Unmarshal(content, &all)
	}
	if err != nil {
		return nil, fmt.Errorf("bans: %s: %w; remove the file to begin without bans", file, err)
	}
	return all, nil
}

// New returns a keeper with the bans of the file.
func New(cfg Config) (*Keeper, error) {
	k := &Keeper{
		cfg: cfg, now: time.Now, began: time.Now(), changing: newGate(), applying: newGate(), applied: map[string]bool{},
		again: map[string]bool{}, due: make(chan struct{}, 1),
	}
	return k, k.Load()
}

// Load reads the file again, before Run.
func (k *Keeper) Load() error {
	all, err := openBans(k.cfg.File)
	if err != nil {
		return err
	}
	if err := k.changing.enter(context.Background()); err != nil {
		return err
	}
	defer k.changing.leave()
	k.put(all)
	return nil
}

// Refuses returns an error for a caller who is banned.
func (k *Keeper) Refuses(c alloc.Caller) error { return k.list.Load().Refuses(c) }

// put makes these the bans. Callers are in changing.
func (k *Keeper) put(all []operator.Ban) {
	list := ban.NewList(all, k.now())
	k.list.Store(list)
	prefixes := list.Prefixes()
	if k.cfg.Relay != nil {
		k.cfg.Relay.SetBannedSources(prefixes)
	}
	if k.cfg.WebSocket != nil {
		k.cfg.WebSocket.SetBannedSources(prefixes)
	}
}

// Run applies bans until ctx ends. The relay stops after it.
func (k *Keeper) Run(ctx context.Context) error {
	k.refresh(ctx)
	next := periodic.Next(bansEvery)
	for {
		k.apply(ctx)
		select {
		case <-ctx.Done():
			return nil
		case <-k.due:
		case <-next:
			next = periodic.Next(bansEvery)
			k.refresh(ctx)
		}
	}
}

// Subscribe has a ban applied again when its player binds what another process reserved before it knew of the
// ban, or what came back after a restart.
func (k *Keeper) Subscribe(s *events.Stream) {
	s.Bind.Subscribe(func(e engine.BindEvent) {
		id, banned := k.list.Load().BanOf(e.Player)
		if !banned {
			return
		}
		k.mu.Lock()
		k.again[id] = true
		k.mu.Unlock()
		select {
		case k.due <- struct{}{}:
		default:
		}
	})
}

func (k *Keeper) refresh(ctx context.Context) {
	if k.changing.enter(ctx) != nil {
		return
	}
	defer k.changing.leave()
	all := k.list.Load().All()
	if k.cfg.Store != nil {
		read, err := k.readStore(ctx, all)
		if err == nil {
			all = read
		}
		if k.noteRead(err) && ctx.Err() == nil {
			k.cfg.Logger.Warn("the bans of the fleet cannot be read: those that were read last apply", "error", err)
		}
	}
	now := k.now()
	ended := func(b operator.Ban) bool { return !now.Before(b.Until) }
	if !sameBans(all, k.list.Load().All()) || slices.ContainsFunc(all, ended) {
		k.put(all)
	}
}

// noteRead records that the store was read, and reports whether that has failed for the first time.
func (k *Keeper) noteRead(err error) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	first := err != nil && !k.failed
	if k.failed = err != nil; err == nil {
		k.read = k.now()
	}
	return first
}

// readStore returns the bans of the store. A store that has lost changes, as an older copy has, gets
// those that this process knows, if it may write; until then they apply besides those of the store.
func (k *Keeper) readStore(ctx context.Context, known []operator.Ban) ([]operator.Ban, error) {
	stored, number, err := k.cfg.Store.Bans(ctx)
	if err != nil {
		return nil, err
	}
	all := make([]operator.Ban, 0, len(stored))
	for _, s := range stored {
		var b operator.Ban
		if json.Unmarshal([]byte(s.Text), &b) != nil {
			continue
		}
		if b, err := ban.Check(b); err == nil && len(all) < ban.Max {
			all = append(all, b)
		}
	}
	var missing []operator.Ban // what the store has lost
	if number < k.number {
		missing = slices.DeleteFunc(slices.Clone(known), func(b operator.Ban) bool {
			return !k.now().Before(b.Until) || slices.ContainsFunc(all, func(c operator.Ban) bool { return b.ID == c.ID })
		})
	}
	if len(missing) == 0 {
		k.number = number
		return all, nil
	}
	if k.cfg.Writes {
		if err := k.restore(ctx, missing, number); err != nil {
			return nil, err
		}
	}
	return append(all, missing...), nil
}

// sync returns the bans of the store after or before a change by this process: so it knows the number
// of the change, and that of a store that has lost some is not taken for a new one. It returns known
// without a store, or if that does not answer.
func (k *Keeper) sync(ctx context.Context, known []operator.Ban) []operator.Ban {
	if k.cfg.Store == nil {
		return known
	}
	if all, err := k.readStore(ctx, known); err == nil {
		return all
	}
	return known
}

// restore writes the bans again that the store has lost. Until that succeeds, here or in another API
// process, the number of the store is too low, and the next refresh tries again.
func (k *Keeper) restore(ctx context.Context, missing []operator.Ban, number uint64) error {
	all := make([]redisstore.Ban, len(missing))
	for i := range missing {
		var err error
		if all[i], err = encodeBan(&missing[i]); err != nil {
			return err
		}
	}
	done, err := k.cfg.Store.RestoreBans(ctx, all, number)
	if done {
		k.cfg.Logger.Warn("the store is empty or an older copy: bans that it had lost were written again, and bans that were removed may be back",
			"lost", len(missing))
	}
	return err
}

func sameBans(a, b []operator.Ban) bool {
	if len(a) != len(b) {
		return false
	}
	ids := map[string]bool{}
	for i := range a {
		ids[a[i].ID] = true
	}
	return !slices.ContainsFunc(b, func(b operator.Ban) bool { return !ids[b.ID] })
}

func (k *Keeper) write(ctx context.Context, b *operator.Ban) error {
	s, err := encodeBan(b)
	if err != nil {
		return err
	}
	return k.cfg.Store.SetBan(ctx, s.ID, s.Text, s.Until, ban.Max)
}

func encodeBan(b *operator.Ban) (redisstore.Ban, error) {
	text, err := json.Marshal(b)
	return redisstore.Ban{ID: b.ID, Text: string(text), Until: b.Until}, err
}

// apply removes the players of new bans from their matches. A call that fails is repeated.
func (k *Keeper) apply(ctx context.Context) {
	if k.cfg.Relay == nil || k.applying.enter(ctx) != nil {
		return
	}
	defer k.applying.leave()
	k.mu.Lock()
	for id := range k.again {
		delete(k.applied, id)
	}
	clear(k.again)
	k.mu.Unlock()
	live := map[string]bool{}
	for _, b := range k.list.Load().All() {
		live[b.ID] = true
		if !k.applied[b.ID] && k.remove(ctx, &b) == nil {
			k.applied[b.ID] = true
		}
	}
	for id := range k.applied {
		if !live[id] {
			delete(k.applied, id)
		}
	}
}

func (k *Keeper) remove(ctx context.Context, b *operator.Ban) error {
	ended := 0
	err := k.eachOf(ctx, b, func(a *engine.Allocation) error {
		err := k.cfg.Relay.Kick(ctx, a.ID)
		if errors.Is(err, engine.ErrKickHost) {
			err = k.cfg.Relay.End(ctx, a.ID)
		}
		if err == nil {
			ended++
		} else if errors.Is(err, alloc.ErrNotFound) {
			err = nil
		}
		return err
	})
	if ended > 0 {
		k.cfg.Logger.Info("a ban has ended allocations", "ban", b.ID, "subject", b.Subject(), "allocations", ended)
	}
	return err
}

// eachOf calls do for the allocations of a banned player, without those that only have its name, or for those
// that are bound from a banned network, until it fails.
func (k *Keeper) eachOf(ctx context.Context, b *operator.Ban, do func(*engine.Allocation) error) error {
	f := engine.Filter{Bound: true}
	if b.Player != "" {
		f = engine.Filter{Player: ban.Hash(b), Individual: true}
	}
	for at := uint32(0); ; {
		page, next, err := k.cfg.Relay.Allocations(ctx, f, at, 0)
		if err != nil {
			return err
		}
		for i := range page {
			if b.Player == "" && !b.Prefix.Contains(page[i].Endpoint.Addr().Unmap()) {
				continue
			}
			if err := do(&page[i]); err != nil {
				return err
			}
		}
		if at = next; at == 0 {
			return nil
		}
	}
}

// Affected counts what a ban would end on the relay.
func (k *Keeper) Affected(ctx context.Context, b *operator.Ban) (all operator.Affected, err error) {
	if b.Prefix.IsValid() && k.cfg.WebSocket != nil {
		all.WebSockets = k.cfg.WebSocket.Private().ConnectionsFrom(b.Prefix)
	}
	hosts := make(map[proto.AllocationID]bool)
	var linked []proto.AllocationID // the hosts of joiners that are affected themselves
	err = k.eachOf(ctx, b, func(a *engine.Allocation) error {
		isHost := a.Role == alloc.RoleHost
		switch {
		case isHost:
			hosts[a.ID] = true
			all.Others += a.Links
		case a.Links > 0:
			linked = append(linked, a.Match)
		}
		switch {
		case b.Prefix.IsValid() && a.Endpoint.Port() == 0: // It is one of WebSockets.
		case isHost:
			all.Hosts++
		default:
			all.Joiners++
		}
		return nil
	})
	for _, host := range linked {
		if hosts[host] {
			all.Others--
		}
	}
	if err != nil || b.Player == "" {
		return all, err
	}
	byName := engine.Filter{Player: ban.Hash(b)}
	_, err = history.EachAllocation(ctx, k.cfg.Relay, byName, math.MaxInt, func(engine.Allocation) { all.Shared++ })
	all.Shared = max(all.Shared-all.Hosts-all.Joiners, 0)
	return all, err
}

// CheckPlayer implements admin.Bans: a name that many players may share cannot be banned.
func (k *Keeper) CheckPlayer(b operator.Ban) error {
	if k.cfg.Anonymous && strings.HasPrefix(b.Player, "anonymous-") {
		return fmt.Errorf("%w: %s is a caller without a token, which has another name with each call: ban its network", admin.ErrBanShared,
			b.Player)
	}
	for i, token := range k.cfg.Tokens() {
		if b.Player != token.PlayerName() || b.Project != token.Project || b.Environment != token.Environment {
			continue
		}
		instead := "many players may hold it; ban the network of the player"
		if token.Server {
			instead = "its backend calls for many players; ban one that it names in allocate and join, or a network"
		}
		return fmt.Errorf("%w: %s is the name of the static token tokens[%d]: %s, or revoke the token: remove it from the settings, and reload",
			admin.ErrBanShared, b.Player, i, instead)
	}
	return nil
}

// List implements admin.Bans.
func (k *Keeper) List() operator.Bans {
	k.mu.Lock()
	defer k.mu.Unlock()
	list := operator.Bans{Bans: k.list.Load().All()}
	if k.cfg.Store != nil && (k.failed || k.read.IsZero()) {
		list.NotKnown = k.read.IsZero()
		list.StoreAway = cmp.Or(k.read, k.began)
	}
	return list
}

// Add implements admin.Bans.
func (k *Keeper) Add(ctx context.Context, b operator.Ban) (operator.Ban, error) {
	if !k.cfg.Writes {
		return b, admin.ErrBanElsewhere
	}
	b.ID = ban.NewID()
	b, err := ban.Check(b)
	if err != nil {
		return b, err
	}
	if err := k.add(ctx, &b); err != nil {
		return b, err
	}
	k.apply(ctx) // What it cannot do now, run does.
	return b, nil
}

// add adds a checked ban to the list, and to the store or the file.
func (k *Keeper) add(ctx context.Context, b *operator.Ban) (err error) {
	if err := k.changing.enter(ctx); err != nil {
		return err
	}
	defer k.changing.leave()
	all := append(slices.Clone(k.sync(ctx, k.list.Load().All())), *b)
	if k.cfg.Store != nil {
		err = k.write(ctx, b)
		if errors.Is(err, redisstore.ErrBansFull) {
			err = admin.ErrBansFull
		}
	} else if len(all) > ban.Max {
		err = admin.ErrBansFull
	} else {
		err = k.save(all)
	}
	if err == nil {
		k.put(k.sync(ctx, all))
	}
	return err
}

// Remove implements admin.Bans.
func (k *Keeper) Remove(ctx context.Context, id string) error {
	if !k.cfg.Writes {
		return admin.ErrBanElsewhere
	}
	if err := k.changing.enter(ctx); err != nil {
		return err
	}
	defer k.changing.leave()
	known := k.sync(ctx, k.list.Load().All())
	all := slices.DeleteFunc(slices.Clone(known), func(b operator.Ban) bool { return b.ID == id })
	there := len(all) < len(known)
	var err error
	if k.cfg.Store != nil {
		var stored bool
		stored, err = k.cfg.Store.DeleteBan(ctx, id)
		there = there || stored
	} else if there {
		err = k.save(all)
	}
	switch {
	case err != nil:
		return err
	case !there:
		return fmt.Errorf("%w: no ban has the id %q", alloc.ErrNotFound, id)
	}
	k.put(k.sync(ctx, all))
	return nil
}

// save writes the file. Callers are in changing.
func (k *Keeper) save(all []operator.Ban) error {
	if k.cfg.File == "" {
		return nil
	}
	content, err := json.Marshal(ban.NewList(all, k.now()).All())
	if err == nil {
		err = keyfile.Write(k.cfg.File, content)
	}
	if err != nil {
		return fmt.Errorf("bans: %w", err)
	}
	return nil
}
