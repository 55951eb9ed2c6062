package sock

import (
	"net"
	"net/netip"
	"os"
	"runtime"
	"testing"

	"github.com/ferryrelay/ferry/internal/net/endpoint"
	"golang.org/x/sys/unix"
)

// TestLinkDown removes the only link of a network namespace and restores
// it: refused datagrams count as Down, Links reports it, and sending
// continues on the other interfaces.
func TestLinkDown(t *testing.T) {
	inNamespace(t, func() {
		drop := makeLink(t)
		g := listenOn(t, "0.0.0.0:0")
		c := g.Conns()[0]
		links := WatchLinks([]netip.AddrPort{g.Addr()})
		expect := func(when string, up bool) {
			t.Helper()
			b := c.NewSendBatch(3)
			for i := range byte(3) {
				b.Add(endpoint.UDP(netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 1, 2, i}), 9), 0, 0), []byte("hello"))
			}
			want := SendResult{Failed: 3, Down: 3}
			if up {
				want = SendResult{Sent: 3, Bytes: 15, Messages: 3}
			}
			if got := c.Send(b); got != want {
				t.Errorf("%s: %+v, want %+v", when, got, want)
			}
			if name, down := links.Down(); down == up || down && name != testLink {
				t.Errorf("%s: %q is down: %v", when, name, down)
			}
		}
		expect("at first", true)
		for range 2 {
			setFlags(t, 0)
			expect("down", false)
			setFlags(t, unix.IFF_UP)
			expect("up again", true)
		}
		drop()
		expect("gone", false)
		makeLink(t)
		expect("back", true)
	})
}

const testLink = "ferry0"

// inNamespace runs f on a thread with a network namespace of its own; they end
// together.
func inNamespace(t *testing.T, f func()) {
	t.Helper()
	ended := make(chan error, 1)
	go func() {
		runtime.LockOSThread()
		err := unix.Unshare(unix.CLONE_NEWNET)
		defer func() { ended <- err }() // also after t.Fatal
		if err == nil {
			f()
		}
	}()
	if err := <-ended; err != nil {
		needRoot(t, err)
	}
}

// makeLink makes a link without a peer that carries 10.0.0.0/8, and returns a function that
// removes it.
func makeLink(t *testing.T) (drop func()) {
	t.Helper()
	fd, err := unix.Open("/dev/net/tun", unix.O_RDWR|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
	if err != nil {
		needRoot(t, err)
	}
	open := true
	drop = func() {
		if open {
			_ = unix.Close(fd)
		}
		open = false
	}
	t.Cleanup(drop)
	req := request(t)
	req.SetUint16(unix.IFF_TAP | unix.IFF_NO_PI)
	if err := unix.IoctlIfreq(fd, unix.TUNSETIFF, req); err != nil {
		t.Fatal(err)
	}
	req = request(t)
	if err := req.SetInet4Addr([]byte{10, 0, 0, 1}); err != nil {
		t.Fatal(err)
	}
	configure(t, unix.SIOCSIFADDR, req)
	setFlags(t, unix.IFF_UP)
	return drop
}

func setFlags(t *testing.T, flags uint16) {
	t.Helper()
	req := request(t)
	req.SetUint16(flags)
	configure(t, unix.SIOCSIFFLAGS, req)
}

func request(t *testing.T) *unix.Ifreq {
	t.Helper()
	req, err := unix.NewIfreq(testLink)
	if err != nil {
		t.Fatal(err)
	}
	return req
}

func configure(t *testing.T, what uint, req *unix.Ifreq) {
	t.Helper()
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = unix.Close(fd) }()
	if err := unix.IoctlIfreq(fd, what, req); err != nil {
		t.Fatalf("ioctl %#x: %v", what, err)
	}
}

func TestRealLinks(t *testing.T) {
	l := WatchLinks([]netip.AddrPort{netip.MustParseAddrPort("127.0.0.2:1")})
	lo, err := net.InterfaceByIndex(1)
	if err != nil {
		t.Fatal(err)
	}
	if len(l.watched) != 1 || l.watched[0] != (link{lo.Name, true}) {
		t.Errorf("127.0.0.2 is on %+v, want %s", l.watched, lo.Name)
	}
	if name, down := l.Down(); down {
		t.Errorf("%s is down", name)
	}
}

// needRoot skips the rest of a test that cannot make a network or mount,
// except in CI.
func needRoot(t testing.TB, err error) {
	t.Helper()
	if os.Getenv("CI") != "" {
		t.Fatalf("CI must run as root, with /dev/net/tun: %v", err)
	}
	t.Skipf("needs root: %v", err)
}
