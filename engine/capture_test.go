package engine

import (
	"bytes"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"testing"

	"github.com/ferryrelay/ferry/alloc"
	"github.com/ferryrelay/ferry/internal/net/endpoint"
	"github.com/ferryrelay/ferry/internal/privateapi"
	"github.com/ferryrelay/ferry/proto"
)

type capture struct {
	*rig
	tap *tap
}

func (r *rig) capture(id mID) capture {
	r.t.Helper()
	c := capture{r, &tap{queue: make(chan *privateapi.Captured, captureQueue), localAddr: func(endpoint.Endpoint) (netip.AddrPort,
		bool) {
		return netip.AddrPort{}, false
	}, names: &[endpoint.Kinds]string{endpoint.KindSession: "ws"}}}
	if err := r.control.beginCapture(c.tap, proto.AllocationID(id)); err != nil {
		r.t.Fatal(err)
	}
	page := r.control.list(&Filter{Match: c.tap.match}, 0, 1000)
	r.control.tapAllocations(c.tap, page.found)
	return c
}

func (c capture) want(what string, want ...string) {
	c.t.Helper()
	var got []string
	for range len(c.tap.queue) {
		m := <-c.tap.queue
		kind, _ := proto.ParseType(m.Message)
		line := fmt.Sprint(m.Player, " ", kind)
		if !m.Player.IsValid() {
			line = fmt.Sprint(m.Transport, "#", m.Session, " ", kind)
		}
		if m.Sent {
			line += " sent"
		} else {
			line += " " + m.Outcome + m.Dropped
		}
		got = append(got, line)
	}
	if !slices.Equal(got, want) {
		c.t.Errorf("%s: captured\n%q, want\n%q", what, got, want)
	}
}

// TestCapture: a capture has what the relay received of one match and what it sent for that,
// with the outcome by worker or control, and nothing of other matches.
func TestCapture(t *testing.T) {
	t.Parallel()
	r := newRig(t, Config{})
	host, other := r.host(udpN(1), 4), r.host(udpN(11), 4)
	first := r.joiner(udpN(2), host)
	stranger := r.joiner(udpN(12), other)
	c := r.capture(first.id)
	line := func(n int, rest string) string { return fmt.Sprint(udpN(n).Remote(), " ", rest) }

	r.feed(udpN(2), relayMessage(first.id, host.id, 5))
	c.want("a RELAY", line(2, "RELAY relayed"), line(1, "RELAY sent"))
	r.feed(udpN(1), pingMessage(host.id))
	c.want("a PING", line(1, "PING pong"), line(1, "PING sent"))
	r.feed(udpN(12), relayMessage(stranger.id, other.id, 5))
	r.feed(udpN(11), pingMessage(other.id))
	c.want("another match")

	late := r.unlinked(udpN(3), host)
	c.want("a player that joins later", line(3, "BIND bound"), line(3, "BIND_RECEIVED sent"))
	r.feed(udpN(3), connectMessage(late.id, late.ticket))
	c.want("its CONNECT_REQUEST", line(3, "CONNECT_REQUEST accepted"), line(3, "ACCEPTED sent"))
	r.feed(udpN(3), relayMessage(late.id, first.id, 5))
	c.want("without a link", line(3, "RELAY error_not_connected"), line(3, "ERROR sent"))
	r.feed(udpN(4), pingMessage(late.id))
	c.want("from another endpoint", line(4, "PING error_mismatch"), line(4, "ERROR sent"))
	r.feed(udpN(3), message(11, late.id))
	c.want("CLOSE", line(3, "CLOSE closed"))
	r.feed(udpN(5), message(11, late.id))
	c.want("of an ended allocation", line(5, "CLOSE unbound"))
	r.feed(udpN(6), connectMessage(stranger.id, first.ticket))
	c.want("a CONNECT_REQUEST of another match")

	if err := r.control.beginCapture(&tap{}, proto.AllocationID(other.id)); !errors.Is(err, privateapi.ErrCapture) {
		t.Errorf("a second capture: %v", err)
	}
	r.control.endCapture(c.tap)
	r.feed(udpN(2), relayMessage(first.id, host.id, 5))
	c.want("after the end")
	if err := r.control.beginCapture(&tap{}, proto.AllocationID(late.id)); !errors.Is(err, alloc.ErrNotFound) {
		t.Errorf("of an ended allocation: %v", err)
	}
}

// TestCapturedRelays: while a capture runs, RELAYs leave as before, in order, also those of
// other matches.
func TestCapturedRelays(t *testing.T) {
	t.Parallel()
	r := newRig(t, Config{})
	host, other := r.host(udpN(1), 4), r.host(endpoint.Serial(endpoint.KindSession, 9), 4)
	a, b := r.joiner(udpN(2), host), r.joiner(udpN(3), other)
	r.capture(host.id)
	for n := range 5 {
		r.feed(udpN(2), relayMessage(a.id, host.id, n))
		r.feed(udpN(3), relayMessage(b.id, other.id, n))
	}
	sent := r.take()
	if len(sent) != 10 {
		t.Fatalf("%d datagrams left, want 10", len(sent))
	}
	for i, s := range sent {
		to := []endpoint.Endpoint{udpN(1), endpoint.Serial(endpoint.KindSession, 9)}[i%2]
		if s.to != to || len(s.pkt) != proto.RelayOverhead+i/2 {
			t.Errorf("datagram %d went to %v with %d bytes", i, s.to, len(s.pkt))
		}
	}
}

func TestCaptureHasNoSecrets(t *testing.T) {
	t.Parallel()
	r := newRig(t, Config{})
	host := r.host(udpN(1), 4)
	player := r.unlinked(udpN(2), host)
	bind, connect := signed(player, 9, player.key), connectMessage(player.id, player.ticket)
	unknown := slices.Clone(bind)
	unknown[2] = 7 // another version
	for _, msg := range [][]byte{bind, bind[:100], connect, connect[:50], unknown, {1}, {}} {
		safe := withoutSecrets(msg)
		for _, secret := range []string{player.data, player.ticket, string(bind[len(bind)-len(proto.Bind{}.MAC):])} {
			for at := 0; at+8 <= len(secret); at++ {
				if bytes.Contains(safe, []byte(secret[at:at+8])) {
					t.Fatalf("%d bytes of type %v contain a part of a secret", len(msg), msg[:min(4, len(msg))])
				}
			}
		}
		if len(safe) != len(msg) {
			t.Errorf("%d bytes became %d", len(msg), len(safe))
		}
	}
	if relay := relayMessage(player.id, host.id, 50); !bytes.Equal(withoutSecrets(relay), relay) {
		t.Error("a RELAY is changed")
	}
}

// TestCaptureTakesFromFastPath: the fast path leaves the match of a capture to the workers.
func TestCaptureTakesFromFastPath(t *testing.T) {
	t.Parallel()
	r := newRig(t, Config{FastPath: &fakePath{base: 100}})
	host, other := r.host(udpN(1), 4), r.host(udpN(9), 4)
	r.wantNextHop(host, 101)
	c := r.capture(host.id)
	r.wantNextHop(host, 0)
	late := r.unlinked(udpN(2), host)
	r.wantNextHop(late, 0)
	r.wantNextHop(other, 109)
	r.control.networkChanged()
	r.pump()
	r.wantNextHop(host, 0)
	r.control.endCapture(c.tap)
	r.wantNextHop(host, 101)
	r.wantNextHop(late, 102)
}

// TestCaptureIsBounded: a capture without a reader loses messages.
func TestCaptureIsBounded(t *testing.T) {
	t.Parallel()
	r := newRig(t, Config{Unlimited: true})
	host := r.host(udpN(1), 4)
	player := r.joiner(udpN(2), host)
	c := r.capture(host.id)
	for range captureQueue {
		r.feed(udpN(2), relayMessage(player.id, host.id, 5))
	}
	if lost := c.tap.lost.Load(); len(c.tap.queue) != captureQueue || lost != captureQueue {
		t.Errorf("%d messages wait and %d are lost, want %d of each", len(c.tap.queue), lost, captureQueue)
	}
	for n := range 2 * maxUndecided {
		r.step(udpN(1), signed(host, uint16(2+n), host.key))
	}
	if n := len(c.tap.undecided); n > maxUndecided {
		t.Errorf("%d messages wait for an outcome", n)
	}
}

// TestPanicInCapture: a panic in a tapped message drops that message only.
func TestPanicInCapture(t *testing.T) {
	t.Parallel()
	r := newRig(t, Config{})
	host := r.host(udpN(1), 4)
	c := r.capture(host.id)
	w := r.worker(udpN(1))
	w.tap = c.tap
	sealer := r.shared.sealer
	func() {
		defer func() { recover() }()
		r.shared.sealer = nil
		w.handleMessage(r.now, udpN(1), signed(host, 3, host.key))
		t.Error("no panic")
	}()
	r.shared.sealer = sealer
	if w.tap != c.tap {
		t.Error("the worker lost its capture")
	}
	if o := r.feed(udpN(1), pingMessage(host.id)); o != outPong {
		t.Errorf("the next message: %v", o)
	}
}
