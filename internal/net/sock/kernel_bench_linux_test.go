//go:build linux && !sockportable

package sock

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"strconv"
	"strings"
	"testing"

	"github.com/ferryrelay/ferry/internal/net/endpoint"
	"golang.org/x/sys/unix"
)

// The benchmarks of this file compare ways through the kernel. Each variant
// comes back in every round, so that one run interleaves them; compare with
//
//	go test -run '^$' -bench Kernel -benchtime 200ms ./internal/net/sock > new
//	benchstat -ignore /round -col /listen -filter '.name:KernelPktinfo' new
const (
	benchRounds = 6
	benchBatch  = 64
	benchBytes  = 190
)

func interleave(b *testing.B, key string, variants []string, run func(b *testing.B, variant string)) {
	for round := range benchRounds {
		for _, v := range variants {
			b.Run(fmt.Sprintf("round=%d/%s=%s", round, key, v), func(b *testing.B) { run(b, v) })
		}
	}
}

func reportPath(b *testing.B, receiving, sending int64) {
	b.ReportMetric(float64(receiving)/float64(b.N*benchBatch), "recv-ns/datagram")
	b.ReportMetric(float64(sending)/float64(b.N*benchBatch), "send-ns/datagram")
}

// set switches a socket option; a kernel without it cannot run the benchmark.
func set(b *testing.B, fd, level, option, value int) {
	b.Helper()
	if err := unix.SetsockoptInt(fd, level, option, value); err != nil {
		b.Skipf("this kernel has no option %d of level %d: %v", option, level, err)
	}
}

// BenchmarkKernelGRO: receiving with UDP_GRO and without, datagrams that a sender merges
// and datagrams that it does not. On loopback a merged message passes the stack whole
// with GRO, and is cut in the sender's call without.
func BenchmarkKernelGRO(b *testing.B) {
	variants := []string{"off/sender=alone", "on/sender=alone", "off/sender=merged", "on/sender=merged"}
	interleave(b, "gro", variants, func(b *testing.B, v string) {
		gro, merged := strings.HasPrefix(v, "on/"), strings.HasSuffix(v, "=merged")
		g := listen(b, Config{Addr: netip.MustParseAddrPort("127.0.0.1:0"), DisableGSO: !merged}, 1)
		if merged && !g.Capabilities().GSO {
			b.Skip("this kernel cannot merge datagrams, or must not")
		}
		s := newGROSocket(b, gro)
		c := g.Conns()[0]
		tx := c.NewSendBatch(benchBatch)
		pkt := make([]byte, benchBytes)
		var receiving, sending int64
		for b.Loop() {
			for range benchBatch {
				tx.Add(s.addr, pkt)
			}
			start := Now()
			c.Send(tx)
			sent := Now()
			for got := 0; got < benchBatch; {
				got += s.recv(b)
			}
			sending += sent - start
			receiving += Now() - sent
		}
		reportPath(b, receiving, sending)
	})
}

// BenchmarkKernelMerge: a batch to one destination and to more of them, alone and
// merged, delivered into a socket that does not take merged datagrams whole:
// loopback cuts them in the sender's call, which BenchmarkKernelGRO shows too.
// Only sending is timed.
func BenchmarkKernelMerge(b *testing.B) {
	var variants []string
	for _, to := range []string{"1", "4", "8", "16", "64"} {
		variants = append(variants, "alone/to="+to, "merged/to="+to)
	}
	interleave(b, "send", variants, func(b *testing.B, v string) {
		how, destinations, _ := strings.Cut(v, "/to=")
		n, err := strconv.Atoi(destinations)
		if err != nil {
			b.Fatal(err)
		}
		g := listen(b, Config{Addr: netip.MustParseAddrPort("127.0.0.1:0"), DisableGSO: how == "alone"}, 1)
		if how == "merged" && !g.Capabilities().GSO {
			b.Skip("this kernel cannot merge datagrams, or must not")
		}
		to := listen(b, Config{Addr: netip.MustParseAddrPort("0.0.0.0:0"), DisableGSO: true}, 1)
		c, receiver := g.Conns()[0], to.Conns()[0]
		tx, rx := c.NewSendBatch(benchBatch), receiver.NewRecvBatch()
		pkt := make([]byte, benchBytes)
		var sending int64
		for b.Loop() {
			for i := range benchBatch {
				tx.Add(endpoint.UDP(netip.AddrPortFrom(netip.AddrFrom4([4]byte{127, 0, 1, byte(1 + i%n)}), to.Addr().Port()), 0, 0), pkt)
			}
			start := Now()
			c.Send(tx)
			sending += Now() - start
			drain(b, receiver, rx, nil, benchBatch)
		}
		b.ReportMetric(float64(sending)/float64(b.N*benchBatch), "send-ns/datagram")
	})
}

// groSocket is a receiver with slots that UDP_GRO can fill, or with small ones.
type groSocket struct {
	fd    int
	addr  endpoint.Endpoint
	hdrs  []mmsghdr
	iovs  []unix.Iovec
	ctrls []byte
	step  int
}

func newGROSocket(b *testing.B, gro bool) *groSocket {
	b.Helper()
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { _ = unix.Close(fd) })
	if err := unix.Bind(fd, &unix.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}}); err != nil {
		b.Fatal(err)
	}
	setBuffer(fd, unix.SO_RCVBUFFORCE, unix.SO_RCVBUF, DefaultBuffer)
	sa, err := unix.Getsockname(fd)
	if err != nil {
		b.Fatal(err)
	}
	slots, room := benchBatch, SlotSize
	if gro {
		set(b, fd, unix.IPPROTO_UDP, unix.UDP_GRO, 1)
		room = 1 << 16
	}
	port := uint16(sa.(*unix.SockaddrInet4).Port)
	s := &groSocket{
		fd:   fd,
		addr: endpoint.UDP(netip.AddrPortFrom(netip.AddrFrom4([4]byte{127, 0, 0, 1}), port), 0, 0),
		hdrs: make([]mmsghdr, slots), iovs: make([]unix.Iovec, slots), step: unix.CmsgSpace(4),
	}
	s.ctrls = make([]byte, slots*s.step)
	buf := make([]byte, slots*room)
	for i := range s.hdrs {
		s.iovs[i].Base = &buf[i*room]
		s.iovs[i].SetLen(room)
		s.hdrs[i].hdr.Iov = &s.iovs[i]
		s.hdrs[i].hdr.SetIovlen(1)
		s.hdrs[i].hdr.Control = &s.ctrls[i*s.step]
		s.hdrs[i].hdr.SetControllen(s.step)
	}
	return s
}

// recv returns how many datagrams came, cut or to be cut.
func (s *groSocket) recv(b *testing.B) int {
	n, errno := recvmmsg(s.fd, s.hdrs, unix.MSG_DONTWAIT)
	if errno != 0 {
		b.Fatalf("recvmmsg: %v: a datagram was lost", errno)
	}
	sum := 0
	for i := range s.hdrs[:n] {
		h := &s.hdrs[i]
		segment := int(h.len)
		ctrl := s.ctrls[i*s.step:][:s.step]
		if h.hdr.Controllen > 0 && binary.NativeEndian.Uint32(ctrl[cmsgTypeAt:]) == unix.UDP_GRO {
			segment = int(binary.NativeEndian.Uint32(ctrl[unix.CmsgLen(0):]))
		}
		sum += (int(h.len) + segment - 1) / segment
		h.hdr.SetControllen(s.step)
	}
	return sum
}
