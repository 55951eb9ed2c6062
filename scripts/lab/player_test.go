package lab

import (
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/ferryrelay/ferry/alloc/api"
	"github.com/ferryrelay/ferry/internal/test/habits"
	"github.com/ferryrelay/ferry/proto"
)

// testMatch is a fleet of one match without sockets, with a clock that the test
// advances.
type testMatch struct {
	*testing.T
	f            *Fleet
	host, joiner *player
	now          int64
	sent         map[*player][]proto.Message
}

func newTestMatch(t *testing.T) *testMatch {
	t.Helper()
	s := &testMatch{T: t, now: 1e12, sent: map[*player][]proto.Message{}}
	s.f = &Fleet{cfg: FleetConfig{Matches: 1, Ports: 2, PingEvery: pingPeriod}, payload: make([]byte, minPayload)}
	s.f.transmit = func(p *player, pkt []byte) {
		m, err := proto.Decode(slices.Clone(pkt))
		if err != nil {
			t.Fatalf("a player said %x: %v", pkt, err)
		}
		s.sent[p] = append(s.sent[p], m)
	}
	host := api.Allocation{AllocationIDBytes: slices.Repeat([]byte{1}, 16), Key: make(api.Key, 64), ConnectionData: make([]byte, 255)}
	joiner := host
	joiner.AllocationIDBytes, joiner.HostConnectionData = slices.Repeat([]byte{2}, 16), make([]byte, 255)
	if err := s.f.Add(host, joiner); err != nil {
		t.Fatal(err)
	}
	s.host, s.joiner = s.f.players[0], s.f.players[1]
	for _, p := range []*player{s.host, s.joiner} {
		p.nextSend = s.now
		p.Heard(time.Duration(s.now))
	}
	return s
}

func (s *testMatch) tick(after int64) {
	s.now += after
	s.host.tick(s.f, s.now, 33e6)
	s.joiner.tick(s.f, s.now, 33e6)
}

func (s *testMatch) deliver(p *player, m proto.Message) { p.handle(s.f, s.now, m.Append(nil)) }

// last returns the newest message of a player and clears the record.
func (s *testMatch) last(p *player) proto.Message {
	s.Helper()
	if len(s.sent[p]) == 0 {
		s.Fatal("the player said nothing")
	}
	m := s.sent[p][len(s.sent[p])-1]
	s.sent = map[*player][]proto.Message{}
	return m
}

// TestFatal verifies that only ERROR 1 and 4 end the game.
func TestFatal(t *testing.T) {
	for code := range proto.ErrorCode(8) {
		s := newTestMatch(t)
		s.deliver(s.host, proto.BindReceived{})
		s.deliver(s.host, proto.Error{Code: code})
		want := code == proto.ErrorTimeout || code == proto.ErrorNotFound
		if got := s.host.Status == habits.Failed; got != want || s.f.Counts().Errors[code] != 1 || (s.f.Counts().Fatal() == 1) != want {
			t.Errorf("ERROR %d: dead %v", code, got)
		}
	}
}

// TestMatchTraffic verifies that a joiner repeats CONNECT_REQUEST until it is
// accepted, that a host sends after it has received from the joiner, and that
// both count each datagram once.
func TestMatchTraffic(t *testing.T) {
	s := newTestMatch(t)
	s.deliver(s.host, proto.BindReceived{})
	s.deliver(s.joiner, proto.BindReceived{})
	s.tick(0)
	if _, ok := s.last(s.joiner).(proto.ConnectRequest); !ok {
		t.Error("the joiner does not ask")
	}
	s.tick(int64(time.Second))
	if _, ok := s.last(s.joiner).(proto.ConnectRequest); !ok {
		t.Error("the joiner does not ask again")
	}
	s.deliver(s.joiner, proto.Accepted{From: s.host.id, To: s.joiner.id})
	s.tick(33e6)
	if len(s.sent[s.host]) > 0 {
		t.Errorf("the host said %v before it received anything", s.sent[s.host])
	}
	m := s.last(s.joiner)
	s.deliver(s.host, m)
	s.deliver(s.host, m)
	s.tick(33e6)
	if _, ok := s.last(s.host).(proto.Relay); !ok {
		t.Error("the host does not answer")
	}
	if c := s.f.Counts(); c.Received != 1 || c.Duplicates != 1 || c.Sent != 3 || c.Playing != 2 || c.Unexpected != 0 {
		t.Errorf("%+v", c)
	}
}

// TestRoam verifies that a roam is complete when datagrams sent after it have
// arrived in both directions.
func TestRoam(t *testing.T) {
	s := newTestMatch(t)
	s.f.cfg.RoamEvery = 1e9
	s.tick(0)
	clear(s.sent)
	for _, p := range []*player{s.host, s.joiner} {
		s.deliver(p, proto.BindReceived{})
		p.Peers = [][16]byte{p.other.id}
	}
	s.tick(0)
	old := map[*player]proto.Message{s.host: s.sent[s.host][0], s.joiner: s.sent[s.joiner][0]}
	s.now += 10e6
	s.joiner.nextRoam = s.now
	s.f.roam(s.joiner, s.now)
	s.deliver(s.host, old[s.joiner])
	s.deliver(s.joiner, old[s.host])
	if s.joiner.port != 1 || len(s.f.roams) != 0 {
		t.Fatalf("port %d, over %v, before the other one received it", s.joiner.port, s.f.roams)
	}
	s.tick(33e6)
	s.deliver(s.host, s.last(s.joiner))
	if len(s.f.roams) != 1 || s.f.roams[0] != 33e6 || s.joiner.roamedAt != noRoam {
		t.Errorf("over: %v", s.f.roams)
	}
}

// TestFlow compares flow with a map, with loss, duplicates and reordering
// within the window.
func TestFlow(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	var f flow
	seen := map[uint64]bool{}
	for i := range uint64(200_000) {
		n := i + rng.Uint64N(1000)
		if i > 1000 && rng.IntN(2) == 0 {
			n -= rng.Uint64N(1000)
		}
		if got := f.record(n); got == seen[n] {
			t.Fatalf("number %d: new %v", n, got)
		}
		seen[n] = true
	}
	if f.unique != uint64(len(seen)) || f.unique+f.duplicates != 200_000 {
		t.Errorf("%d and %d, want %d of 200,000", f.unique, f.duplicates, len(seen))
	}
	if !f.record(1_000_000) || f.record(1_000_000) || f.record(1_000_000-flowWindow) || !f.record(1_000_001-flowWindow) {
		t.Error("a jump over the window")
	}
}
