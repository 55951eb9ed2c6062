package engine_test

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ferryrelay/ferry/alloc"
	"github.com/ferryrelay/ferry/engine"
	"github.com/ferryrelay/ferry/engine/internal/seal"
	"github.com/ferryrelay/ferry/internal/privateapi"
	"github.com/ferryrelay/ferry/internal/test/enginetest"
	"github.com/ferryrelay/ferry/internal/test/testkit"
	"github.com/ferryrelay/ferry/proto"
)

// site is where one relay runs again and again.
type site struct {
	t     testing.TB
	id    engine.Identity
	cfg   engine.Config
	path  string
	relay *enginetest.Relay

	epoch time.Duration    // of sealing keys; 0: a week
	now   func() time.Time // clock of the sealer; nil: time.Now

	paused      time.Duration // in all hand-overs
	stateErrors bool          // the state file may fail
}

func (s *site) onStateError(err error) {
	if !s.stateErrors {
		s.t.Error(err)
	}
}

func newSite(t testing.TB, cfg engine.Config) *site {
	t.Helper()
	s := &site{t: t, id: enginetest.NewIdentity(t), cfg: cfg, path: filepath.Join(t.TempDir(), "allocations")}
	s.cfg.Recovery.Window = -1 // a relay that was just made: nothing can come back
	s.start()
	s.cfg.Recovery.Window = cfg.Recovery.Window
	s.cfg.Listen = []netip.AddrPort{s.relay.Addr()}
	return s
}

func (s *site) start() {
	s.t.Helper()
	id := s.id
	id.Epoch, id.Now = s.epoch, s.now
	cfg := s.cfg
	cfg.Recovery.StateFile = s.path
	cfg.Private.OnStateError = s.onStateError
	s.relay = enginetest.StartAs(s.t, cfg, id)
}

func (s *site) restart(kind string) {
	s.t.Helper()
	switch kind {
	case "closed":
		s.relay.Stop()
	case "crashed": // what a kill leaves: the file as it is in the middle of a run
		left := s.path + ".left"
		for _, suffix := range []string{".counter", ""} { // The file is never behind its counter.
			file, err := os.ReadFile(s.path + suffix)
			if err == nil {
				err = os.WriteFile(left+suffix, file, 0o600)
			}
			if err != nil {
				s.t.Fatal(err)
			}
		}
		s.path = left
		s.relay.Stop()
	case "file lost":
		s.relay.Stop()
		s.path += ".new"
	}
	s.start()
}

func (s *site) play(v enginetest.Version, res alloc.Reservation) *enginetest.UTP {
	s.t.Helper()
	u := enginetest.Play(s.t, v, s.relay.Credentials(res))
	testkit.Eventually(s.t, "a client is bound", u.HasStatus(enginetest.Established))
	return u
}

func (s *site) join(v enginetest.Version, player string, host *enginetest.UTP) *enginetest.UTP {
	s.t.Helper()
	p := s.play(v, s.relay.Joiner(player, host.Cred.ID))
	p.Connect()
	testkit.Eventually(s.t, player+" is let in", p.HasPeers(1))
	s.talk("at first", host, p)
	return p
}

func (s *site) talk(when string, a, b *enginetest.UTP) {
	s.t.Helper()
	for _, pair := range [][2]*enginetest.UTP{{a, b}, {b, a}} {
		from, to := pair[0], pair[1]
		testkit.Eventually(s.t, "they talk "+when, func() bool {
			from.Send(to.Cred.ID, when)
			time.Sleep(10 * time.Millisecond)
			return to.HasReceived(from.Cred.ID, when)()
		})
	}
}

func pause(paused bool, all ...*enginetest.UTP) {
	for _, u := range all {
		u.SetPaused(paused)
	}
}

func lastBind(u *enginetest.UTP) []byte {
	_, next := u.Binds()
	if u.Version == enginetest.UTP2 && next > 0 {
		next--
	}
	return enginetest.SignedBind(u.Cred, next)
}

func wellAlive(t *testing.T, all ...*enginetest.UTP) {
	t.Helper()
	for _, u := range all {
		status, _ := u.State()
		if log := u.Log(); status != enginetest.Established || slices.Contains(log, "error 1") || slices.Contains(log, "error 4") {
			t.Errorf("client %x: %s, its log shows %q", u.Cred.ID[:4], status, log)
		}
	}
}

// TestRestartWithShortEpochs: a match that is older than the keys that a new process
// begins with goes on after a crash, also if the epoch has another length then.
func TestRestartWithShortEpochs(t *testing.T) {
	t.Parallel()
	for _, after := range []time.Duration{time.Hour, 7 * 24 * time.Hour} {
		clock := testkit.NewClock(time.Now())
		s := &site{
			t: t, id: enginetest.NewIdentity(t), path: filepath.Join(t.TempDir(), "allocations"),
			epoch: time.Hour, now: clock.Now,
		}
		s.start()
		s.cfg.Listen = []netip.AddrPort{s.relay.Addr()}
		host := s.play(enginetest.UTP2, s.relay.Host("host", 4))
		early := s.join(enginetest.UTP1, "early", host)
		clock.Advance(30 * time.Hour)
		late := s.join(enginetest.UTP2, "late", host)
		clock.Advance(30 * time.Hour)
		s.epoch = after
		s.restart("crashed")
		s.talk("after the crash", host, early)
		s.talk("after the crash", host, late)
		wellAlive(t, host, early, late)
		clock.Advance(30 * time.Hour)
		later := s.join(enginetest.UTP2, "later", host)
		s.talk("in another epoch", host, later)
		wellAlive(t, host, early, late, later)
		s.relay.Stop()
	}
}

// TestClockJumps: a clock that jumps ends no match, and after a crash all come back, if the clock
// was then at most four weeks away.
func TestClockJumps(t *testing.T) {
	t.Parallel()
	clock := testkit.NewClock(time.Now())
	s := &site{t: t, id: enginetest.NewIdentity(t), path: filepath.Join(t.TempDir(), "allocations"), now: clock.Now}
	s.start()
	s.cfg.Listen = []netip.AddrPort{s.relay.Addr()}
	host := s.play(enginetest.UTP2, s.relay.Host("host", 20))
	players := []*enginetest.UTP{host}
	const day = 24 * time.Hour
	for i, step := range []struct {
		jump  time.Duration
		crash bool
	}{{-time.Hour, false}, {20 * day, true}, {-20 * day, true}, {730 * day, false}, {-1000 * day, false}} {
		reserved := s.relay.Joiner(fmt.Sprint("reserved before jump ", i), host.Cred.ID)
		clock.Advance(step.jump)
		bound := s.play(enginetest.UTP2, reserved)
		bound.Connect()
		testkit.Eventually(t, "the player is let in", bound.HasPeers(1))
		players = append(players, bound, s.join(enginetest.UTP2, fmt.Sprint("after jump ", i), host))
		if step.crash {
			s.restart("crashed")
		}
		for _, p := range players[1:] {
			s.talk(fmt.Sprint("after jump ", i), host, p)
		}
	}
	wellAlive(t, players...)
}

// TestTicketOfTheJoinersEpoch: both parts of a joiner's reservation are sealed in one
// epoch, since the table retains only one.
func TestTicketOfTheJoinersEpoch(t *testing.T) {
	t.Parallel()
	var calls atomic.Int64
	s := &site{t: t, id: enginetest.NewIdentity(t), path: filepath.Join(t.TempDir(), "allocations"), epoch: time.Hour}
	start := time.Now()
	s.now = func() time.Time { return start.Add(time.Duration(calls.Add(1)) * 25 * time.Minute) }
	s.start()
	host := s.relay.Host("host", 100)
	for range 20 {
		res := s.relay.Joiner("joiner", host.ID)
		if seal.EpochOf(&res.ConnectionData) != seal.EpochOf(&res.HostConnectionData) {
			t.Fatal("the ticket is of another epoch than its joiner")
		}
	}
}

// TestRestart: after an end of the process or a kill, clients come back to their links. One that
// was kicked or has closed stays out, and captured datagrams are rejected.
func TestRestart(t *testing.T) {
	for _, c := range []struct {
		kind     string
		host     enginetest.Version
		versions [4]enginetest.Version
	}{
		{"closed", enginetest.UTP2, [4]enginetest.Version{enginetest.UTP2, enginetest.UTP2, enginetest.UTP2, enginetest.UTP2}},
		{"crashed", enginetest.UTP2, [4]enginetest.Version{enginetest.UTP2, enginetest.UTP1, enginetest.UTP2, enginetest.UTP2}},
		{"crashed", enginetest.UTP1, [4]enginetest.Version{enginetest.UTP1, enginetest.UTP1, enginetest.UTP1, enginetest.UTP1}},
	} {
		t.Run(fmt.Sprintf("%s, UTP%d", c.kind, c.host), func(t *testing.T) {
			t.Parallel()
			s := newSite(t, engine.Config{})
			host := s.play(c.host, s.relay.Host("host", 4))
			kicked := s.join(enginetest.UTP2, "kicked", host)
			kicked.SetPaused(true) // or it would request a new link after the DISCONNECT
			host.Leave(kicked.Cred.ID)
			testkit.Eventually(t, "it is out", func() bool { return s.relay.Stats().Links == 0 })
			kicked.Leave(host.Cred.ID)
			kicked.SetPaused(false)
			closed := s.join(enginetest.UTP2, "closed", host)
			closed.SetPaused(true)
			closed.Inject(slices.Concat([]byte{0xDA, 0x72, 0, 11}, closed.Cred.ID[:]))
			testkit.Eventually(t, "it has ended", func() bool { return s.relay.Stats().Allocations == 2 })
			var players []*enginetest.UTP
			for i, v := range c.versions {
				players = append(players, s.join(v, fmt.Sprint("player ", i), host))
			}
			clients := append([]*enginetest.UTP{host, kicked}, players...)
			pause(true, clients...)

			s.restart(c.kind)
			s.awaits(host.Cred.ID, closed.Cred.ID)
			thief := dial(t, s.relay)
			defer thief.Close()
			captured := append([]*enginetest.UTP{host}, players...)
			for _, u := range captured {
				thief.Write(lastBind(u))
			}
			testkit.Eventually(t, "what was captured is refused", func() bool {
				return s.relay.Stats().Drops["nonce"] == uint64(len(captured))
			})
			if st := s.relay.Stats(); st.Allocations != 0 {
				t.Errorf("%d allocations came back by it", st.Allocations)
			}
			s.comeBack(host, kicked, closed, players)
			wellAlive(t, append(players, host)...)
		})
	}
}

// TestRestartHostThatAnswers: a game whose host only answers goes on after a crash, since a
// RELAY of a joiner restores its link. One that was kicked stays out.
func TestRestartHostThatAnswers(t *testing.T) {
	t.Parallel()
	s := newSite(t, engine.Config{})
	host := s.play(enginetest.UTP2, s.relay.Host("host", 4))
	p, kicked := s.join(enginetest.UTP2, "p", host), s.join(enginetest.UTP2, "kicked", host)
	kicked.SetPaused(true) // or it would request a new link after the DISCONNECT
	host.Leave(kicked.Cred.ID)
	testkit.Eventually(t, "it is out", func() bool { return s.relay.Stats().Links == 1 })
	pause(true, host, p)
	s.restart("crashed")
	pause(false, host, p, kicked)
	testkit.Eventually(t, "the host has what its players send", func() bool {
		for _, u := range []*enginetest.UTP{kicked, p} {
			u.Inject(proto.Relay{From: u.Cred.ID, To: host.Cred.ID, Payload: []byte("from a player")}.Append(nil))
		}
		time.Sleep(10 * time.Millisecond)
		return host.HasReceived(p.Cred.ID, "from a player")()
	})
	if st := s.relay.Stats(); st.Links != 1 || host.HasReceived(kicked.Cred.ID, "from a player")() {
		t.Errorf("%d links, or a message of a player that was kicked", st.Links)
	}
	wellAlive(t, host, p)
}

// comeBack lets all but one player go on, then a new one try to take its place, then the last one.
func (s *site) comeBack(host, kicked, closed *enginetest.UTP, players []*enginetest.UTP) {
	s.t.Helper()
	late := players[3]
	pause(false, host, kicked, closed, players[0], players[1], players[2])
	for _, p := range players[:3] {
		s.talk("after all", host, p)
	}
	fifth := s.play(enginetest.UTP2, s.relay.Joiner("fifth", host.Cred.ID))
	fifth.Connect()
	kicked.Connect()
	testkit.Eventually(s.t, "both are left waiting", func() bool {
		host.Inject(proto.Relay{From: host.Cred.ID, To: kicked.Cred.ID, Payload: []byte("come in")}.Append(nil))
		time.Sleep(10 * time.Millisecond)
		return s.relay.Stats().Drops["recovering"] > 10
	})
	if links := s.relay.Stats().Links; links != 3 {
		s.t.Errorf("%d links, want those of three players", links)
	}
	late.SetPaused(false)
	s.talk("at last", host, late)
	testkit.Eventually(s.t, "the match is full", func() bool {
		return fifth.HasStatus(enginetest.Invalid)() && kicked.HasStatus(enginetest.Invalid)()
	})
	if kicked.HasReceived(host.Cred.ID, "come in")() || s.relay.Stats().Links != 4 {
		s.t.Errorf("a kicked player is in; %d links", s.relay.Stats().Links)
	}
	testkit.Eventually(s.t, "a player that has closed learns that it is over", closed.HasLogged("error 4"))
}

// awaits checks the answers to the service before any client has come back.
func (s *site) awaits(host, ended [16]byte) {
	s.t.Helper()
	ctx := context.Background()
	join := func(host proto.AllocationID) error {
		_, err := s.relay.ReserveJoiner(ctx, alloc.JoinerRequest{Caller: alloc.Caller{Tenant: enginetest.Tenant}, Host: host})
		return err
	}
	describe := func(id proto.AllocationID) error {
		_, err := s.relay.Describe(ctx, id)
		return err
	}
	for name, c := range map[string]struct{ got, want error }{
		"join one that is awaited":     {join(host), alloc.ErrUnavailable},
		"describe one that is awaited": {describe(host), alloc.ErrUnavailable},
		"describe one that has ended":  {describe(ended), alloc.ErrNotFound},
		"join an unknown id":           {join([16]byte{9}), alloc.ErrNotFound},
		"describe an unknown id":       {describe([16]byte{9}), alloc.ErrNotFound},
	} {
		if !errors.Is(c.got, c.want) {
			s.t.Errorf("%s: %v, want %v", name, c.got, c.want)
		}
	}
}

// TestRestartWithoutFile: without the file a captured BIND is good for a while, and a client of the
// second generation has its binding back with its next message.
func TestRestartWithoutFile(t *testing.T) {
	t.Parallel()
	s := newSite(t, engine.Config{})
	host := s.play(enginetest.UTP2, s.relay.Host("host", 4))
	p := s.join(enginetest.UTP2, "p", host)
	q := s.join(enginetest.UTP1, "q", host)
	pause(true, host, p, q)
	s.restart("file lost")
	thief := dial(t, s.relay)
	defer thief.Close()
	thief.Write(lastBind(p))
	if !awaitFor(timeout, thief, 1, nil) {
		t.Error("without the file nothing tells a captured BIND from a fresh one, yet it was refused")
	}
	pause(false, host, p, q)
	s.talk("after all", host, p)
	s.talk("after all", host, q)
	wellAlive(t, host, p, q)
	testkit.Eventually(t, "it got ERROR 3", p.HasLogged("error 3"))
	thief.Write(proto.Relay{From: p.Cred.ID, To: host.Cred.ID, Payload: []byte("it is me")}.Append(nil))
	if !awaitFor(timeout, thief, 12, nil) || host.HasReceived(p.Cred.ID, "it is me")() {
		t.Error("the thief still speaks for its victim")
	}
}

// TestLostAllocations: an allocation that does not come back within the window is lost, and its
// client gets ERROR 4. The window is long enough for the one that comes back.
func TestLostAllocations(t *testing.T) {
	t.Parallel()
	var mu sync.Mutex
	var lost []string
	s := newSite(t, engine.Config{Recovery: engine.Recovery{Window: 8 * time.Second}, Hooks: engine.Hooks{OnEnd: func(e engine.EndEvent) {
		mu.Lock()
		defer mu.Unlock()
		lost = append(lost, fmt.Sprint(e.ID, e.Role, e.Reason))
	}}})
	host := s.play(enginetest.UTP2, s.relay.Host("host", 4))
	p, stays := s.join(enginetest.UTP2, "p", host), s.play(enginetest.UTP2, s.relay.Host("another", 1))
	pause(true, host, p)
	s.restart("closed")
	testkit.Eventually(t, "two are given up", func() bool {
		mu.Lock()
		defer mu.Unlock()
		return len(lost) >= 2
	})
	want := []string{
		fmt.Sprint(proto.AllocationID(host.Cred.ID), alloc.RoleHost, engine.EndLost),
		fmt.Sprint(proto.AllocationID(p.Cred.ID), alloc.RoleJoiner, engine.EndLost),
	}
	mu.Lock()
	slices.Sort(lost)
	slices.Sort(want)
	if !slices.Equal(lost, want) {
		t.Errorf("reported %v, want %v", lost, want)
	}
	mu.Unlock()
	if _, err := s.relay.Describe(t.Context(), host.Cred.ID); !errors.Is(err, alloc.ErrNotFound) {
		t.Errorf("Describe of the lost host: %v", err)
	}
	host.SetPaused(false)
	testkit.Eventually(t, "it learns so", host.HasLogged("error 4"))
	wellAlive(t, stays)
	s.restart("closed") // and the file knows
	if st := s.relay.Stats(); st.Allocations > 1 {
		t.Errorf("%d allocations", st.Allocations)
	}
	if _, err := s.relay.Describe(t.Context(), p.Cred.ID); !errors.Is(err, alloc.ErrNotFound) {
		t.Errorf("Describe of the lost player in the next run: %v", err)
	}
}

func TestKeepCode(t *testing.T) {
	t.Parallel()
	s := newSite(t, engine.Config{Timeouts: engine.Timeouts{Bind: time.Hour}})
	ctx := t.Context()
	host, gone := s.relay.Host("host", 4), s.relay.Host("gone", 4)
	joiner := s.relay.Joiner("p", host.ID)
	for _, c := range []struct {
		name string
		id   proto.AllocationID
		code string
		want error
	}{
		{"good", host.ID, "6789BC", nil},
		{"again", host.ID, "BCDFGHJKLMNP", nil},
		{"of another host", gone.ID, "QRTW66", nil},
		{"of a joiner", joiner.ID, "6789BC", alloc.ErrNotFound},
		{"of an unknown id", proto.AllocationID{9}, "6789BC", alloc.ErrNotFound},
		{"too short", host.ID, "6789B", alloc.ErrCodeMalformed},
		{"too long", host.ID, strings.Repeat("6", 13), alloc.ErrCodeMalformed},
		{"another alphabet", host.ID, "ABCDEF", alloc.ErrCodeMalformed},
	} {
		if err := s.relay.Private().KeepCode(ctx, c.id, c.code); !errors.Is(err, c.want) {
			t.Errorf("%s: %v, want %v", c.name, err, c.want)
		}
	}
	if err := s.relay.Private().KeepCode(ctx, host.ID, "JKLMNP"); err != nil {
		t.Error(err)
	}
	leaving := s.play(enginetest.UTP2, gone)
	leaving.SetPaused(true)
	leaving.Inject(slices.Concat([]byte{0xDA, 0x72, 0, 11}, leaving.Cred.ID[:]))
	testkit.Eventually(t, "it has ended", func() bool { return s.relay.Stats().Allocations == 2 })
	s.restart("crashed")
	want := []privateapi.KeptCode{{Tenant: enginetest.Tenant.Hash(), Host: host.ID, Code: "JKLMNP"}}
	if got := s.relay.Kept; !slices.Equal(got, want) {
		t.Errorf("kept %v, want %v", got, want)
	}
}
