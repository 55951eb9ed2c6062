//go:build linux && !sockportable

package sock

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"sync"
	"testing"

	"github.com/ferryrelay/ferry/internal/net/endpoint"
	"golang.org/x/net/bpf"
	"golang.org/x/sys/unix"
)

// allowedCPUs returns the CPUs on which this process may run, of which the test needs n.
func allowedCPUs(t testing.TB, n int) (cpus []int) {
	t.Helper()
	var set unix.CPUSet
	if err := unix.SchedGetaffinity(0, &set); err != nil {
		t.Fatal(err)
	}
	for cpu := range maxCPU {
		if set.IsSet(cpu) {
			cpus = append(cpus, cpu)
		}
	}
	if len(cpus) < n {
		t.Skipf("NOT TESTED: steering needs %d CPUs, and this process may run on %v", n, cpus)
	}
	return cpus[:n]
}

// sendFrom sends datagrams from several source ports on one CPU. On loopback the kernel
// handles a datagram on the CPU of its sender.
func sendFrom(t *testing.T, cpu, ports int, to netip.AddrPort) {
	done := make(chan error, 1)
	go func() {
		done <- func() error {
			if err := PinThread(cpu); err != nil {
				return err
			}
			for range ports {
				c, err := net.DialUDP("udp", nil, net.UDPAddrFromAddrPort(to))
				if err != nil {
					return err
				}
				_, err = c.Write([]byte{byte(cpu)})
				if err = errors.Join(err, c.Close()); err != nil {
					return err
				}
			}
			return nil
		}()
	}()
	if err := <-done; err != nil {
		t.Fatal(err)
	}
}

// counts returns the datagrams by socket and by the CPU of the sender, of want in all.
func counts(t *testing.T, g *Group, want int) []map[int]int {
	t.Helper()
	all := make([]map[int]int, len(g.Conns()))
	var arrived, readers sync.WaitGroup
	arrived.Add(want)
	for i, c := range g.Conns() {
		all[i] = map[int]int{}
		readers.Go(func() {
			rx := c.NewRecvBatch()
			for {
				n, err := c.Recv(rx)
				if err != nil {
					return
				}
				for k := range n {
					_, pkt, _ := rx.At(k)
					all[i][int(pkt[0])]++
					arrived.Done()
				}
			}
		})
	}
	waitFor(t, &arrived, "all datagrams")
	if err := g.Close(); err != nil {
		t.Fatal(err)
	}
	readers.Wait()
	return all
}

const steerPorts = 64

// TestSteerByCPU: each socket receives the datagrams of its CPU, whatever the order of
// the CPUs.
func TestSteerByCPU(t *testing.T) {
	cpus := allowedCPUs(t, 2)
	for _, order := range [][]int{{cpus[0], cpus[1]}, {cpus[1], cpus[0]}} {
		g := listen(t, Config{Addr: netip.MustParseAddrPort("127.0.0.1:0")}, 2)
		if err := g.SteerByCPU(order); err != nil {
			t.Fatal(err)
		}
		for _, cpu := range cpus {
			sendFrom(t, cpu, steerPorts, g.Addr())
		}
		for i, got := range counts(t, g, 2*steerPorts) {
			if len(got) != 1 || got[order[i]] != steerPorts {
				t.Errorf("CPUs %v: socket %d received %v by CPU, want %d of CPU %d", order, i, got, steerPorts, order[i])
			}
		}
	}
}

func TestSteerOthersByHash(t *testing.T) {
	cpus := allowedCPUs(t, 2)
	g := listen(t, Config{Addr: netip.MustParseAddrPort("127.0.0.1:0")}, 2)
	if err := g.SteerByCPU([]int{cpus[0], 8191}); err != nil {
		t.Fatal(err)
	}
	sendFrom(t, cpus[0], steerPorts, g.Addr())
	sendFrom(t, cpus[1], steerPorts, g.Addr())
	got := counts(t, g, 2*steerPorts)
	if got[0][cpus[0]] != steerPorts || got[0][cpus[1]] == 0 || got[1][cpus[1]] == 0 {
		t.Errorf("by socket and CPU: %v", got)
	}
}

func TestSteerRefused(t *testing.T) {
	cpu := allowedCPUs(t, 1)[0]
	g := listen(t, Config{Addr: netip.MustParseAddrPort("127.0.0.1:0")}, 2)
	if err := unix.SetsockoptInt(g.conns[0].sock.fd, unix.SOL_SOCKET, unix.SO_LOCK_FILTER, 1); err != nil {
		t.Fatal(err)
	}
	if err := g.SteerByCPU([]int{cpu, cpu + 1}); !errors.Is(err, unix.EPERM) {
		t.Fatalf("a locked group: %v", err)
	}
	sendFrom(t, cpu, steerPorts, g.Addr())
	for i, got := range counts(t, g, steerPorts) {
		if len(got) == 0 {
			t.Errorf("socket %d received nothing", i)
		}
	}
}

func TestSteerErrors(t *testing.T) {
	g := listen(t, Config{Addr: netip.MustParseAddrPort("127.0.0.1:0")}, 2)
	for _, cpus := range [][]int{nil, {0}, {0, 1, 2}, {1, 1}, {-1, 0}} {
		if err := g.SteerByCPU(cpus); !errors.Is(err, ErrConfig) {
			t.Errorf("%v: %v", cpus, err)
		}
	}
	alone := listen(t, Config{Addr: netip.MustParseAddrPort("127.0.0.1:0")}, 1)
	if err := alone.SteerByCPU([]int{0}); !errors.Is(err, unix.EINVAL) {
		t.Errorf("one socket, which is in no group: %v", err)
	}
}

// TestCPUProgram interprets the program with the CPU in the first four bytes of a datagram.
func TestCPUProgram(t *testing.T) {
	for _, n := range []int{1, 2, 3, 7, 64, 255, MaxSockets} {
		cpus := make([]int, n)
		for i := range cpus {
			cpus[i] = (i*37)%n*3 + 5 // every third CPU from 5 on, out of order
			if n%37 == 0 {
				cpus[i] = i*3 + 5
			}
		}
		program := cpuProgram(cpus)
		if want := 1 + 3*n + 2*(n-1); len(program) != want {
			t.Errorf("%d sockets: %d instructions, want %d", n, len(program), want)
		}
		if _, err := bpf.Assemble(program); err != nil {
			t.Fatal(err)
		}
		program[0] = bpf.LoadAbsolute{Off: 0, Size: 4}
		vm, err := bpf.NewVM(program)
		if err != nil {
			t.Fatal(err)
		}
		socket := map[int]uint32{}
		for i, cpu := range cpus {
			socket[cpu] = uint32(i)
		}
		for cpu := range 3*n + 20 {
			want, ok := socket[cpu]
			if !ok {
				want = byHash
			}
			got, err := vm.Run(binary.BigEndian.AppendUint32(nil, uint32(cpu)))
			if err != nil || uint32(got) != want {
				t.Fatalf("%d sockets, CPU %d: %d, %v; want %d", n, cpu, uint32(got), err, want)
			}
		}
	}
}

// BenchmarkKernelSteering times the sending of a batch over loopback, where the sender
// pays for the selection of the socket: by the hash, by the program, and by
// SO_INCOMING_CPU, with 64 sockets of which the last or the first belongs to this CPU.
func BenchmarkKernelSteering(b *testing.B) {
	cpu := allowedCPUs(b, 1)[0]
	variants := []string{"hash", "program", "incoming"}
	interleave(b, "steering", variants, func(b *testing.B, variant string) {
		client := listen(b, Config{Addr: netip.MustParseAddrPort("127.0.0.1:0"), DisableGSO: true}, 1).Conns()[0]
		g := listen(b, Config{Addr: netip.MustParseAddrPort("127.0.0.1:0"), ReadBuffer: 4096}, 64)
		cpus := make([]int, 64)
		for i := range cpus {
			cpus[i] = cpu + (i+32)%64
		}
		switch variant {
		case "program":
			if err := g.SteerByCPU(cpus); err != nil {
				b.Fatal(err)
			}
		case "incoming":
			for i, c := range g.Conns() {
				if err := unix.SetsockoptInt(c.sock.fd, unix.SOL_SOCKET, unix.SO_INCOMING_CPU, cpus[i]); err != nil {
					b.Fatal(err)
				}
			}
		}
		tx := client.NewSendBatch(benchBatch)
		to := endpoint.UDP(g.Addr(), 0, 0)
		pkt := make([]byte, benchBytes)
		done := make(chan error)
		go func() { // Its thread ends with it.
			done <- func() error {
				if err := PinThread(cpu); err != nil {
					return err
				}
				start := Now()
				for range b.N {
					for range benchBatch {
						tx.Add(to, pkt)
					}
					if r := client.Send(tx); r.Sent != benchBatch {
						return fmt.Errorf("sent %+v", r)
					}
				}
				b.ReportMetric(float64(Now()-start)/float64(b.N*benchBatch), "ns/datagram")
				return nil
			}()
		}()
		if err := <-done; err != nil {
			b.Fatal(err)
		}
	})
}
