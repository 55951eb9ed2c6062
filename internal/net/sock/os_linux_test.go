package sock

import (
	"errors"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"runtime"
	"testing"

	"github.com/ferryrelay/ferry/internal/net/endpoint"
	"golang.org/x/sys/unix"
)

// TestOptions: no error queue, and over IPv4 no path MTU that another host can set, on
// every socket of a group.
func TestOptions(t *testing.T) {
	for _, tt := range []struct {
		addr               string
		level, queue, mode int
		want               int
	}{
		{"127.0.0.1:0", unix.IPPROTO_IP, unix.IP_RECVERR, unix.IP_MTU_DISCOVER, unix.IP_PMTUDISC_OMIT},
		{"0.0.0.0:0", unix.IPPROTO_IP, unix.IP_RECVERR, unix.IP_MTU_DISCOVER, unix.IP_PMTUDISC_OMIT},
		{"[::1]:0", unix.IPPROTO_IPV6, unix.IPV6_RECVERR, unix.IPV6_MTU_DISCOVER, unix.IPV6_PMTUDISC_DONT},
		{"[::]:0", unix.IPPROTO_IPV6, unix.IPV6_RECVERR, unix.IPV6_MTU_DISCOVER, unix.IPV6_PMTUDISC_DONT},
	} {
		t.Run(tt.addr, func(t *testing.T) {
			if tt.addr[0] == '[' {
				needV6(t)
			}
			for _, c := range listen(t, Config{Addr: netip.MustParseAddrPort(tt.addr)}, 2).Conns() {
				descriptor(t, c, func(fd int) {
					if on, err := unix.GetsockoptInt(fd, tt.level, tt.queue); on != 0 || err != nil {
						t.Errorf("RECVERR is %d, %v", on, err)
					}
					if mode, err := unix.GetsockoptInt(fd, tt.level, tt.mode); mode != tt.want || err != nil {
						t.Errorf("MTU_DISCOVER is %d, %v, want %d", mode, err, tt.want)
					}
				})
			}
		})
	}
}

// TestPathMTUOfLoopback: without a router's word it is the interface's. The laboratory has
// routers.
func TestPathMTUOfLoopback(t *testing.T) {
	needV6(t)
	lo, err := net.InterfaceByIndex(1)
	if err != nil {
		t.Fatal(err)
	}
	if mtu, err := PathMTU(netip.IPv6Loopback()); mtu != lo.MTU || err != nil {
		t.Errorf("PathMTU = %d, %v, want %d", mtu, err, lo.MTU)
	}
	for _, to := range []string{"127.0.0.1", "::ffff:127.0.0.1"} {
		if mtu, err := PathMTU(netip.MustParseAddr(to)); !errors.Is(err, ErrAddress) {
			t.Errorf("%s: PathMTU = %d, %v, want ErrAddress", to, mtu, err)
		}
	}
}

// TestErrorQueue enables the errors that Listen disables: then calls for other peers return
// the ICMP error that one dead peer causes. None of them
// may fail.
func TestErrorQueue(t *testing.T) {
	g := listenOn(t, "127.0.0.1:0")
	c := g.Conns()[0]
	descriptor(t, c, func(fd int) {
		if err := unix.SetsockoptInt(fd, unix.IPPROTO_IP, unix.IP_RECVERR, 1); err != nil {
			t.Fatal(err)
		}
	})
	client := dial(t, netip.AddrPort{}, g.Addr())
	dead, alsoDead := deadPeer(t), deadPeer(t)
	good := endpoint.UDP(client.LocalAddr().(*net.UDPAddr).AddrPort(), 0, 0)
	rx, tx := c.NewRecvBatch(), c.NewSendBatch(17)
	for round := range byte(50) {
		for i := range byte(8) {
			tx.Add(dead, []byte{0})
			tx.Add(good, []byte{round, i})
		}
		tx.Add(alsoDead, []byte{0}) // Its error is for the receiver.
		if res := c.Send(tx); res.Sent != 17 || res.Failed != 0 {
			t.Fatalf("round %d: %+v", round, res)
		}
		for i := range byte(8) {
			if got := read(t, client); len(got) != 2 || got[0] != round || got[1] != i {
				t.Fatalf("round %d: got %v, want %d", round, got, i)
			}
		}
		write(t, client, []byte{round})
		if n := recvSome(t, c, rx); n != 1 {
			t.Fatalf("round %d: %d datagrams", round, n)
		}
	}
	if s := c.Stats(); s.RecvErrors == 0 {
		t.Errorf("no error came to the receiver: %+v", s)
	}
}

// deadPeer is an endpoint on loopback without a socket.
func deadPeer(t *testing.T) endpoint.Endpoint {
	t.Helper()
	gone := dial(t, netip.AddrPort{}, netip.MustParseAddrPort("127.0.0.1:9"))
	addr := gone.LocalAddr().(*net.UDPAddr).AddrPort()
	if err := gone.Close(); err != nil {
		t.Fatal(err)
	}
	return endpoint.UDP(addr, 0, 0)
}

// TestRealRefusals: of a batch with one of each that the kernel refuses without
// any set-up, the others arrive, in order.
func TestRealRefusals(t *testing.T) {
	g := listenOn(t, "127.0.0.1:0")
	c := g.Conns()[0]
	client := dial(t, netip.AddrPort{}, g.Addr())
	good := endpoint.UDP(client.LocalAddr().(*net.UDPAddr).AddrPort(), 0, 0)
	type refusal struct {
		to  string
		pkt []byte
	}
	bad := []refusal{
		{"127.0.0.1:0", []byte{1}},            // EINVAL
		{"127.0.0.1:9", make([]byte, 65_508)}, // EMSGSIZE
	}
	if g.Capabilities().Path == "mmsg" { // Package net permits broadcasts.
		bad = append(bad, refusal{"255.255.255.255:9", []byte{1}}, refusal{"255.255.255.255:10", nil}) // EACCES
	}
	b := c.NewSendBatch(2*len(bad) + 1)
	for i, x := range bad {
		b.Add(good, []byte{byte(i)})
		b.Add(endpoint.UDP(netip.MustParseAddrPort(x.to), 0, 0), x.pkt)
	}
	b.Add(good, nil)
	if res := c.Send(b); res.Sent != len(bad)+1 || res.Failed != len(bad) || res.Down != 0 {
		t.Errorf("%+v", res)
	}
	for i := range bad {
		if got := read(t, client); len(got) != 1 || got[0] != byte(i) {
			t.Errorf("got %v, want %d", got, i)
		}
	}
	if got := read(t, client); len(got) != 0 {
		t.Errorf("got %v, want an empty datagram", got)
	}
}

// TestPinThread pins a goroutine of its own, whose thread ends with it.
func TestPinThread(t *testing.T) {
	var allowed unix.CPUSet
	if err := unix.SchedGetaffinity(0, &allowed); err != nil {
		t.Fatal(err)
	}
	last := -1
	for cpu := range maxCPU {
		if allowed.IsSet(cpu) {
			last = cpu
		}
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		if err := PinThread(last); err != nil {
			t.Errorf("PinThread(%d): %v", last, err)
			return
		}
		var got unix.CPUSet
		if err := unix.SchedGetaffinity(0, &got); err != nil || got.Count() != 1 || !got.IsSet(last) {
			t.Errorf("pinned to %d: %d CPUs, %v", last, got.Count(), err)
		}
	}()
	<-done
	for _, cpu := range []int{-1, maxCPU, maxCPU - 1} {
		if allowed.IsSet(cpu) {
			continue
		}
		if err := PinThread(cpu); err == nil {
			t.Errorf("PinThread(%d) succeeds", cpu)
		}
	}
}

// TestMapFileFull: on a file system that is too small for the file, MapFile
// returns the error, and no write to the mapping kills the process.
func TestMapFileFull(t *testing.T) {
	dir := t.TempDir()
	if err := unix.Mount("ferry", dir, "tmpfs", 0, "size=64k"); err != nil {
		needRoot(t, err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(dir, 0); err != nil {
			t.Error(err)
		}
	})
	f, err := os.Create(filepath.Join(dir, "mapped"))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = f.Close() }()
	if err := f.Truncate(1 << 20); err != nil {
		t.Fatal(err)
	}
	if mem, _, err := MapFile(f, 1<<20); !errors.Is(err, unix.ENOSPC) {
		t.Fatalf("%d bytes, %v", len(mem), err)
	}
	mem, unmap, err := MapFile(f, 32<<10)
	if err != nil {
		t.Fatal(err)
	}
	clear(mem)
	if err := unmap(); err != nil {
		t.Error(err)
	}
}

func TestThreadTime(t *testing.T) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	start := ThreadTime()
	if start <= 0 {
		t.Fatalf("the CPU time is %d", start)
	}
	for ThreadTime() <= start {
	}
}

func TestTimerSlack(t *testing.T) {
	runtime.LockOSThread() // for ever: the thread ends with its timer slack
	if err := SetTimerSlack(1); err != nil {
		t.Fatal(err)
	}
	if got, err := unix.PrctlRetInt(unix.PR_GET_TIMERSLACK, 0, 0, 0, 0); err != nil || got != 1 {
		t.Errorf("the timer slack is %d ns: %v", got, err)
	}
}
