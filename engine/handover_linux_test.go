//go:build !sockportable

package engine_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/ferryrelay/ferry/alloc"
	"github.com/ferryrelay/ferry/engine"
	"github.com/ferryrelay/ferry/engine/internal/driver"
	"github.com/ferryrelay/ferry/engine/internal/table"
	"github.com/ferryrelay/ferry/internal/privateapi"
	"github.com/ferryrelay/ferry/internal/test/enginetest"
	"github.com/ferryrelay/ferry/internal/test/testkit"
	"github.com/ferryrelay/ferry/proto"
)

func (s *site) handOver() {
	s.t.Helper()
	old := s.relay
	offer, err := old.Private().PrepareHandOver(s.t.Context())
	if err != nil {
		s.t.Fatal(err)
	}
	id := s.id
	id.Epoch, id.Now = s.epoch, s.now
	cfg := s.cfg
	cfg.Recovery.StateFile, cfg.Private.OnStateError = s.path, s.onStateError
	var began time.Time
	stopped, resumed := make(chan struct{}), make(chan struct{})
	memory := make([]byte, offer.StateSize)
	clear(memory)
	cfg.Private.Handover, offer.Receive = offer, func(ctx context.Context) (io.Reader, error) {
		defer close(stopped)
		began = time.Now()
		state := bytes.NewBuffer(memory[:0])
		return state, old.Private().HandOver(ctx, state)
	}
	offer.OnResume = func() { close(resumed) }
	s.relay = enginetest.StartAs(s.t, cfg, id)
	<-stopped // or the old relay takes the check
	if err := s.relay.Private().Check(s.t.Context()); err != nil {
		s.t.Fatal(err)
	}
	s.paused += time.Since(began)
	<-resumed
	testkit.Eventually(s.t, "the old relay has ended", old.Ended)
}

// TestHandOver: each datagram of two players arrives in order, and no player binds again.
func TestHandOver(t *testing.T) {
	t.Parallel()
	s := newSite(t, engine.Config{Timeouts: engine.Timeouts{Bind: 10 * time.Minute}}) // This machine may be slow.
	host := s.play(enginetest.UTP1, s.relay.Host("host", 3))
	joiner := s.join(enginetest.UTP2, "joiner", host)
	silent := s.relay.Joiner("silent", host.Cred.ID) // reserved, not bound
	if err := s.relay.Private().KeepCode(t.Context(), host.Cred.ID, "6789BC"); err != nil {
		t.Fatal(err)
	}

	const sends = 400
	var players sync.WaitGroup
	for _, pair := range [][2]*enginetest.UTP{{host, joiner}, {joiner, host}} {
		players.Go(func() {
			for n := range sends {
				// The sockets of players have room for some 250.
				if early := fmt.Sprint("message ", max(n-100, 0)); n > 100 &&
					!testkit.Poll(testkit.WaitLimit, pair[1].HasReceived(pair[0].Cred.ID, early)) {
					t.Errorf("%s is lost", early)
					return
				}
				pair[0].Send(pair[1].Cred.ID, fmt.Sprint("message ", n))
				time.Sleep(time.Millisecond)
			}
		})
	}
	for range 10 {
		s.handOver()
	}
	players.Wait()
	for name, pair := range map[string][2]*enginetest.UTP{"host": {joiner, host}, "joiner": {host, joiner}} {
		testkit.Eventually(t, name+" has the last message", pair[1].HasReceived(pair[0].Cred.ID, fmt.Sprint("message ", sends-1)))
		next := 0
		for _, m := range pair[1].Inbox() {
			if m.Content == fmt.Sprint("message ", next) {
				next++
			}
		}
		if next != sends {
			t.Errorf("%s received %d of %d messages in order", name, next, sends)
		}
	}
	wellAlive(t, host, joiner)
	if codes := s.relay.Private().KeptCodes(); len(codes) != 1 || codes[0].Code != "6789BC" || codes[0].Host != host.Cred.ID {
		t.Errorf("the codes are %+v", codes)
	}
	s.talk("with a player that was reserved before", host, s.playJoined(silent, host))
	stats := s.relay.Stats()
	if stats.Allocations != 3 || stats.Links != 2 || stats.Rebuilt != 0 {
		t.Errorf("the relay has %d allocations and %d links, %d rebuilt", stats.Allocations, stats.Links, stats.Rebuilt)
	}
	projects, err := s.relay.Private().Projects(t.Context())
	if err != nil || len(projects) != 1 || projects[0].Allocations != 3 || projects[0].Players != 3 {
		t.Errorf("the projects are %+v, %v", projects, err)
	}
	s.restart("crashed")
	s.talk("after a crash", host, joiner)
}

// TestHandOverWithoutFile: a relay whose state file cannot be written hands over join codes
// as well, and the next process writes the file.
func TestHandOverWithoutFile(t *testing.T) {
	t.Parallel()
	s := newSite(t, engine.Config{Timeouts: engine.Timeouts{Bind: 10 * time.Minute}})
	host := s.play(enginetest.UTP1, s.relay.Host("host", 3))
	s.stateErrors = true
	if err := os.Truncate(s.path, 0); err != nil {
		t.Fatal(err)
	}
	if err := s.relay.Private().KeepCode(t.Context(), host.Cred.ID, "6789BC"); err != nil {
		t.Fatal(err)
	}
	testkit.Eventually(t, "it cannot be written", func() bool { return !s.relay.Stats().Private.StateComplete })
	s.handOver()
	want := []privateapi.KeptCode{{Tenant: enginetest.Tenant.Hash(), Host: host.Cred.ID, Code: "6789BC"}}
	if codes := s.relay.Private().KeptCodes(); !slices.Equal(codes, want) {
		t.Errorf("the codes are %+v", codes)
	}
	testkit.Eventually(t, "it is written", func() bool { return s.relay.Stats().Private.StateComplete })
	s.restart("crashed")
	if !slices.Equal(s.relay.Kept, want) {
		t.Errorf("after a crash the codes are %+v", s.relay.Kept)
	}
}

// TestHandOverLimits: what players and hosts have counts in the next process against the limits of a player and
// of the relay.
func TestHandOverLimits(t *testing.T) {
	t.Parallel()
	s := newSite(t, engine.Config{
		Timeouts: engine.Timeouts{Bind: 10 * time.Minute}, PlayerLimits: engine.PlayerLimits{Hosts: 1}, MaxSeats: 8,
	})
	ask := func(player string, most int) (alloc.Reservation, error) {
		return s.relay.ReserveHost(t.Context(), alloc.HostRequest{
			Caller:     alloc.Caller{Tenant: enginetest.Tenant, Individual: true},
			PlayerHash: alloc.HashPlayer(enginetest.Tenant, player), MaxConnections: most,
		})
	}
	res, err := ask("ann", 3)
	if err != nil {
		t.Fatal(err)
	}
	host := s.play(enginetest.UTP2, res)
	for range 2 {
		s.handOver()
		host.Send(host.Cred.ID, "I play") // or a host that was silent yields to the next one
		if _, err := ask("ann", 3); !errors.Is(err, alloc.ErrPlayerLimit) {
			t.Errorf("another host of the player: %v", err)
		}
		if _, err := ask("bob", 4); !errors.Is(err, alloc.ErrFull) {
			t.Errorf("nine seats of eight: %v", err)
		}
	}
}

type refusedFastPath struct {
	driver.FastPath
	optional bool
}

func (r refusedFastPath) Driver() driver.FastPath { return r }
func (r refusedFastPath) Optional() bool          { return r.optional }

func (refusedFastPath) Load(driver.FastPathSpec) (table.Memory, error) {
	return table.Memory{}, errors.New("not permitted")
}

// TestFastPathOptional: where the fast path is refused a relay works without it if it is optional,
// also one that takes over; otherwise New fails.
func TestFastPathOptional(t *testing.T) {
	s := newSite(t, engine.Config{FastPath: refusedFastPath{optional: true}})
	host := s.play(enginetest.UTP1, s.relay.Host("host", 3))
	joiner := s.join(enginetest.UTP2, "joiner", host)
	s.handOver()
	s.talk("after a hand-over", host, joiner)
	if _, err := engine.New(engine.Config{FastPath: refusedFastPath{}}, s.id); err == nil ||
		!strings.Contains(err.Error(), "not permitted") {
		t.Errorf("if it is not optional: %v", err)
	}
}

func (s *site) playJoined(res alloc.Reservation, host *enginetest.UTP) *enginetest.UTP {
	s.t.Helper()
	p := s.play(enginetest.UTP2, res)
	p.Connect()
	testkit.Eventually(s.t, "the player is let in", p.HasPeers(1))
	return p
}

// TestOfferRefused checks that a relay that cannot be taken over goes on.
func TestOfferRefused(t *testing.T) {
	s := newSite(t, engine.Config{})
	host := s.play(enginetest.UTP1, s.relay.Host("host", 3))
	s.relay.Host("another", 3)
	for name, change := range map[string]func(*privateapi.Handover, *engine.Config){
		"version":   func(o *privateapi.Handover, _ *engine.Config) { o.Version++ },
		"addresses": func(_ *privateapi.Handover, c *engine.Config) { c.Listen = append(c.Listen, c.Listen[0]) },
		"address": func(_ *privateapi.Handover, c *engine.Config) {
			c.Listen = []netip.AddrPort{netip.AddrPortFrom(c.Listen[0].Addr(), c.Listen[0].Port()^1)}
		},
		"allocations": func(o *privateapi.Handover, c *engine.Config) { c.MaxAllocations = o.Allocations - 1 },
		"transports":  func(o *privateapi.Handover, _ *engine.Config) { o.Transports = append(o.Transports, "ws") },
		"workers":     func(o *privateapi.Handover, c *engine.Config) { c.Sockets.Workers = len(o.Sockets[0]) + 1 },
	} {
		offer, err := s.relay.Private().PrepareHandOver(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		cfg := s.cfg
		cfg.Private.Handover = offer
		change(offer, &cfg)
		if _, err := engine.New(cfg, s.id); !errors.Is(err, privateapi.ErrHandover) {
			t.Errorf("%s: New returns %v", name, err)
		}
		if _, err := offer.Sockets[0][0].Stat(); err == nil {
			t.Errorf("%s: a socket is open", name)
		}
	}
	s.talk("at last", host, s.join(enginetest.UTP2, "joiner", host))
}

// TestResumeFails: a relay that cannot take over does not relay and leaves the sockets as they are.
func TestResumeFails(t *testing.T) {
	s := newSite(t, engine.Config{})
	host := s.play(enginetest.UTP1, s.relay.Host("host", 3))
	state := func(s string) func(context.Context) (io.Reader, error) {
		return func(context.Context) (io.Reader, error) { return strings.NewReader(s), nil }
	}
	const head = "\x0f\x00\x00\x00" + `{"Locals":[[]]}`
	for name, resume := range map[string]func(context.Context) (io.Reader, error){
		"an error":     func(context.Context) (io.Reader, error) { return nil, errors.New("the process is gone") },
		"nothing":      state(""),
		"malformed":    state("no state"),
		"no listeners": state("\x02\x00\x00\x00{}"),
		"cut off":      state(head + "an alloc"),
		"a wrong role": state(head + strings.Repeat("x", table.HandoverLen)),
	} {
		offer, err := s.relay.Private().PrepareHandOver(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		cfg := s.cfg
		cfg.Private.Handover, offer.Receive = offer, resume
		other, err := engine.New(cfg, s.id)
		if err != nil {
			t.Fatal(err)
		}
		if err := other.Run(t.Context()); !errors.Is(err, privateapi.ErrHandover) {
			t.Errorf("%s: Run returns %v", name, err)
		}
	}
	s.talk("at last", host, s.join(enginetest.UTP2, "joiner", host))
}

// TestHandOverMigration: another process knows the players of hosts that have left, which player holds a
// reservation, and which one has taken a place.
func TestHandOverMigration(t *testing.T) {
	s := newSite(t, engine.Config{
		Timeouts: engine.Timeouts{Bind: 10 * time.Minute, Idle: 10 * time.Minute}, HostMigration: engine.HostMigration{Window: 5 * time.Minute},
	})
	ask := func(player *enginetest.UTP, code proto.AllocationID) (alloc.Reservation, error) {
		q := alloc.MigrationRequest{Caller: alloc.Caller{Tenant: enginetest.Tenant}, Host: code, Code: "6789BC"}
		copy(q.Ticket[:], player.Cred.HostConnectionData)
		return s.relay.MigrateHost(t.Context(), q)
	}
	ended := func(host *enginetest.UTP) {
		t.Helper()
		host.Inject(append([]byte{0xDA, 0x72, 0, 11}, host.Cred.ID[:]...)) // CLOSE
		testkit.Eventually(t, "the host has ended", func() bool {
			_, err := s.relay.Describe(t.Context(), host.Cred.ID)
			return errors.Is(err, alloc.ErrNotFound)
		})
	}
	var players [5]*enginetest.UTP
	closes, leaves := s.play(enginetest.UTP2, s.relay.Host("closes", 8)), s.play(enginetest.UTP2, s.relay.Host("leaves", 8))
	for i := range players {
		players[i] = s.join(enginetest.UTP2, fmt.Sprint("player ", i), closes)
	}
	other := s.join(enginetest.UTP2, "other", leaves)
	ended(closes)
	if err := s.relay.LeaveHost(t.Context(), alloc.LeaveRequest{
		Caller: alloc.Caller{Tenant: enginetest.Tenant}, Host: leaves.Cred.ID,
	}); err != nil {
		t.Fatal(err)
	}
	held, err := ask(players[2], closes.Cred.ID)
	if err != nil {
		t.Fatal(err)
	}
	s.handOver()
	if again, err := ask(players[2], closes.Cred.ID); err != nil {
		t.Errorf("the same player again: %v", err)
	} else {
		held = again
	}
	newHost := s.play(enginetest.UTP2, held)
	testkit.Eventually(t, "the reservation is bound", newHost.HasStatus(enginetest.Established))
	s.handOver()
	if _, err := ask(players[0], closes.Cred.ID); !errors.Is(err, alloc.ErrHostPresent) {
		t.Errorf("a player whose host has been replaced: %v", err)
	}
	ended(newHost)
	s.handOver()
	if _, err := ask(players[4], newHost.Cred.ID); err != nil {
		t.Errorf("a player of the first host: %v", err)
	}
	if _, err := ask(other, leaves.Cred.ID); err != nil {
		t.Errorf("the player of a host that leaves: %v", err)
	}
}
