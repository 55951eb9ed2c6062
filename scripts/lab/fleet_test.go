package lab

import (
	"math"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/ferryrelay/ferry/alloc/api"
	"github.com/ferryrelay/ferry/internal/test/habits"
	"github.com/ferryrelay/ferry/proto"
)

func TestLeave(t *testing.T) {
	for how, want := range map[leaveMethod][]proto.Type{
		bySilence: nil, byClose: {proto.TypeClose}, byDisconnect: {proto.TypeDisconnect},
		byBoth: {proto.TypeDisconnect, proto.TypeClose},
	} {
		s := newTestMatch(t)
		s.deliver(s.joiner, proto.BindReceived{})
		s.joiner.Peers, s.joiner.sent = [][16]byte{s.host.id}, 5
		s.f.leave(s.joiner, s.now, how)
		var sent []proto.Type
		for _, m := range s.sent[s.joiner] {
			kind, err := proto.ParseType(m.Append(nil))
			if err != nil {
				t.Fatal(err)
			}
			sent = append(sent, kind)
		}
		c := s.f.Counts()
		if !slices.Equal(sent, want) || c.Players != 1 || c.Sent != 5 || s.joiner.port != 1 {
			t.Errorf("way %d: said %v, port %d, %+v", how, sent, s.joiner.port, c)
		}
		s.tick(30 * pingPeriod)
		if len(s.sent[s.joiner]) != len(want) {
			t.Errorf("way %d: it speaks after it has left", how)
		}
	}
}

// TestLife verifies that a match ends within one and a half times its mean
// duration, that another match reuses its slot, and that about one host in
// eight has no joiner.
func TestLife(t *testing.T) {
	const life = 4e9
	s := newTestMatch(t)
	s.f.cfg.MatchDuration, s.f.rng = life, rand.New(rand.NewPCG(1, 1))
	host := api.Allocation{AllocationIDBytes: make([]byte, 16), Key: make(api.Key, 64), ConnectionData: []byte{1}}
	joiner := host
	joiner.HostConnectionData = []byte{1}
	if s.f.Add(host, joiner) == nil {
		t.Fatal("there is room for two")
	}
	absent := 0
	s.f.scheduleEnd(s.host, s.joiner, s.now)
	for range 800 {
		at := s.f.players[0].leaveAt
		s.f.endMatches(at - 1)
		if len(s.f.free) != 0 {
			t.Fatal("over too early")
		}
		s.f.endMatches(at)
		s.f.endMatches(at + 10*life)
		if len(s.f.free) != 1 || s.f.Counts().Players != 0 || s.f.Matches() != 0 {
			t.Fatalf("free %v, %v", s.f.free, s.f.Counts())
		}
		if err := s.f.Add(host, joiner); err != nil {
			t.Fatal(err)
		}
		absent += 2 - s.f.Counts().Players
	}
	if c := s.f.Counts(); c.Ended != 800 {
		t.Errorf("%d are over", c.Ended)
	}
	if absent < 50 || absent > 150 {
		t.Errorf("%d of 800 hosts had no joiner, want 50 to 150", absent)
	}
}

// TestErrorForOtherPlayer: a player ignores an ERROR with another player's id.
func TestErrorForOtherPlayer(t *testing.T) {
	s := newTestMatch(t)
	s.deliver(s.host, proto.BindReceived{})
	s.deliver(s.host, proto.Error{ID: s.joiner.id, Code: proto.ErrorNotFound})
	if c := s.f.Counts(); s.host.Status != habits.Bound || c.Unexpected != 1 || c.Fatal() != 0 {
		t.Errorf("%+v", c)
	}
	s.deliver(s.host, proto.Error{ID: s.host.id, Code: proto.ErrorNotFound})
	if s.host.Status != habits.Failed {
		t.Error("it lives")
	}
}

func TestSlope(t *testing.T) {
	var line, saw []Point
	for i := range 100 {
		at := time.Duration(i) * time.Second
		line = append(line, Point{at, 1000 - 2*float64(i)})
		saw = append(saw, Point{at, float64(i%2) * 100})
	}
	for _, c := range []struct {
		name   string
		points []Point
		want   float64
		within float64
	}{
		{"none", nil, 0, 0},
		{"one", line[:1], 0, 0},
		{"one moment", []Point{{time.Second, 1}, {time.Second, 9}}, 0, 0},
		{"a line that falls by 2 a second", line, -120, 1e-6},
		{"up and down", saw, 0, 5},
	} {
		if got := Slope(c.points, time.Minute); math.Abs(got-c.want) > c.within {
			t.Errorf("%s: %v per minute, want %v", c.name, got, c.want)
		}
	}
}
