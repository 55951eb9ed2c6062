//go:build linux && amd64 && !sockportable

package engine

import (
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"os"
	"strconv"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ferryrelay/ferry/engine/internal/driver"
	"github.com/ferryrelay/ferry/engine/internal/program"
	"github.com/ferryrelay/ferry/engine/internal/table"
	"github.com/ferryrelay/ferry/internal/net/endpoint"
	"github.com/ferryrelay/ferry/internal/net/sock"
	"github.com/ferryrelay/ferry/internal/privateapi"
	"github.com/ferryrelay/ferry/internal/test/testkit"
	"github.com/ferryrelay/ferry/proto"
)

func loadProgram(t testing.TB, p program.Parameters) *program.Program {
	t.Helper()
	testkit.NeedRoot(t, "loading a program into the kernel")
	loaded, err := program.Load(p)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(loaded.Close)
	return loaded
}

// loopback is the interface on which the kernel runs tests of programs.
const loopback = 1

// fastLocalAddrs are the addresses of the relay by listener and local.
var fastLocalAddrs = map[[2]int]netip.AddrPort{
	{0, 0}: netip.MustParseAddrPort("192.0.2.1:7777"),
	{1, 0}: netip.MustParseAddrPort("[2001:db8::1]:7777"),
	{2, 1}: netip.MustParseAddrPort("198.51.100.1:7778"),
	{2, 2}: netip.MustParseAddrPort("198.51.100.2:7778"),
}

// localInterface returns the interface of the address with that local; 0 is any.
func localInterface(local int) int {
	if local == 2 {
		return 0
	}
	return loopback
}

type fastWorld struct {
	t       testing.TB
	rand    *rand.Rand
	program *program.Program
	rig     *rig
	w       *worker
	sent    []sending
	all     []table.Handle
	v6      bool   // most endpoints are of IPv6
	native  bool   // it is the program for drivers
	before  []byte // memory before the datagram
	after   []byte // memory after the program
	since   int64  // ms: what workers heard before does not count
	relayed map[bool]int
	passed  map[string]int
}

// fastMTUs are the MTUs of the interfaces by which frames leave, by port; 0: none.
var fastMTUs = []int{0, 1500, 576, 1500, 1280, 1500, 1500}

func fastMAC(i int) [6]byte { return [6]byte{2, 0, 0xfa, 0x57, byte(i >> 8), byte(i)} }

func newFastWorld(t testing.TB, seed uint64, native bool) *fastWorld {
	f := &fastWorld{t: t, native: native, rand: rand.New(rand.NewPCG(seed, 17)), rig: newRig(t, Config{MaxAllocations: 100})}
	f.program = loadProgram(t, program.Parameters{
		Allocations: 100, Listeners: 3, MaxMessage: proto.RelayOverhead + f.rig.shared.rules.maxContent, Native: native, TestClock: true,
	})
	f.w = f.rig.workers[0]
	f.w.out.deliver = func(queue []sessionDatagram) sock.SendResult {
		for _, out := range queue {
			f.sent = append(f.sent, sending{out.to, bytes.Clone(out.pkt)})
		}
		return sock.SendResult{Sent: len(queue)}
	}
	for at, addr := range fastLocalAddrs {
		f.program.SetLocalAddr(uint8(at[0]), uint16(at[1]), addr, localInterface(at[1]), [6]byte{})
	}
	for i, mtu := range fastMTUs {
		if mtu != 0 {
			f.program.SetEgress(i, loopback, mtu, fastMAC(1000+i), true)
		}
	}
	for nextHop := 1; nextHop < 20; nextHop++ {
		f.program.SetNextHop(table.NextHop(nextHop), fastMAC(nextHop), nextHop%len(fastMTUs))
	}
	f.program.SetOn(true)
	f.relayed, f.passed = map[bool]int{}, map[string]int{}
	return f
}

func (f *fastWorld) build() {
	clear(f.program.Records())
	m := f.program.Memory()
	for i := range m.IDs {
		for j := range m.IDs[i] {
			m.IDs[i][j].Store(0)
		}
	}
	f.rig.shared.table = table.NewTableIn(m, 100)
	f.all, f.v6 = f.all[:0], f.rand.IntN(3) == 0
	hosts := []table.Handle{}
	f.rig.shared.limits.Store(&limitRates{unvalidatedRatio: f.rand.IntN(3)})
	limits := *f.rig.shared.limits.Load()
	for role := table.RoleHost; role <= table.RoleJoiner; role++ {
		if f.rand.IntN(2) == 0 {
			limits.quotas[role] = table.NewQuota(f.rand.IntN(300), f.rand.IntN(200_000))
			if f.rand.IntN(3) == 0 { // so that it is used up
				limits.quotas[role] = table.NewQuota(1+f.rand.IntN(4), 100+f.rand.IntN(2000))
			}
		}
		f.program.SetQuota(role, limits.quotas[role])
	}
	f.rig.shared.limits.Store(&limits)
	for i := range 24 {
		spec := table.Spec{ID: proto.AllocationID{byte(i), byte(f.rand.Uint32()), 3}, Role: table.RoleHost, MaxConnections: 100,
			CounterIndex: uint32(i)}
		if i >= 6 {
			spec.Role = table.RoleJoiner
		}
		h, err := f.rig.shared.table.Reserve(spec, tick(f.rig.now))
		if err != nil {
			f.t.Fatal(err)
		}
		f.all = append(f.all, h)
		if i < 6 {
			hosts = append(hosts, h)
		} else if f.rand.IntN(10) > 0 {
			f.rig.shared.table.Link(h, hosts[f.rand.IntN(len(hosts))])
		}
		f.move(h)
	}
}

func (f *fastWorld) replace(i int) {
	tab := f.rig.shared.table
	e, ok := tab.End(f.all[i])
	if !ok {
		f.t.Fatal("an allocation has ended")
	}
	tab.Recycle(f.all[i])
	spec := table.Spec{ID: e.ID, Role: e.Role, MaxConnections: 100, CounterIndex: uint32(i)}
	if f.rand.IntN(2) == 0 {
		spec.ID[5]++
	}
	h, err := tab.Reserve(spec, tick(f.rig.now))
	if err != nil {
		f.t.Fatal(err)
	}
	if f.all[i] = h; e.Role == table.RoleJoiner && f.rand.IntN(2) == 0 {
		tab.Link(h, f.all[f.rand.IntN(6)])
	}
	f.move(h)
}

func (f *fastWorld) move(h table.Handle) {
	tab := f.rig.shared.table
	if ep := f.endpoint(); !ep.IsZero() {
		tab.Bind(h, ep)
	}
	switch f.rand.IntN(16) {
	case 0:
		tab.BeginPath(h, table.UnvalidatedPath(uint32(f.rand.IntN(3000))))
	case 1:
		tab.BeginPath(h, table.LimitedPath(uint32(f.rand.IntN(3000))))
	default:
		tab.BeginPath(h, table.ValidatedPath)
	}
	if f.rand.IntN(16) > 0 {
		nextHop := table.NextHop(1 + f.rand.IntN(20))
		if f.rand.IntN(3) == 0 {
			nextHop |= table.NextHopUnseen
		}
		tab.SetNextHop(h, nextHop)
	}
}

func (f *fastWorld) endpoint() endpoint.Endpoint {
	port, v6 := uint16(1024+f.rand.IntN(60_000)), f.v6
	switch f.rand.IntN(32) {
	case 0:
		return endpoint.Endpoint{}
	case 1:
		return endpoint.Serial(endpoint.KindDTLS, f.rand.Uint64())
	case 2:
		return endpoint.Serial(endpoint.KindSession, f.rand.Uint64())
	case 3:
		v6 = !v6
	case 4:
		return endpoint.UDP(f.address4(port), uint16(f.rand.IntN(4)), 2)
	}
	if v6 {
		var a [16]byte
		binary.BigEndian.PutUint64(a[:], 0x2001_0db8_0000_0000|uint64(f.rand.IntN(3)))
		binary.BigEndian.PutUint64(a[8:], f.rand.Uint64())
		return endpoint.UDP(netip.AddrPortFrom(netip.AddrFrom16(a), port), 0, 1)
	}
	return endpoint.UDP(f.address4(port), uint16(1+f.rand.IntN(2)), 2)
}

func (f *fastWorld) address4(port uint16) netip.AddrPort {
	return netip.AddrPortFrom(netip.AddrFrom4([4]byte{203, 0, 113, byte(f.rand.Uint32())}), port)
}

// expected reports whether the program is to relay d, given that the worker does: by
// another route than that of relay.c.
func (f *fastWorld) expected(d *fastDatagram, fresh, probes bool, probed table.NextHop, validated func(table.Handle) bool) bool {
	tab := f.rig.shared.table
	m, err := proto.ParseRelay(d.pkt)
	if err != nil || d.irregular != "" {
		return false
	}
	sender, _ := tab.ByID(m.From)
	peer, _ := tab.ByID(m.To)
	mtu := fastMTUs[int(tab.NextHop(peer.Handle))%len(fastMTUs)]
	headers := 28
	if d.from.Addr().Is6() {
		headers = 48
	}
	_, in := fastLocalAddrs[[2]int{int(d.ep.Listener()), int(d.ep.Local())}]
	_, out := fastLocalAddrs[[2]int{int(peer.Endpoint.Listener()), int(peer.Endpoint.Local())}]
	if f.native && localInterface(int(d.ep.Local())) == 0 {
		return false
	}
	return in && out && peer.Endpoint.Kind() == d.ep.Kind() && tab.NextHop(sender.Handle) != 0 &&
		tab.NextHop(peer.Handle) != 0 && !(probes && tab.NextHop(peer.Handle) == probed) && tab.NextHop(peer.Handle) < 20 &&
		headers+len(d.pkt) <= mtu &&
		validated(peer.Handle) && fresh && validated(sender.Handle)
}

func (f *fastWorld) step(n int) {
	if f.rand.IntN(3) == 0 {
		f.rig.now += int64(f.rand.IntN(400))
	}
	if f.rand.IntN(100) == 0 {
		f.replace(f.rand.IntN(len(f.all)))
	}
	if f.rand.IntN(10) == 0 {
		f.move(f.all[f.rand.IntN(len(f.all))])
	}
	d := f.next()
	f.program.SetTestTime(f.rig.now)
	if f.rand.IntN(200) == 0 {
		f.since = f.rig.now + f.program.Expire(time.Duration(f.rig.now)*time.Millisecond).Milliseconds() + 50
	}
	probed := table.NextHop(1 + f.rand.IntN(19))
	probes := f.rand.IntN(4) == 0
	if probes {
		f.program.Probe(probed)
	}
	records := f.program.Records()
	f.before = append(f.before[:0], records...)
	counts, traffic := f.program.Counts(), [32]uint64{}
	for i := range traffic {
		traffic[i], _ = f.program.Traffic(uint32(i))
	}
	out, err := f.program.Handle(d.frame, d.ifindex)
	if err != nil {
		if len(d.frame) < 14 {
			return
		}
		f.t.Fatalf("datagram %d: %v", n, err)
	}
	if probes {
		f.program.SetNextHop(probed, fastMAC(int(probed)), int(probed)%len(fastMTUs))
	}
	f.checkSeen(n, d)
	if d.irregular == "another interface" {
		f.program.SetLocalAddr(d.ep.Listener(), d.ep.Local(), d.to, localInterface(int(d.ep.Local())), [6]byte{})
	}

	tab, valid := f.rig.shared.table, map[table.Handle]bool{}
	for _, h := range f.all {
		valid[h] = tab.IsValidated(h)
	}
	fresh, asks := false, false
	var sender table.Entry
	if m, err := proto.ParseRelay(d.pkt); err == nil {
		sender, _ = tab.ByID(m.From)
		a := tab.Activity(sender.Handle)
		received, _ := tab.LastSeen(sender.Handle)
		fresh = a.HasHeard(max(tick(f.rig.now-5000)+1, tick(f.since)))
		asks = !a.HasHeard(tick(f.rig.now-4000)+1) && received < tick(f.rig.now)
	}
	f.sent = f.sent[:0]
	outcome := f.w.handleDatagram(f.rig.now, d.ep, d.pkt, false)
	f.w.out.flush()
	f.w.inbox.clear()
	want := outcome == outRelayed && f.expected(d, fresh, probes, probed, func(h table.Handle) bool { return valid[h] })
	f.passed[fmt.Sprint(outcome, " ", d.irregular)]++
	activity := 64*table.SlabRecords + 64*int(sender.Handle.Slot())
	if want && asks {
		want = false
		received := activity + 20
		binary.LittleEndian.PutUint32(f.before[received:], uint32(tick(f.rig.now)))
		f.passed["asks"]++
	}
	switch {
	case (out != nil) != want:
		f.t.Fatalf("datagram %d (%v, %q): relayed by the program: %t, want %t (counts %v, %v)", n, outcome, d.irregular, out != nil, want,
			counts, f.program.Counts())
	case out == nil:
		if !bytes.Equal(f.before, f.after) {
			f.t.Fatalf("datagram %d (%v) was left to the worker, and the program wrote", n, outcome)
		}
	default:
		copy(records[activity:activity+4], f.before[activity:]) // Only a worker hears of it.
		if !bytes.Equal(records, f.after) {
			f.t.Fatalf("datagram %d: memory differs: %s", n, difference(records, f.after))
		}
		index := tab.Activity(sender.Handle).CounterIndex()
		if n, _ := f.program.Traffic(index); n != traffic[index]+1 {
			f.t.Fatalf("datagram %d was not counted for its tenant", n)
		}
		if f.program.Counts().Datagrams != counts.Datagrams+1 || f.program.Counts().Bytes != counts.Bytes+uint64(len(d.pkt)) {
			f.t.Fatalf("datagram %d was not counted", n)
		}
		f.checkFrame(n, d, out)
	}
	f.relayed[out != nil]++
}

// checkSeen keeps the memory after the program, and restores that before it, in which it notes what
// a worker knows nothing of: that the program has seen the sender. It checks that this is so.
func (f *fastWorld) checkSeen(n int, d *fastDatagram) {
	tab := f.rig.shared.table
	m, err := proto.ParseRelay(d.pkt)
	sender, _ := tab.ByID(m.From)
	_, known := tab.ByID(m.To)
	_, in := fastLocalAddrs[[2]int{int(d.ep.Listener()), int(d.ep.Local())}]
	sees := err == nil && d.irregular == "" && sender.Handle != 0 && known && in && sender.Endpoint == d.ep &&
		!(f.native && localInterface(int(d.ep.Local())) == 0)
	var now []table.NextHop
	for _, h := range f.all {
		now = append(now, tab.NextHop(h))
	}
	records := f.program.Records()
	f.after = append(f.after[:0], records...)
	copy(records, f.before)
	if sees {
		tab.SetNextHop(sender.Handle, tab.NextHop(sender.Handle)&^table.NextHopUnseen)
	}
	for i, h := range f.all {
		if want := tab.NextHop(h); now[i] != want {
			f.t.Fatalf("datagram %d (%q): next hop %#x, want %#x", n, d.irregular, now[i], want)
		}
	}
	f.before = append(f.before[:0], records...)
}

func (f *fastWorld) checkFrame(n int, d *fastDatagram, out []byte) {
	if len(f.sent) != 1 {
		f.t.Fatalf("datagram %d: the worker sent %d", n, len(f.sent))
	}
	to := f.sent[0].to
	nextHop := int(f.rig.shared.table.NextHop(f.handleAt(to)))
	if nextHop&int(table.NextHopUnseen) != 0 {
		f.t.Fatalf("datagram %d goes to a player of which the program has seen none", n)
	}
	localAddr := fastLocalAddrs[[2]int{int(to.Listener()), int(to.Local())}]
	want := appendFrame(nil, localAddr, to.AddrPort(), f.sent[0].pkt)
	mac, own := fastMAC(nextHop), fastMAC(1000+nextHop%len(fastMTUs))
	copy(want, mac[:])
	copy(want[6:], own[:])
	udp := 14 + 40
	if to.Kind() == endpoint.KindUDP4 {
		udp = 14 + 20
		ip := want[14:]
		copy(ip[4:6], out[18:20]) // id
		ip[8], ip[10], ip[11] = 64, 0, 0
		binary.BigEndian.PutUint16(ip[10:], ^checksum(0, ip[:20]))
	} else {
		want[14+7] = 64
	}
	residual := func(frame []byte) uint16 {
		return checksum(uint32(len(frame)-udp)+17, frame[udp-2*to.AddrPort().Addr().BitLen()/8:udp], frame[udp:])
	}
	if residual(out)%0xffff != residual(d.frame)%0xffff {
		f.t.Fatalf("datagram %d: the checksum is right by %04x, was %04x", n, residual(out), residual(d.frame))
	}
	copy(want[udp+6:udp+8], out[udp+6:udp+8])
	if !bytes.Equal(out, want) {
		f.t.Fatalf("datagram %d: the frame is\n%x\nwant\n%x", n, out, want)
	}
}

func (f *fastWorld) handleAt(ep endpoint.Endpoint) table.Handle {
	var e table.Entry
	f.rig.shared.table.FindByEndpoint(ep, &e)
	return e.Handle
}

func difference(a, b []byte) string {
	for i := 0; i < len(a); i += 4 {
		if x, y := binary.LittleEndian.Uint32(a[i:]), binary.LittleEndian.Uint32(b[i:]); x != y {
			part, size := "identity", i/64
			if i >= 64<<10 {
				part, size = "activity", i/64-1024
			}
			return fmt.Sprintf("%s %d at %d: %#x in the worker, %#x in the program", part, size, i%64, x, y)
		}
	}
	return "none"
}

// TestFastPathEquals compares verdict, bytes and records on random tables and datagrams.
func TestFastPathEquals(t *testing.T) {
	testkit.OneGoroutine(t)
	datagrams := 20_000
	if testkit.RaceEnabled {
		datagrams = 4000
	}
	if s := os.Getenv("FERRY_FAST_PATH"); s != "" {
		datagrams, _ = strconv.Atoi(s)
	}
	for _, native := range []bool{false, true} {
		name := "tc"
		if native {
			name = "native"
		}
		t.Run(name, func(t *testing.T) {
			seed := rand.Uint64()
			t.Logf("seed %d", seed)
			f := newFastWorld(t, seed, native)
			for n := range datagrams {
				if n%500 == 0 {
					f.build()
				}
				f.step(n)
			}
			t.Logf("%d relayed by the program, %d left to the worker: %v", f.relayed[true], f.relayed[false], f.passed)
			t.Logf("passed: %v", f.program.Counts())
			if f.relayed[true] < datagrams/50 || f.relayed[false] < datagrams/50 { // 1,100 to 1,600 of 20,000 are usual
				t.Error("the datagrams are not a mixture")
			}
		})
	}
}

// simProgram is the program in a simulation. It relays between clients with IPv4 only.
type simProgram struct {
	*program.Program
	relayed int
}

var simRelay = netip.MustParseAddrPort("198.51.100.7:7777")

func (p *simProgram) Load(driver.FastPathSpec) (table.Memory, error) {
	clear(p.Records())
	m := p.Memory()
	for i := range m.IDs {
		for j := range m.IDs[i] {
			m.IDs[i][j].Store(0)
		}
	}
	return m, nil
}

func (p *simProgram) NextHop(to endpoint.Endpoint, _ netip.AddrPort) table.NextHop {
	if to.Kind() != endpoint.KindUDP4 {
		return 0
	}
	return 1
}

func (p *simProgram) relay(now int64, from netip.AddrPort, pkt []byte) (to endpoint.Endpoint, ok bool) {
	if !from.Addr().Is4() {
		return to, false
	}
	p.SetTestTime(now)
	out, err := p.Handle(appendFrame(nil, from, simRelay, pkt), loopback)
	if err != nil {
		panic(err)
	}
	if out == nil {
		return to, false
	}
	if !bytes.Equal(out[14+28:], pkt) {
		panic(fmt.Sprintf("the program changed %x to %x", pkt, out[14+28:]))
	}
	p.relayed++
	ip := netip.AddrFrom4([4]byte(out[14+16:]))
	return endpoint.UDP(netip.AddrPortFrom(ip, binary.BigEndian.Uint16(out[14+20+2:])), 0, 0), true
}

func (p *simProgram) Generation() uint64                       { return 0 }
func (p *simProgram) Resume(uint64)                            {}
func (p *simProgram) Synchronize()                             {}
func (p *simProgram) Run(context.Context, func()) error        { return nil }
func (p *simProgram) Optional() bool                           { return false }
func (p *simProgram) Counts() (none privateapi.FastPathCounts) { return none }

func TestModelFastPath(t *testing.T) {
	testkit.OneGoroutine(t)
	sequences := 80 // make fast-path plays 10,000.
	if testkit.RaceEnabled {
		sequences = 40
	}
	if *modelSequences != 0 {
		sequences = *modelSequences
	}
	ident := newIdentity(t)
	loaded := &simProgram{Program: loadProgram(t, program.Parameters{
		Allocations: 64, Listeners: 1, MaxMessage: proto.RelayOverhead + proto.DefaultMaxContent, TestClock: true,
	})}
	loaded.SetLocalAddr(0, 0, simRelay, loopback, [6]byte{})
	loaded.SetEgress(1, loopback, 1500, fastMAC(1), true)
	loaded.SetNextHop(1, fastMAC(2), 1)
	loaded.SetOn(true)
	ident.fast = loaded
	hits := playModel(t, ident, sequences, randomSeed(*modelSequences))
	n := hits["outcome: "+outRelayed.String()]
	t.Logf("the program relayed %d of %d datagrams, and left %v", loaded.relayed, n, loaded.Program.Counts().Passed)
	// Each allocation's first RELAY at an endpoint is left to a worker, and most of a sequence are.
	if loaded.relayed < n/8 {
		t.Errorf("the program relayed only %d of %d", loaded.relayed, n)
	}
}

// TestFastPathHolds: an endpoint whose datagrams the program relays is kept from others, until it is
// silent; and the program relays for it while a worker hears of it.
func TestFastPathHolds(t *testing.T) {
	loaded := loadProgram(t, program.Parameters{Allocations: 64, Listeners: 1, MaxMessage: 1438, TestClock: true})
	loaded.SetLocalAddr(0, 0, simRelay, loopback, [6]byte{})
	loaded.SetEgress(1, loopback, 1500, fastMAC(1), true)
	loaded.SetNextHop(1, fastMAC(2), 1)
	loaded.SetOn(true)
	tab := table.NewTableIn(loaded.Memory(), 64)
	from := netip.MustParseAddrPort("203.0.113.1:4000")
	frame := appendFrame(nil, from, simRelay, proto.Relay{From: proto.AllocationID{2}, To: proto.AllocationID{1}}.Append(nil))
	at := func(role table.Role, addr netip.AddrPort) table.Handle {
		h, err := tab.Reserve(table.Spec{ID: proto.AllocationID{byte(role)}, Role: role}, 1)
		if err != nil {
			t.Fatal(err)
		}
		tab.Bind(h, endpoint.UDP(addr, 0, 0))
		tab.BeginPath(h, table.ValidatedPath)
		tab.SetNextHop(h, 1)
		return h
	}
	host, joiner := at(table.RoleHost, netip.MustParseAddrPort("203.0.113.2:4000")), at(table.RoleJoiner, from)
	tab.Link(joiner, host)
	activity := tab.Activity(joiner)
	relays := func(now int64, want bool) {
		t.Helper()
		loaded.SetTestTime(now)
		stale := loaded.Counts().Passed[program.Stale]
		out, err := loaded.Handle(frame, loopback)
		if err != nil || (out != nil) != want || !want && loaded.Counts().Passed[program.Stale] != stale+1 {
			t.Errorf("at %d: relayed %t, %v, %v", now, out != nil, err, loaded.Counts().Passed)
		}
	}
	now := int64(1_000_000)
	relays(now, false)
	if activity.LastHeard() != 0 {
		t.Errorf("heard at %d of an endpoint of which no worker has heard", activity.LastHeard())
	}
	activity.RecordHeard(tick(now))
	for _, after := range []int64{0, 100, 2000, 3999} {
		relays(now+after, true)
		if got, want := activity.LastHeard(), tick(now+after); got != want {
			t.Errorf("heard at %d, want %d", got, want)
		}
	}
	for after := int64(4000); after < 5000; after += 250 { // one of each tick asks
		relays(now+after, false)
		relays(now+after, true)
		relays(now+after+249, true)
	}
	relays(now+5000, false)
	relays(now+5000, false)
	activity.RecordHeard(tick(now + 5000))
	relays(now+5000, true)
	// The filters change: what a worker hears in this tick may have passed the former ones.
	wait := loaded.Expire(time.Duration(now+5100) * time.Millisecond).Milliseconds()
	activity.RecordHeard(tick(now + 5200))
	relays(now+5200, false)
	if wait != 100 {
		t.Errorf("this is enough for changes within %d ms", wait)
	}
	relays(now+5250, false)
	activity.RecordHeard(tick(now + 5250))
	relays(now+5250, true)
	if wait := loaded.Expire(time.Duration(now+5480) * time.Millisecond); wait != 220*time.Millisecond {
		t.Errorf("at the end of a tick it is enough for changes within %v", wait)
	}
	tab.BeginPath(joiner, table.ValidatedPath) // at another endpoint
	if activity.LastHeard() != 0 {
		t.Error("heard of an endpoint by what the former one sent")
	}
}

// TestFastPathMerged: datagrams that GRO made one of are left to workers, and all are counted.
func TestFastPathMerged(t *testing.T) {
	loaded := loadProgram(t, program.Parameters{Allocations: 64, Listeners: 1, MaxMessage: 1438})
	relay := proto.Relay{From: proto.AllocationID{2}, To: proto.AllocationID{1}, Payload: make([]byte, 100)}.Append(nil)
	from := netip.MustParseAddrPort("203.0.113.1:4000")
	other := append([]byte{1}, relay...)
	for _, c := range []struct {
		on   bool
		pkt  []byte
		want uint64
	}{{false, relay, 0}, {true, relay, 3}, {true, other, 3}, {true, relay, 6}} {
		loaded.SetOn(c.on)
		out, err := loaded.HandleMerged(appendFrame(nil, from, simRelay, c.pkt), loopback, 3)
		if got := loaded.Counts().Passed[program.Merged]; err != nil || out != nil || got != c.want {
			t.Errorf("on: %t, %x: %d merged, want %d; relayed: %t, %v", c.on, c.pkt[:4], got, c.want, out != nil, err)
		}
	}
}

// TestFastPathTornReads changes the endpoint and the next hop of the receiver while the program
// runs: what it sends goes to one endpoint, by the next hop of that endpoint.
func TestFastPathTornReads(t *testing.T) {
	loaded := loadProgram(t, program.Parameters{Allocations: 64, Listeners: 1, MaxMessage: 1438, TestClock: true})
	loaded.SetLocalAddr(0, 0, simRelay, loopback, [6]byte{})
	loaded.SetEgress(1, loopback, 1500, fastMAC(1), true)
	loaded.SetTestTime(clockStart)
	loaded.SetOn(true)
	tab := table.NewTableIn(loaded.Memory(), 64)
	host, err := tab.Reserve(table.Spec{ID: proto.AllocationID{1}, Role: table.RoleHost}, 1)
	if err != nil {
		t.Fatal(err)
	}
	joiner, err := tab.Reserve(table.Spec{ID: proto.AllocationID{2}, Role: table.RoleJoiner}, 1)
	if err != nil {
		t.Fatal(err)
	}
	tab.Link(joiner, host)
	from := netip.MustParseAddrPort("203.0.113.1:4000")
	tab.Bind(joiner, endpoint.UDP(from, 0, 0))
	tab.SetNextHop(joiner, 1|table.NextHopUnseen) // It is seen at once.
	tab.Activity(joiner).RecordHeard(tick(clockStart))
	// The next hop n leads to the hardware address n, endpoint n has the port n.
	const ends = 8
	for nextHop := 1; nextHop <= ends; nextHop++ {
		loaded.SetNextHop(table.NextHop(nextHop), fastMAC(nextHop), 1)
	}
	var stop atomic.Bool
	done := make(chan int)
	go func() {
		moves := 0
		for ; !stop.Load(); moves++ {
			n := 1 + moves%ends
			tab.Bind(host, endpoint.UDP(netip.AddrPortFrom(netip.AddrFrom4([4]byte{198, 51, 100, byte(n)}), uint16(n)), 0, 0))
			tab.BeginPath(host, table.ValidatedPath)
			tab.SetNextHop(host, table.NextHop(n))
		}
		done <- moves
	}()
	frame := appendFrame(nil, from, simRelay, proto.Relay{From: proto.AllocationID{2}, To: proto.AllocationID{1},
		Payload: []byte("x")}.Append(nil))
	runs, relayed := 300_000, 0
	if testkit.RaceEnabled {
		runs = 2000
	}
	for i := 0; i < runs || relayed < 100 && i < 100*runs; i++ {
		out, err := loaded.Handle(frame, loopback)
		if err != nil {
			t.Fatal(err)
		}
		if out == nil {
			continue
		}
		relayed++
		port := binary.BigEndian.Uint16(out[14+20+2:])
		if mac := fastMAC(int(port)); !bytes.Equal(out[:6], mac[:]) || out[14+19] != byte(port) {
			t.Fatalf("to port %d of %v with the hardware address %x", port, out[14+16:14+20], out[:6])
		}
	}
	stop.Store(true)
	t.Logf("%d moves, %d of %d datagrams relayed, %v left", <-done, relayed, runs, loaded.Counts().Passed)
	if relayed < 100 {
		t.Error("too few datagrams were relayed")
	}
}
