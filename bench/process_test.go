package bench

import (
	"net"
	"net/netip"
	"os"
	"os/exec"
	"runtime"
	"testing"
	"time"

	"github.com/prometheus/procfs"

	"github.com/ferryrelay/ferry/internal/benchrig"
)

func TestSystemUse(t *testing.T) {
	number := func(n float64) *float64 { return &n }
	a := systemSample{cpu: procfs.CPUStat{User: 0.1, Nice: 0.01, System: 0.05, Idle: 1, Iowait: 0.02, IRQ: 0.01, SoftIRQ: 0.03}}
	b := systemSample{cpu: procfs.CPUStat{User: 0.2, Nice: 0.02, System: 0.08, Idle: 1.5, Iowait: 0.04, IRQ: 0.02, SoftIRQ: 0.09, Steal: 0.01}}
	c := systemSample{udp: procfs.Udp{RcvbufErrors: number(5), NoPorts: number(0)}}
	d := systemSample{udp: procfs.Udp{RcvbufErrors: number(9), NoPorts: number(2), InErrors: number(3)}}
	want := system{
		User: 110 * time.Millisecond, Kernel: 30 * time.Millisecond, Idle: 520 * time.Millisecond,
		SoftIRQ: 70 * time.Millisecond, Steal: 10 * time.Millisecond, RcvbufErrors: 4, NoPorts: 2,
	}
	if got := systemUse(a, b, c, d); got != want {
		t.Errorf("%+v, want %+v", got, want)
	}
}

func TestProcessUse(t *testing.T) {
	type threads = map[int]procfs.ProcSchedstat
	a := processSample{at: 100}
	a.threads = threads{1: {RunningNanoseconds: 50, WaitingNanoseconds: 5}, 2: {RunningNanoseconds: 70}}
	b := processSample{at: 300}
	b.threads = threads{1: {RunningNanoseconds: 150, WaitingNanoseconds: 6}, 3: {RunningNanoseconds: 9}}
	a.stat.UTime, b.stat.UTime, b.stat.RSS = 1, 4, 2
	got := processUse(7, a, b, 10)
	want := process{
		PID: 7, Run: 109, Wait: 1, Wall: 200, User: 30 * time.Millisecond, Datagrams: 10, PerDatagram: 10.9,
		RSS: uint64(2 * os.Getpagesize()), Threads: 2,
	}
	if got != want {
		t.Errorf("%+v, want %+v", got, want)
	}
}

// TestBoundTo: generator and relay share a processor if the busiest thread of each may run on that one only.
func TestBoundTo(t *testing.T) {
	run := func(ns uint64, allowed ...uint64) (processSample, processSample) {
		a := processSample{threads: map[int]procfs.ProcSchedstat{7: {RunningNanoseconds: 1000}}}
		b := processSample{threads: map[int]procfs.ProcSchedstat{7: {RunningNanoseconds: 1001}, 8: {RunningNanoseconds: ns}},
			allowed: map[int][]uint64{7: {0, 1, 2}, 8: allowed}}
		return a, b
	}
	if cpu, bound := boundTo(run(50, 2)); !bound || cpu != 2 {
		t.Errorf("processor %d, %v", cpu, bound)
	}
	if _, bound := boundTo(run(50, 1, 2)); bound {
		t.Error("bound to two processors")
	}
	if _, bound := boundTo(run(0, 2)); bound {
		t.Error("bound by an idle thread")
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
	if len(m.ID) != 16 || m.Cores < 1 || m.Go == "" || m.OS == "" {
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
	t.Parallel()
	other := exec.Command("sleep", "60")
	if err := other.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = other.Process.Kill(); _ = other.Wait() }()
	for pid, want := range map[int]bool{other.Process.Pid: true, os.Getpid(): false} {
		cfg := smallConfig(shapePairs)
		cfg.ServerPID, cfg.Duration = pid, time.Second
		r := run(t, cfg, benchrig.Direct{})
		if _, met := parsed(t, "cpu<1h")[0].Check(&r); r.Server.NoSocket != want || r.Server.IsServer() == want || met == want {
			t.Errorf("process %d: %+v, condition met %v", pid, r.Server, met)
		}
	}
}
