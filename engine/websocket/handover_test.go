//go:build unix

package websocket

import (
	"context"
	"fmt"
	"net/http"
	"net/netip"
	"os"
	"testing"
	"time"

	ws "github.com/coder/websocket"
	"github.com/ferryrelay/ferry/internal/net/sock"
	"github.com/ferryrelay/ferry/internal/test/testkit"
	"github.com/ferryrelay/ferry/proto"
)

type child struct {
	*Transport
	in   intake
	stop func() // ends Run, and waits for it
}

// takeOver makes a new transport take over the connections of old, which holds its own until the
// test ends. Messages are sent by c between the two.
func takeOver(t *testing.T, old *Transport, end func(), c *ws.Conn, between int) (s child, held chan struct{}) {
	t.Helper()
	links, far, near, err := old.Private().Links()
	if err != nil {
		t.Fatal(err)
	}
	var files []*os.File
	for _, l := range links {
		f, err := sock.Dup(l, "link")
		if err != nil {
			t.Fatal(err)
		}
		files = append(files, f)
	}
	state, err := old.Private().Detach(near)
	if err != nil {
		t.Fatal(err)
	}
	for i := range between {
		write(t, c, fmt.Append(nil, "between ", i))
	}
	end()
	held = make(chan struct{})
	ctx, cancel := context.WithCancel(context.Background())
	go func() {
		defer close(held)
		old.Private().Drain(ctx)
	}()
	t.Cleanup(func() {
		cancel()
		<-held
	})
	s.in = make(intake, 1024)
	if s.Transport, err = New(Config{}); err != nil {
		t.Fatal(err)
	}
	if err := s.Private().TakeOver(append(files, far), state); err != nil {
		t.Fatal(err)
	}
	running, stop := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- s.Run(running, s.in) }()
	s.stop = func() {
		t.Helper()
		stop()
		if err := <-ended; err != nil {
			t.Error(err)
		}
		ended <- nil
	}
	t.Cleanup(s.stop)
	<-s.Running()
	return s, held
}

// TestHandover: connections of a process go on behind the next one and the one after that, no
// message is lost or out of order, and their ends become known.
func TestHandover(t *testing.T) {
	t.Parallel()
	r := start(t, Config{TrustedProxies: []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8")}})
	c, other := r.dial(http.Header{"X-Forwarded-For": {"192.0.2.7"}}), r.dial()
	serial, otherSerial := r.firstMessage(c), r.firstMessage(other)
	for _, to := range []uint64{serial, otherSerial} {
		r.Send(to, proto.BindReceived{}.Append(nil)) // Before it, 64 messages are read.
	}
	read(t, c)
	read(t, other)
	first, heldFirst := takeOver(t, r.Transport, r.stop, c, 50)
	for i := range 50 {
		if m := first.in.next(t); m.serial != serial || string(m.pkt) != fmt.Sprint("between ", i) {
			t.Fatalf("message %d is %q of %d", i, m.pkt, m.serial)
		}
	}
	second, _ := takeOver(t, first.Transport, first.stop, c, 50)
	if got := second.ClientAddress(serial); got.String() != "192.0.2.7" || got != r.ClientAddress(serial) ||
		second.ClientAddress(serial+100).IsValid() {
		t.Errorf("the client is at %v, before at %v", got, r.ClientAddress(serial))
	}
	for i := range 50 {
		if m := second.in.next(t); m.serial != serial || string(m.pkt) != fmt.Sprint("between ", i) {
			t.Fatalf("message %d behind two processes is %q of %d", i, m.pkt, m.serial)
		}
	}
	for i := range 100 {
		if !second.Send(serial, fmt.Append(nil, "to the player ", i)) {
			t.Fatal("a message is refused")
		}
	}
	for i := range 100 {
		if m := read(t, c); string(m) != fmt.Sprint("to the player ", i) {
			t.Fatalf("the player gets %q as message %d", m, i)
		}
	}
	r.Transport.find(serial).deliverAlive()
	if m := second.in.next(t); m.serial != serial || len(m.pkt) != 0 {
		t.Errorf("a sign of life became %x of %d", m.pkt, m.serial)
	}
	r.Transport.find(serial).sent.Store(false)
	second.Send(serial, nil)
	testkit.Eventually(t, "the answer to a sign of life arrives", r.Transport.find(serial).sent.Load)
	write(t, c, nil) // An empty message of a client is not its end.
	write(t, c, []byte("after an empty message"))
	if m := second.in.next(t); string(m.pkt) != "after an empty message" || !second.Send(serial, []byte("still here")) {
		t.Errorf("after an empty message: %q of %d", m.pkt, m.serial)
	}
	if m := read(t, c); string(m) != "still here" {
		t.Errorf("the player gets %q", m)
	}
	if next := second.serial.Load(); next < otherSerial {
		t.Errorf("a new connection may get serial %d, after %d", next+1, otherSerial)
	}
	if err := other.Close(ws.StatusNormalClosure, ""); err != nil {
		t.Error(err)
	}
	testkit.Eventually(t, "the end of a connection is known", func() bool { return !second.Send(otherSerial, []byte("x")) })
	select {
	case <-heldFirst:
		t.Error("the first process has ended, with an open connection")
	case <-time.After(10 * time.Millisecond):
	}
	second.stop()
	expectClose(t, c, ws.StatusGoingAway)
	<-heldFirst
}

// TestHandoverFull: a process that keeps a connection and does not read costs the relay nothing
// but messages to that.
func TestHandoverFull(t *testing.T) {
	t.Parallel()
	tr, err := New(Config{})
	if err != nil {
		t.Fatal(err)
	}
	near, far, err := packetPair()
	if err != nil {
		t.Fatal(err)
	}
	defer near.Close()
	if err := tr.takeOver([]*os.File{far}, held{Serials: [][]uint64{{7}}}); err != nil {
		t.Fatal(err)
	}
	defer tr.closeLinks()
	sent := 0
	for ; sent < 1<<20 && tr.Send(7, make([]byte, 1000)); sent++ {
	}
	if st := tr.Stats(); sent == 0 || st.Dropped[dropFull.String()] != 1 {
		t.Errorf("%d messages were taken, %d dropped", sent, st.Dropped[dropFull.String()])
	}
	if tr.Send(8, make([]byte, 10)); tr.Stats().Dropped[dropGone.String()] != 1 {
		t.Error("a message to an unknown connection is not counted")
	}
	if err := tr.takeOver(nil, held{Serials: [][]uint64{{9}}}); err == nil {
		t.Error("connections without a link are accepted")
	}
}

// TestBannedSourcesAfterHandover: connections that a process before this one keeps are counted by network, and a
// ban ends them for the relay.
func TestBannedSourcesAfterHandover(t *testing.T) {
	t.Parallel()
	r := start(t, Config{TrustedProxies: []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8")}})
	network := netip.MustParsePrefix("192.0.2.0/24")
	banned := r.dial(http.Header{"X-Forwarded-For": {"192.0.2.7"}})
	other := r.dial(http.Header{"X-Forwarded-For": {"198.51.100.7"}})
	serial, otherSerial := r.firstMessage(banned), r.firstMessage(other)
	for serial, c := range map[uint64]*ws.Conn{serial: banned, otherSerial: other} {
		r.Send(serial, proto.BindReceived{}.Append(nil))
		read(t, c)
	}
	next, _ := takeOver(t, r.Transport, r.stop, other, 1)
	next.in.next(t)
	if n := next.Private().ConnectionsFrom(network); n != 1 {
		t.Errorf("%d connections are counted, want 1", n)
	}
	next.SetBannedSources([]netip.Prefix{network})
	if n := next.Private().ConnectionsFrom(network); n != 0 || next.IsOpen(serial) || !next.IsOpen(otherSerial) {
		t.Errorf("after the ban %d connections are counted", n)
	}
	write(t, banned, []byte("from a banned network"))
	testkit.Eventually(t, "it is dropped", func() bool { return next.Stats().Dropped[dropGone.String()] == 1 })
	write(t, other, []byte("from another one"))
	if m := next.in.next(t); m.serial != otherSerial || string(m.pkt) != "from another one" {
		t.Errorf("the relay gets %q of %d", m.pkt, m.serial)
	}
}
