package link_test

import (
	"fmt"
	"net/netip"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/ferryrelay/ferry/client/netcode/address"
	"github.com/ferryrelay/ferry/client/netcode/link"
	"github.com/ferryrelay/ferry/internal/net/sock"
	"github.com/ferryrelay/ferry/internal/test/testkit"
)

func TestMain(m *testing.M) {
	testkit.DefaultParallel(16)
	goleak.VerifyTestMain(m)
}

// patience bounds what a test waits for; none waits that long when all is well.
const patience = 20 * time.Second

// end is a link in a test, with the buffer of its caller.
type end struct {
	link.Link
	buf []byte
}

func newEnd(t testing.TB, l link.Link) *end {
	t.Helper()
	t.Cleanup(func() {
		if err := l.Close(); err != nil {
			t.Errorf("close: %v", err)
		}
	})
	return &end{l, make([]byte, link.MaxDatagram)}
}

// poll is one look at the link, as an event and what came with it.
func (e *end) poll() (link.Event, string) {
	e.Advance(time.Now())
	ev := e.Receive(e.buf)
	return ev, string(e.buf[:ev.N])
}

func (e *end) next(t testing.TB) (link.Event, string) {
	t.Helper()
	for give := time.Now().Add(patience); ; {
		ev, text := e.poll()
		if ev.Kind != link.Nothing {
			return ev, text
		}
		if time.Now().After(give) {
			t.Fatalf("nothing came; stats %+v", e.Stats())
		}
		pause()
	}
}

// expect waits for the next event, which has to be this one.
func (e *end) expect(t testing.TB, kind link.Kind, from address.Addr, text string) link.Event {
	t.Helper()
	ev, got := e.next(t)
	if ev.Kind != kind || ev.Addr != from || got != text {
		t.Fatalf("%v %q from %v (%v), want %v %q from %v", ev.Kind, got, ev.Addr, ev.Err, kind, text, from)
	}
	return ev
}

func (e *end) quiet(t testing.TB) {
	t.Helper()
	if ev, text := e.poll(); ev.Kind != link.Nothing {
		t.Fatalf("%v %q from %v, want nothing", ev.Kind, text, ev.Addr)
	}
}

func (e *end) say(t testing.TB, to address.Addr, format string, args ...any) {
	t.Helper()
	if err := e.Send(to, fmt.Appendf(nil, format, args...)); err != nil {
		t.Fatalf("send to %v: %v", to, err)
	}
	e.Flush()
}

// pause lets others run. Unlike runtime.Gosched it gives the processor away, of
// which the machine may have few.
func pause() { time.Sleep(20 * time.Microsecond) }

// socketPath returns how package sock reaches the kernel in this build.
func socketPath(t *testing.T) string {
	t.Helper()
	group, err := sock.Listen(sock.Config{Addr: netip.MustParseAddrPort("127.0.0.1:0")}, 1)
	if err != nil {
		t.Fatal(err)
	}
	defer group.Close()
	return group.Capabilities().Path
}

// arrives waits for an event, and allocates nothing.
func arrives(t *testing.T, e *end) {
	for give := time.Now().Add(patience); e.Receive(e.buf).Kind == link.Nothing; pause() {
		if time.Now().After(give) {
			t.Fatalf("nothing came; stats %+v", e.Stats())
		}
	}
}

// noAllocs fails the test if a call of f allocates.
func noAllocs(t *testing.T, f func()) {
	t.Helper()
	if testkit.RaceEnabled {
		t.Skip("the race detector allocates")
	}
	if path := socketPath(t); path != "mmsg" {
		t.Skipf("sockets by way of %q allocate per datagram", path)
	}
	for range 300 {
		f() // until every buffer is there
	}
	if n := testing.AllocsPerRun(500, f); n != 0 {
		t.Errorf("%v allocations per datagram", n)
	}
}
