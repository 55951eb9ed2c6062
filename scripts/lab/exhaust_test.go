//go:build lab && linux

package lab

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/ferryrelay/ferry/alloc/api"
	"github.com/ferryrelay/ferry/internal/testkit"
)

const (
	// fewFiles is what a relay may open that is short of descriptors.
	fewFiles = 64
	// heldConns is how many connections callers hold who say nothing. Whenever
	// the relay cuts off those that it has taken, as many wait as it can take.
	heldConns = 600
	// alarmWithin is how soon a foreign socket has to be noticed.
	alarmWithin = 15 * time.Second
	// smallDisk holds a relay's identity and the first thousand of its
	// allocations, in bytes.
	smallDisk = 256 << 10
	// beyondDisk is more allocations than what a small disk has room for.
	beyondDisk = 6000
)

// TestDescriptors is F22: no descriptor is left, since callers of the API hold
// all of them. Players do not notice, and the API is back when they let go.
func TestDescriptors(t *testing.T) {
	l := newLab(t, nil)
	f, codes := l.fleet(l.players(50, 30))
	if err := l.relay.LimitFiles(fewFiles); err != nil {
		t.Fatal(err)
	}
	before := f.SettleTo(0)
	release := l.hold(heldConns)
	testkit.Eventually(t, "no descriptor is left", func() bool { return l.files() >= fewFiles })
	begin := time.Now()
	if l.caller(firstAttacker, 2*time.Second).regions(t.Context()) {
		t.Error("the API answers: this test decides nothing")
	}
	time.Sleep(time.Until(begin.Add(*faultDuration)))
	// Those that are cut off make room for others, if there are any left.
	testkit.Eventually(t, "there is still no descriptor", func() bool { return l.files() >= fewFiles })
	got := f.SettleTo(before.Lost()).Since(before)
	t.Logf("%d descriptors for %v: %v", l.files(), *faultDuration, got)
	if got.Lost() != 0 || got.Sent == 0 {
		t.Errorf("%d of %d datagrams were lost", got.Lost(), got.Sent)
	}
	release()
	begin = time.Now()
	testkit.Eventually(t, "the API is back", func() bool { return l.caller(firstAttacker, 2*time.Second).regions(t.Context()) })
	took := time.Since(begin)
	t.Logf("the API was back %v after the connections were released", took.Round(time.Millisecond))
	if *long && took > 5*time.Second {
		t.Error("goal 5 s")
	}
	l.unharmed(f.Counts())
	l.alive(f, 10*time.Second)
	l.joinable(codes[:5])
	if *long { // Between two looks at the port nothing needs a descriptor.
		l.noticed()
	}
}

// hold opens connections to the API without sending anything, and returns how
// to close them.
func (l *lab) hold(n int) (release func()) {
	l.Helper()
	var conns []net.Conn
	err := l.net.Clients.Do(func() error {
		for range n {
			conn, err := net.Dial("tcp", RelayAddr.String())
			if err != nil {
				return err
			}
			conns = append(conns, conn)
		}
		return nil
	})
	release = func() {
		for _, conn := range conns {
			// Closed before, or by the relay, is closed as well.
			_ = conn.Close()
		}
		conns = nil
	}
	l.Cleanup(release)
	if err != nil {
		l.Fatal(err)
	}
	return release
}

// TestForeignSocket is F28 and K1: another process of the same user on the UDP
// port is noticed, and the state directory belongs to one process.
func TestForeignSocket(t *testing.T) {
	l := newLab(t, nil)
	_, err := StartRelay(RelayConfig{
		Network: l.net, Binary: ferry, Dir: l.cfg.Dir, In: l.net.Victim, Addr: netip.AddrPortFrom(VictimAddr, relayPort),
	})
	if err == nil || !strings.Contains(err.Error(), "in use by another process") {
		t.Errorf("a second process with the same state directory: %v", err)
	}
	if !l.relay.Alive() {
		t.Error("the first process has ended")
	}
	l.noticed()
}

// noticed puts a socket of ours on the relay's port and demands the alarm.
func (l *lab) noticed() {
	l.Helper()
	if n := l.metric("ferry_foreign_sockets"); n != 0 {
		l.Errorf("%v foreign sockets before there is one", n)
	}
	lc := net.ListenConfig{Control: func(_, _ string, c syscall.RawConn) (err error) {
		refused := c.Control(func(fd uintptr) {
			err = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_REUSEPORT, 1)
		})
		return errors.Join(err, refused)
	}}
	var foreign net.PacketConn
	err := l.net.Relay.Do(func() (err error) {
		foreign, err = lc.ListenPacket(context.Background(), "udp4", RelayAddr.String())
		return err
	})
	if err != nil {
		l.Fatal(err)
	}
	defer foreign.Close()
	begin := time.Now()
	for l.metric("ferry_foreign_sockets") == 0 && time.Since(begin) < alarmWithin {
		time.Sleep(50 * time.Millisecond)
	}
	l.Logf("%v foreign sockets are known %v after there was one", l.metric("ferry_foreign_sockets"), time.Since(begin).Round(time.Millisecond))
	if n := l.metric("ferry_foreign_sockets"); n != 1 {
		l.Errorf("%v foreign sockets are known, want 1 within %v", n, alarmWithin)
	}
	l.alarm("ANOTHER PROCESS HAS A SOCKET")
}

// alarm demands a line of level error in the log, which may come a little later
// than what it is about.
func (l *lab) alarm(text string) {
	l.Helper()
	for deadline := time.Now().Add(10 * time.Second); time.Now().Before(deadline); time.Sleep(20 * time.Millisecond) {
		for line := range strings.Lines(l.relay.Log()) {
			if strings.Contains(line, `"level":"ERROR"`) && strings.Contains(line, text) {
				return
			}
		}
	}
	l.Errorf("no alarm %q in the log: %s", text, l.relay.Log())
}

// TestDiskFull is F27: the disk runs full under the state directory. Players
// do not notice, others still join, and the log tells the operator.
func TestDiskFull(t *testing.T) {
	var state string
	l := newLab(t, func(c *RelayConfig) {
		state = filepath.Join(c.Dir, stateName)
		c.Tokens, c.Flags = 4, []string{"--bind-timeout", "1m"}
		c.Prepare = func() error { return PrivateDisk(state, smallDisk) }
	})
	f, codes := l.fleet(l.players(50, 30))
	if n := l.metric("ferry_ledger_storing"); n != 1 {
		t.Fatalf("ferry_ledger_storing %v at the start", n)
	}
	before := f.SettleTo(0)
	if _, err := FillDisk(l.relay.Root() + state); err != nil {
		t.Fatal(err)
	}
	n := 0
	for ; n < beyondDisk && (n%100 != 0 || l.metric("ferry_ledger_storing") == 1); n++ {
		if _, err := l.relay.API(l.net.Clients, n%4).Allocate(t.Context(), api.AllocateRequest{MaxConnections: 1}); err != nil {
			t.Fatal(err)
		}
	}
	got := f.SettleTo(before.Lost()).Since(before)
	t.Logf("the disk was too small after %d allocations; %v", n, got)
	if got.Lost() != 0 || got.Sent == 0 {
		t.Errorf("%d of %d datagrams were lost", got.Lost(), got.Sent)
	}
	testkit.Eventually(t, "the disk is known to be full", func() bool { return l.metric("ferry_ledger_storing") == 0 })
	l.alarm("state file: it cannot be written")
	l.unharmed(f.Counts())
	l.alive(f, 10*time.Second)
	l.joinable(codes[:5])
}

// TestDiskAtStart: a relay that knows who it is comes back on a full disk, and
// on one that has become read-only, with the matches that it had, and says so.
func TestDiskAtStart(t *testing.T) {
	l := newLab(t, nil)
	f, _ := l.fleet(l.players(30, 30))
	state := l.relay.StateDir()
	identity, err := os.ReadFile(filepath.Join(state, "identity"))
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		name  string
		spoil func() error
	}{
		{"full", func() error { _, err := FillDisk(state); return err }},
		{"read-only", func() error { return ReadOnly(state) }},
	} {
		l.cfg.Prepare = func() error {
			if err := PrivateDisk(state, smallDisk); err != nil {
				return err
			}
			return errors.Join(os.WriteFile(filepath.Join(state, "identity"), identity, 0o600),
				os.WriteFile(filepath.Join(state, "lock"), nil, 0o600), c.spoil())
		}
		if err := l.relay.Stop(); err != nil {
			t.Fatal(err)
		}
		l.start()
		testkit.Eventually(t, c.name+": nothing can be stored", func() bool { return l.metric("ferry_ledger_storing") == 0 })
		l.alarm("state file: it cannot be written")
		l.alive(f, 10*time.Second)
		l.unharmed(f.Counts())
		if _, err := l.relay.API(l.net.Clients, 0).Allocate(t.Context(), api.AllocateRequest{MaxConnections: 1}); err != nil {
			t.Errorf("%s: %v", c.name, err)
		}
		t.Logf("%s: %v", c.name, f.Counts())
	}
}
