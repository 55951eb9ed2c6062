//go:build linux && !sockportable

package engine

import (
	"bytes"
	"errors"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/ferryrelay/ferry/internal/net/sock"
	"github.com/ferryrelay/ferry/internal/test/testkit"
	"github.com/ferryrelay/ferry/proto"
)

func twoCPUs(t *testing.T) []int {
	t.Helper()
	cpus := []int{}
	for cpu := range 1024 {
		done := make(chan error)
		go func() { done <- sock.PinThread(cpu) }() // The thread ends with the goroutine.
		if <-done == nil {
			cpus = append(cpus, cpu)
		}
		if len(cpus) == 2 {
			return cpus
		}
	}
	t.Skip("NOT TESTED: steering by CPU needs two CPUs")
	return nil
}

// pingFrom sends datagrams from several source ports on one CPU. On loopback the kernel
// handles a datagram on the CPU of its sender.
func pingFrom(t *testing.T, cpu, ports int, to netip.AddrPort) {
	t.Helper()
	done := make(chan error)
	go func() {
		err := sock.PinThread(cpu)
		for range ports {
			c, dialed := net.DialUDP("udp", nil, net.UDPAddrFromAddrPort(to))
			if err = errors.Join(err, dialed); err != nil {
				break
			}
			_, err = c.Write(proto.Ping{}.Append(nil))
			err = errors.Join(err, c.Close())
		}
		done <- err
	}()
	if err := <-done; err != nil {
		t.Fatal(err)
	}
}

// pinnedThreads returns how many threads of this process may run on that CPU only. Go
// parks the main thread, which must not end, instead of ending it.
func pinnedThreads(t *testing.T, cpu int, main bool) (n int) {
	t.Helper()
	all, err := filepath.Glob("/proc/self/task/*/status")
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range all {
		text, _ := os.ReadFile(name) // A thread may have ended.
		if !main && strings.Contains(string(text), "\nPid:\t"+strconv.Itoa(os.Getpid())+"\n") {
			continue
		}
		if strings.Contains(string(text), "Cpus_allowed_list:\t"+strconv.Itoa(cpu)+"\n") {
			n++
		}
	}
	return n
}

func TestPinnedWorkers(t *testing.T) {
	cpus := twoCPUs(t)
	cpus[0], cpus[1] = cpus[1], cpus[0]
	s, err := New(Config{Sockets: Sockets{WorkerCPUs: cpus, SteerByCPU: true}, AllowPrivateSources: true}, testIdentity(t))
	if err != nil {
		t.Fatal(err)
	}
	stop := runServer(t, s)
	const first, second = 40, 70
	pingFrom(t, cpus[0], first, s.Addr())
	pingFrom(t, cpus[1], second, s.Addr())
	testkit.Eventually(t, "all datagrams are counted", func() bool { return s.Stats().Received == first+second })
	if w := s.Stats().Private.Workers; len(w) != 2 || w[0].Received != first || w[1].Received != second {
		t.Errorf("by worker: %+v, want %d and %d", w, first, second)
	}
	for _, cpu := range cpus {
		if pinnedThreads(t, cpu, true) == 0 {
			t.Errorf("no thread is pinned to CPU %d", cpu)
		}
	}
	stop()
	for _, cpu := range cpus {
		testkit.Eventually(t, "a pinned thread ends with its worker", func() bool { return pinnedThreads(t, cpu, false) == 0 })
	}
}

type refusing struct{ calls int }

func (r *refusing) SteerByCPU([]int) error { r.calls++; return errors.New("operation not permitted") }

// TestSteeringRefused: the relay goes on with the hash, and says so.
func TestSteeringRefused(t *testing.T) {
	var out bytes.Buffer
	s := &Server{log: slog.New(slog.NewTextHandler(&out, nil)), cfg: Config{Sockets: Sockets{WorkerCPUs: []int{0, 1}, SteerByCPU: true}}}
	group := new(refusing)
	s.steer(netip.MustParseAddrPort("192.0.2.1:7777"), group)
	if group.calls != 1 || !strings.Contains(out.String(), `address=192.0.2.1:7777 error="operation not permitted"`) {
		t.Errorf("%d calls; log %q", group.calls, out.String())
	}
	for _, cfg := range []Config{{Sockets: Sockets{WorkerCPUs: []int{0, 1}}}, {Sockets: Sockets{WorkerCPUs: []int{0}, SteerByCPU: true}},
		{Sockets: Sockets{SteerByCPU: true}}} {
		s.cfg = cfg
		if s.steer(netip.AddrPort{}, group); group.calls != 1 {
			t.Errorf("%+v: steered", cfg)
		}
	}
}
