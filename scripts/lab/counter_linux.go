package lab

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"sync"

	"golang.org/x/sys/unix"
)

// Received counts what a Counter received from the relay.
type Received struct {
	Datagrams int
	Bytes     int         // of UDP payload
	Largest   int         // payload in bytes
	Types     map[int]int // datagrams by type of message; -1: no message
	Foreign   int         // datagrams from another address or port than the relay's
}

// Counter receives every UDP datagram that arrives in a namespace for an address
// of a range, with or without a socket there.
type Counter struct {
	fd   int
	done sync.WaitGroup

	mu       sync.Mutex // guards heard
	received Received
	stop     bool
}

// NewCounter opens a raw socket in a namespace and counts until Close. The
// range is a multiple of the mask; an invalid one means every address.
func NewCounter(ns Namespace, to netip.Prefix) (*Counter, error) {
	c := &Counter{fd: -1, received: Received{Types: map[int]int{}}}
	err := ns.Do(func() (err error) {
		c.fd, err = unix.Socket(unix.AF_INET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.IPPROTO_UDP)
		if err != nil {
			return err
		}
		return c.prepare(to)
	})
	if err != nil {
		if c.fd >= 0 {
			unix.Close(c.fd)
		}
		return nil, fmt.Errorf("lab: counter: %w", err)
	}
	c.done.Go(c.run)
	return c, nil
}

// prepare filters by destination, so that the traffic of players is not copied
// here, and bounds waiting.
func (c *Counter) prepare(to netip.Prefix) error {
	if to.IsValid() {
		want, mask := to.Masked().Addr().As4(), ^uint32(0)<<(32-to.Bits())
		filter := []unix.SockFilter{
			{Code: unix.BPF_LD | unix.BPF_W | unix.BPF_ABS, K: 16},
			{Code: unix.BPF_ALU | unix.BPF_AND | unix.BPF_K, K: mask},
			{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, K: binary.BigEndian.Uint32(want[:]), Jf: 1},
			{Code: unix.BPF_RET | unix.BPF_K, K: 1<<16 - 1},
			{Code: unix.BPF_RET | unix.BPF_K},
		}
		prog := unix.SockFprog{Len: uint16(len(filter)), Filter: &filter[0]}
		if err := unix.SetsockoptSockFprog(c.fd, unix.SOL_SOCKET, unix.SO_ATTACH_FILTER, &prog); err != nil {
			return err
		}
	}
	if err := unix.SetsockoptInt(c.fd, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, 8<<20); err != nil {
		return err
	}
	return unix.SetsockoptTimeval(c.fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &unix.Timeval{Usec: 50_000})
}

func (c *Counter) run() {
	buf := make([]byte, 2048)
	for {
		n, _, err := unix.Recvfrom(c.fd, buf, 0)
		c.mu.Lock()
		stop := c.stop
		if err == nil && n >= rawOverhead {
			c.received.add(buf[:n])
		}
		c.mu.Unlock()
		if stop {
			unix.Close(c.fd)
			return
		}
	}
}

// add counts one IPv4 packet.
func (h *Received) add(packet []byte) {
	header := int(packet[0]&15) * 4
	if len(packet) < header+udpHeaderLen {
		return
	}
	from := netip.AddrPortFrom(netip.AddrFrom4([4]byte(packet[12:16])), binary.BigEndian.Uint16(packet[header:]))
	if from != RelayAddr {
		h.Foreign++
		return
	}
	payload := packet[header+udpHeaderLen:]
	h.Datagrams++
	h.Bytes += len(payload)
	h.Largest = max(h.Largest, len(payload))
	kind := -1
	if len(payload) >= 4 && payload[0] == 0xDA && payload[1] == 0x72 {
		kind = int(payload[3])
	}
	h.Types[kind]++
}

// Received returns the counts so far.
func (c *Counter) Received() Received {
	c.mu.Lock()
	defer c.mu.Unlock()
	h := c.received
	h.Types = make(map[int]int, len(c.received.Types))
	for k, n := range c.received.Types {
		h.Types[k] = n
	}
	return h
}

// Close ends counting. It is called once.
func (c *Counter) Close() {
	c.mu.Lock()
	c.stop = true
	c.mu.Unlock()
	c.done.Wait()
}
