package bench

import (
	"net"
	"net/netip"
	"os"
	"os/exec"
	"runtime"
	"testing"
	"time"

	"github.com/ferryrelay/ferry/internal/benchrig"
)

func TestUserSystem(t *testing.T) {
	stat := "42 (a ) (b) R 1 42 42 0 -1 4194304 100 0 0 0 123 45 6 7 20 0 3 0 1000 1 2 3"
	if u, s := userSystem(stat); u != 1230*time.Millisecond || s != 450*time.Millisecond {
		t.Errorf("user %v, system %v", u, s)
	}
	if u, s := userSystem("42 (x) R"); u != 0 || s != 0 {
		t.Errorf("a short line gives %v, %v", u, s)
	}
}

func TestUDPCounters(t *testing.T) {
	snmp := "Tcp: A B\nTcp: 1 2\nUdp: InDatagrams NoPorts RcvbufErrors\nUdp: 10 20 30\nUdpLite: InDatagrams\nUdpLite: 7\n"
	if c := udpCounters(snmp); len(c) != 3 || c["NoPorts"] != 20 || c["RcvbufErrors"] != 30 {
		t.Errorf("%v", c)
	}
	if c := udpCounters("Udp: A\n"); len(c) != 0 {
		t.Errorf("half of it gives %v", c)
	}
}

func TestSince(t *testing.T) {
	a := systemSample{cpu: []uint64{10, 1, 5, 100, 2, 1, 3, 0}}
	b := systemSample{cpu: []uint64{20, 2, 8, 150, 4, 2, 9, 1}}
	c := systemSample{udp: map[string]uint64{"RcvbufErrors": 5}}
	d := systemSample{udp: map[string]uint64{"RcvbufErrors": 9, "NoPorts": 2}}
	want := System{
		User: 110 * time.Millisecond, Kernel: 30 * time.Millisecond, Idle: 520 * time.Millisecond,
		SoftIRQ: 70 * time.Millisecond, Steal: 10 * time.Millisecond, RcvbufErrors: 4, NoPorts: 2,
	}
	if got := systemUse(a, b, c, d); got != want {
		t.Errorf("%+v, want %+v", got, want)
	}
}

func TestBetween(t *testing.T) {
	a := processSample{at: 100, threads: map[string]threadSample{"1": {run: 50, wait: 5}, "2": {run: 70}}, user: 1, voluntary: 3}
	b := processSample{at: 300, threads: map[string]threadSample{"1": {run: 150, wait: 6}, "3": {run: 9}}, user: 4, voluntary: 2, rss: 8}
	got := processUse(7, a, b, 10)
	want := Process{PID: 7, Run: 109, Wait: 1, Wall: 200, User: 3, Datagrams: 10, PerDatagram: 10.9, RSS: 8, Threads: 2}
	if got != want {
		t.Errorf("%+v, want %+v", got, want)
	}
}

// TestReadProcess measures a known amount of work of this process.
func TestReadProcess(t *testing.T) {
	a, err := readProcess(os.Getpid())
	if runtime.GOOS != "linux" {
		if err == nil {
			t.Error("no error without /proc")
		}
		return
	}
	if err != nil {
		t.Fatal(err)
	}
	for begin := time.Now(); time.Since(begin) < 30*time.Millisecond; {
	}
	b, err := readProcess(os.Getpid())
	if err != nil {
		t.Fatal(err)
	}
	p := processUse(os.Getpid(), a, b, 1)
	if p.Run <= 0 || p.RSS == 0 || p.Threads == 0 || p.Wall < 30*time.Millisecond {
		t.Errorf("%+v", p)
	}
	if _, err := readProcess(1 << 30); err == nil {
		t.Error("a process that is not there was read")
	}
}

func TestThisMachine(t *testing.T) {
	m := thisMachine()
	if len(m.ID) != 16 || len(m.Host) != 16 || m.Cores < 1 || m.Go == "" || m.OS == "" {
		t.Errorf("%+v", m)
	}
	if again := thisMachine(); again.ID != m.ID {
		t.Errorf("the id changed from %s to %s", m.ID, again.ID)
	}
}

// TestOwnsPort: a process is known by the port of its socket, of either family.
func TestOwnsPort(t *testing.T) {
	for _, addr := range []string{"127.0.0.1:0", "[::1]:0"} {
		conn, err := net.ListenPacket("udp", addr)
		if err != nil {
			t.Logf("%s: %v", addr, err) // a machine without IPv6
			continue
		}
		port := netip.MustParseAddrPort(conn.LocalAddr().String()).Port()
		if owns, known := ownsPort(os.Getpid(), "udp", port); !owns || !known {
			t.Errorf("%s: own socket: %v, %v", addr, owns, known)
		}
		if owns, known := ownsPort(os.Getpid(), "tcp", port); owns && known {
			t.Errorf("%s: a socket of UDP for one of TCP", addr)
		}
		if owns, known := ownsPort(os.Getppid(), "udp", port); owns && known {
			t.Errorf("%s: the parent process has it", addr)
		}
		conn.Close()
		if owns, _ := ownsPort(os.Getpid(), "udp", port); owns {
			t.Errorf("%s: a closed socket", addr)
		}
	}
	if owns, known := ownsPort(1<<30, "udp", 7); owns || known {
		t.Error("a process that is not there")
	}
}

// TestRunOfAnotherProcess: the figures of a process that is not the relay are none.
func TestRunOfAnotherProcess(t *testing.T) {
	other := exec.Command("sleep", "60")
	if err := other.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = other.Process.Kill(); _ = other.Wait() }()
	for pid, want := range map[int]bool{other.Process.Pid: true, os.Getpid(): false} {
		cfg := smallConfig(ShapePairs)
		cfg.ServerPID, cfg.Duration = pid, time.Second
		r, err := Run(t.Context(), cfg, benchrig.Direct{})
		if err != nil {
			t.Fatal(err)
		}
		if _, met := parsed(t, "cpu<1h")[0].Check(&r); r.Server.NoSocket != want || r.Server.IsServer() == want || met == want {
			t.Errorf("process %d: %+v, condition met %v", pid, r.Server, met)
		}
	}
}
