//go:build linux && amd64 && !sockportable

package program

import (
	"encoding/binary"
	"net/netip"
	"sync/atomic"
	"time"

	"github.com/ferryrelay/ferry/engine/internal/table"
	"github.com/ferryrelay/ferry/internal/net/endpoint"
)

// The types of relay.c, in memory that both share.

// localAddr is an address and port of the relay, by listener and local of an endpoint.
type localAddr struct {
	hi, lo atomic.Uint64
	rest   atomic.Uint64 // interface, port << 32, kind << 48; 0: none
	// hwaddr is the hardware address of the interface, as in a frame.
	hwaddr atomic.Uint64
}

type egress struct {
	first atomic.Uint64 // interface, MTU << 32, two bytes of the hardware address << 48; 0: none
	rest  atomic.Uint64 // the other four bytes, native << 32
}

type quota struct {
	byteCost     atomic.Uint64
	datagramCost atomic.Uint32
	_            uint32
}

type settings struct {
	on         atomic.Uint32
	heardSince atomic.Uint32 // Tick, doubled, see Program.Expire
	testMillis atomic.Uint64
	quotas     [4]quota // by table.Role
}

// Reason says why a datagram that may be a RELAY was left to a worker.
type Reason uint8

// The reasons, in the order in which the program checks them, but for the last two.
const (
	Unknown   Reason = iota // the sender is not known at its endpoint
	Unlinked                // no link to the receiver
	Peer                    // the receiver has no endpoint, or one of another family, DTLS or WebSocket
	NoNextHop               // the next hop to the receiver, or the sender's, is not known
	Unseen                  // no RELAY of the receiver came as its socket gets it: it has sent none, or NAT is in between
	Probe                   // Program.Probe asked for it
	Size                    // it is larger than a message, or than the MTU
	Stale                   // no socket has heard the sender lately, see Program.Expire
	Path                    // the path to one of both is not validated
	Quota                   // the sender has used up its quota
	Frame                   // fragments, options, no or a wrong header checksum, a length that is not the frame's
	Merged                  // GRO made one of several, or a sender on this machine
	Busy                    // control changes one of the records at the same time
	NumReasons
)

var reasonNames = [NumReasons]string{
	Unknown: "unknown", Unlinked: "unlinked", Peer: "peer", NoNextHop: "no_next_hop", Unseen: "unseen", Merged: "merged", Probe: "probe",
	Stale: "stale", Path: "unvalidated", Quota: "rate", Size: "size", Frame: "frame", Busy: "busy",
}

// String returns the reason as metrics name it, such as "no_way".
func (r Reason) String() string { return reasonNames[r] }

// counters belong to one processor.
type counters struct {
	datagrams, bytes atomic.Uint64
	passed           [NumReasons]atomic.Uint64
	_                uint64 // identification of the last packet of IPv4
}

type tally struct{ datagrams, bytes atomic.Uint64 }

// Constants of relay.c.
const (
	listenerLocals = 2048
	usageRows      = 1024
	MaxEgresses    = 256
	maxNextHops    = 1 << 15
	nextHopProbe   = 1 << 63
)

func (d *localAddr) set(addr netip.AddrPort, ifindex int, mac [6]byte) {
	e := endpoint.UDP(addr, 0, 0)
	d.rest.Store(0)
	d.hwaddr.Store(nextHopWord(mac, 0))
	d.hi.Store(e.Hi)
	d.lo.Store(e.Lo)
	d.rest.Store(uint64(uint32(ifindex)) | uint64(addr.Port())<<32 | uint64(e.Kind())<<48)
}

func (p *egress) set(ifindex, mtu int, mac [6]byte, native bool) {
	p.first.Store(0)
	rest := uint64(binary.LittleEndian.Uint32(mac[2:]))
	if native {
		rest |= 1 << 32
	}
	p.rest.Store(rest)
	p.first.Store(uint64(uint32(ifindex)) | uint64(uint16(min(mtu, 1<<16-1)))<<32 | uint64(mac[0])<<48 | uint64(mac[1])<<56)
}

// nextHopWord returns the word of a next hop: by which egress, to which hardware address.
func nextHopWord(mac [6]byte, egress int) uint64 {
	return uint64(binary.LittleEndian.Uint32(mac[:])) | uint64(binary.LittleEndian.Uint16(mac[4:]))<<32 | uint64(egress)<<48
}

// idLines: half of the cells stay empty.
func idLines(allocations int) int {
	n := 1
	for n*4 < allocations {
		n *= 2
	}
	return n
}

func slabs(allocations int) int { return (allocations + table.SlabRecords - 1) / table.SlabRecords }

// SetOn makes the program relay, or leave everything to workers.
func (p *Program) SetOn(on bool) {
	var word uint32
	if on {
		word = 1
	}
	p.settings.on.Store(word)
}

// On reports whether the program relays.
func (p *Program) On() bool { return p.settings.on.Load() != 0 }

// settle is how long a datagram that has passed the kernel's filters may be on its way to a worker.
const settle = 50 * time.Millisecond

// Expire makes the program leave the datagrams of each endpoint to workers until one of them hears
// of it, by a datagram that came after now on the engine's clock and so has passed the kernel's
// filters of now. It returns how long it does the same for later changes of filters, and leaves all
// datagrams to workers 50 ms longer. Calls are one after another.
func (p *Program) Expire(now time.Duration) time.Duration {
	const length = table.TickMillis * time.Millisecond
	since := (now+settle)/length + 1
	p.settings.heardSince.Store(uint32(since) << 1)
	return since*length - settle - now
}

// SetQuota sets the quota of a role.
func (p *Program) SetQuota(role table.Role, q table.Quota) {
	to := &p.settings.quotas[role&3]
	datagram, bytes := q.Costs()
	to.datagramCost.Store(datagram)
	to.byteCost.Store(bytes)
}

// SetLocalAddr tells at which address and port of the relay the datagrams for a listener and
// local arrive, on which interface with which hardware address; 0: any, which a native
// program leaves to workers.
func (p *Program) SetLocalAddr(listener uint8, local uint16, addr netip.AddrPort, ifindex int, mac [6]byte) {
	if i := int(listener)*listenerLocals + int(local); local < listenerLocals && i < len(p.localAddrs) {
		p.localAddrs[i].set(addr, ifindex, mac)
	}
}

// SetEgress sets egress i to an interface with that MTU and hardware address. A native program
// sends by another interface than the one on which a datagram came only if served, which says
// that it is attached there too.
func (p *Program) SetEgress(i, ifindex, mtu int, mac [6]byte, served bool) {
	p.egresses[i].set(ifindex, mtu, mac, served)
}

// SetNextHop makes a next hop lead to a hardware address by an egress; 0: the program sends
// nothing there.
func (p *Program) SetNextHop(nextHop table.NextHop, mac [6]byte, egress int) {
	p.nextHops[nextHop].Store(nextHopWord(mac, egress))
}

// Probe makes the program leave the next datagram that would go to a next hop to a worker, whose
// socket makes the kernel use the neighbour, and ask for its address again if need be.
func (p *Program) Probe(nextHop table.NextHop) {
	if word := p.nextHops[nextHop].Load(); word != 0 {
		p.nextHops[nextHop].CompareAndSwap(word, word|nextHopProbe)
	}
}

// SetTestTime sets the time of a program with a test clock, in milliseconds of the
// engine's clock.
func (p *Program) SetTestTime(millis int64) { p.settings.testMillis.Store(uint64(millis)) }

// Counts are what the program did on all processors.
type Counts struct {
	Datagrams, Bytes uint64             // relayed
	Passed           [NumReasons]uint64 // RELAYs that were left to workers
}

// Counts returns the sums over all processors.
func (p *Program) Counts() (sum Counts) {
	for i := range p.counters {
		c := &p.counters[i]
		sum.Datagrams += c.datagrams.Load()
		sum.Bytes += c.bytes.Load()
		for r := range c.passed {
			sum.Passed[r] += c.passed[r].Load()
		}
	}
	return sum
}

// Traffic returns what was relayed for a counter index.
func (p *Program) Traffic(index uint32) (datagrams, bytes uint64) {
	for i := int(index); i < len(p.tallies); i += usageRows {
		datagrams += p.tallies[i].datagrams.Load()
		bytes += p.tallies[i].bytes.Load()
	}
	return datagrams, bytes
}
