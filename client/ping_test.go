package client

import (
	"testing"
	"time"

	"github.com/ferryrelay/ferry/internal/test/testkit"
	"github.com/ferryrelay/ferry/proto"
)

func TestPingMeasures(t *testing.T) {
	t.Parallel()
	s := idleHost(t, Config{})
	echo := func(number uint16, at int) { feed(s, ms(at), proto.Ping{ID: hostID, Number: number}) }
	echo(1, 80)
	if got := s.Stats().RTT; got != 80*time.Millisecond {
		t.Errorf("first RTT is %v", got)
	}
	got := drain(t, s, ms(1000))
	if len(got) != 1 || got[0] != proto.Message(proto.Ping{ID: hostID, Number: 2}) {
		t.Fatalf("sends %v", got)
	}
	echo(2, 1160)
	echo(2, 1900)
	echo(77, 1900)
	st := s.Stats()
	if st.RTT != 90*time.Millisecond {
		t.Errorf("RTT is %v", st.RTT)
	}
	if st.Pings != 2 || st.Echoes != 2 || st.Unexpected != 2 {
		t.Errorf("stats are %+v", st)
	}
}

func TestPingKeepsItsPeriod(t *testing.T) {
	t.Parallel()
	s := idleHost(t, Config{PingPeriod: 100 * time.Millisecond})
	sent := 0
	for now := ms(1); now <= ms(1000); now += ms(1) {
		for _, m := range drain(t, s, now) {
			feed(s, now, m)
			sent++
		}
	}
	if sent != 10 {
		t.Errorf("%d PINGs in 1 s", sent)
	}
}

func TestPingNumberWraps(t *testing.T) {
	t.Parallel()
	s := idleHost(t, Config{})
	s.ping.number = 65535
	got := drain(t, s, ms(1000))
	if len(got) != 1 || got[0] != proto.Message(proto.Ping{ID: hostID, Number: 0}) {
		t.Fatalf("sends %v", got)
	}
	feed(s, ms(1010), proto.Ping{ID: hostID, Number: 0})
	if got := s.Stats().RTT; got != 10*time.Millisecond {
		t.Errorf("RTT is %v", got)
	}
}

func TestRTTOverTheRelay(t *testing.T) {
	t.Parallel()
	f := startFakeRelay(t)
	s := running(t, brisk(hostTicket(f.addr)))
	if err := s.Bind(within(t)); err != nil {
		t.Fatal(err)
	}
	testkit.Eventually(t, "a round trip", func() bool { return s.Stats().RTT > 0 })
	if rtt := s.Stats().RTT; rtt > patience {
		t.Errorf("RTT is %v", rtt)
	}
}

// TestRTTAfterStall: PINGs that waited for a relay that had stopped measure no round trip.
func TestRTTAfterStall(t *testing.T) {
	t.Parallel()
	s := idleHost(t, Config{})
	var stopped []proto.Message
	for now := 0; now < 40_000; now += 100 {
		for _, m := range drain(t, s, ms(now)) {
			if now > 10_000 && now < 16_000 {
				stopped = append(stopped, m)
				continue
			}
			switch m.(type) {
			case proto.Ping:
				feed(s, ms(now+30), m)
			case proto.Bind:
				feed(s, ms(now+30), proto.BindReceived{})
			}
		}
		if now == 16_000 {
			for _, m := range stopped {
				if ping, ok := m.(proto.Ping); ok {
					feed(s, ms(now), ping)
				} else if _, ok := m.(proto.Bind); ok {
					feed(s, ms(now), proto.BindReceived{})
				}
			}
		}
		if st := s.Stats(); st.RTT > 31*time.Millisecond {
			t.Fatalf("at %d ms the round trip is %v", now, st.RTT)
		}
	}
	if st := s.Stats(); len(stopped) < 4 || st.Echoes < 30 || st.RTT != 30*time.Millisecond {
		t.Errorf("%d messages waited; %+v", len(stopped), st)
	}
}
