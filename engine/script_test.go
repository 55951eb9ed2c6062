package engine

import (
	"encoding/binary"
	"flag"
	"fmt"
	"maps"
	"math/rand/v2"
	"runtime/debug"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/ferryrelay/ferry/alloc"
	"github.com/ferryrelay/ferry/internal/test/testkit"
)

// Random scripts: what clients, attackers and time do to a relay.

type actionCase uint8

const (
	opHost actionCase = iota
	opJoiner
	opBind
	opBindForged
	opPing
	opConnect
	opRelay
	opDisconnect
	opClose
	opJunk
	opAdvance
	opKeepAlive
	opFeedSilent
	opMatch
	opRoam
	opMismatchFlood
	opBindPending
	opStraddle
	opLateStamp
	opBatch
	opUnknown
	opRestart
	opReturn
	opStall
	opScan
	opFlood
	opBindAgain
	opNewLinks
	opQoS
	opMigrate
	opExceed
	opRejoin
	numOps
)

// opWeights say how often each kind comes up.
var opWeights = [numOps]int{
	opHost: 5, opJoiner: 9, opBind: 26, opBindForged: 3, opPing: 12, opConnect: 16, opRelay: 22, opDisconnect: 8,
	opClose: 2, opJunk: 8, opAdvance: 6, opKeepAlive: 1, opFeedSilent: 1, opMatch: 9, opRoam: 6, opMismatchFlood: 2,
	opBindPending: 3, opStraddle: 8, opLateStamp: 2, opBatch: 5, opUnknown: 1,
	opRestart: 1, opReturn: 9, opStall: 1, opScan: 2, opFlood: 3, opBindAgain: 4, opNewLinks: 1, opQoS: 3, opMigrate: 4,
	opExceed: 1, opRejoin: 3,
}

// op is one step. Its numbers are taken modulo what there is, so that shorter scripts make sense.
type op struct {
	kind       actionCase
	a, b, c, d uint16
}

func randomScript(r *rand.Rand, steps int) []op {
	total := 0
	for _, w := range opWeights {
		total += w
	}
	script := make([]op, steps)
	for i := range script {
		n, kind := r.IntN(total), actionCase(0)
		for ; n >= opWeights[kind]; kind++ {
			n -= opWeights[kind]
		}
		bits := r.Uint64()
		script[i] = op{kind, uint16(bits), uint16(bits >> 16), uint16(bits >> 32), uint16(bits >> 48)}
	}
	return script
}

func (s *sim) play(script []op) error {
	s.reserve(alloc.RoleHost, nil, "p", "host", 2)
	for i, o := range script {
		s.do(o)
		s.settle()
		s.compare()
		if s.err != nil {
			s.failedAt = i
			return s.err
		}
	}
	return nil
}

// reservation picks one, mostly of those that are alive; addr picks an endpoint. Both
// pick from few, so that steps collide.
func (s *sim) reservation(n uint16) *mReservation {
	var live []*mReservation
	for _, c := range s.cards {
		if s.model.allocs[c.id] != nil {
			live = append(live, c)
		}
	}
	if len(live) > 0 && n%8 != 0 {
		recent := min(len(live), 8)
		return live[len(live)-1-int(n/8)%recent]
	}
	recent := min(len(s.cards), 8)
	return s.cards[len(s.cards)-1-int(n/8)%recent]
}

func addr(n uint16) int {
	if n%10 < 7 {
		return int(n/10) % 5
	}
	return int(n/10) % len(simAddrs)
}

// home returns where a card is bound, or a picked address.
func (s *sim) home(c *mReservation, n uint16) int {
	if a := s.model.allocs[c.id]; a != nil && a.at != "" && n%8 != 0 {
		for i, ap := range simAddrs {
			if mAddr(ap.String()) == a.at {
				return i
			}
		}
	}
	return addr(n / 8)
}

func (s *sim) do(o op) {
	switch o.kind {
	case opHost:
		if len(s.cards) < 40 {
			s.reserve(alloc.RoleHost, nil, [...]string{"p", "q"}[o.a%4/3], [...]string{"host", "ann"}[o.b%2], 1+int(o.c%3))
		}
	case opJoiner:
		s.join(o)
	case opAdvance:
		steps := [...]time.Duration{1, 1, 40, 40, 200, 250, 600, 600, 1000, 1000, 3000, 5000, 9900, 10_000, 10_300, 31_000, 61_000}
		s.advance(steps[int(o.a)%len(steps)] * time.Millisecond)
	case opKeepAlive:
		s.keepAlive(12 + int(o.a%40))
	case opFeedSilent:
		s.feedSilent(o)
	case opMatch:
		s.match(o)
	case opRoam:
		s.roam(o)
	case opMismatchFlood:
		if o.d%4 == 0 { // a client of another version that does not give up
			for range 25 {
				s.datagram(addr(o.b), append([]byte{0xDA, 0x72, 1}, pingMessage(s.reservation(o.a).id)[3:]...))
			}
			return
		}
		if c := s.reservation(o.a); o.d%4 == 1 { // its NAT has given it another port, and it does not bind
			for range 2 {
				s.datagram(s.home(c, 1)^1, pingMessage(c.id))
				s.advance(250 * time.Millisecond)
			}
			return
		}
		for range 3 + o.c%8 {
			s.datagram(addr(o.b), pingMessage(s.reservation(o.a).id))
		}
	case opBindPending:
		s.bindPending(o)
	case opStraddle:
		s.straddleBatch(o)
	case opLateStamp:
		s.lateStamp(o)
	case opBatch:
		s.mixedBatch(o)
	case opRestart:
		switch {
		case s.ident == nil:
		case o.c%4 == 0:
			s.restartMatch(o)
		case o.a%2 == 0:
			s.restart(o.b%3 != 0)
		}
	case opReturn:
		s.returnAll(o)
	case opStall:
		s.settle()
		s.compare()
		s.stall(time.Duration([...]int{900, 1500, 4000, 12_000, 25_000}[o.a%5]) * time.Millisecond)
	case opScan:
		s.scan(o)
	case opFlood:
		s.flood(o)
	case opExceed:
		s.exceed(o)
	case opBindAgain:
		s.bindOften(o)
	case opQoS:
		s.probe(o)
	case opMigrate:
		if o.d%2 == 0 {
			s.hostLeaves(o)
		}
		switch c := s.reservation(o.a); o.d / 2 % 8 {
		case 0:
			host := s.reservation(o.b)
			if o.c%3 != 0 {
				c = host
			}
			s.sayLeave(host, c)
		case 1:
			s.bindCandidates(o.b)
		default:
			s.migrate(c, s.codeOf(c.match, o.b))
		}
	case opRejoin:
		s.rejoin(o)
	case opNewLinks:
		s.linkOften(o)
	case opUnknown:
		c := s.reservation(o.a)
		for i := range byte(3 + o.b%4) {
			s.datagram(s.home(c, 1), relayMessage(c.id, mID{i, byte(o.c)}, 1))
		}
	default:
		from, pkt := s.packet(o)
		s.datagram(from, pkt)
	}
}

func (s *sim) join(o op) {
	host := s.reservation(o.a)
	tenant := host.tenant
	if o.b%16 == 0 {
		tenant += "x"
	}
	if len(s.cards) < 40 {
		s.reserve(alloc.RoleJoiner, host, tenant, [...]string{"joiner1", "joiner2", "unbound"}[o.c%3], 0)
	}
}

func (s *sim) packet(o op) (from int, pkt []byte) {
	c := s.reservation(o.a)
	switch o.kind {
	case opBind, opBindForged:
		return s.bindPacket(o, c)
	case opPing:
		if o.c%4 == 3 {
			return s.home(c, o.b), nil // a sign of life
		}
		return s.home(c, o.b), pingMessage(c.id)
	case opConnect:
		return s.home(c, o.b), connectMessage(c.id, s.ticketFor(c, o))
	case opRelay:
		return s.home(c, o.b), relayMessage(c.id, s.peerOf(c, o), s.content(o))
	case opDisconnect:
		return s.home(c, o.b), message(9, c.id, s.peerOf(c, o))
	case opClose:
		return s.home(c, o.b), message(11, c.id)
	}
	return s.junk(o, c)
}

func (s *sim) bindPacket(o op, c *mReservation) (int, []byte) {
	nonce := uint16(0)
	if a := s.model.allocs[c.id]; a != nil {
		nonce = uint16(a.nonce) + uint16([...]int{0, 0, 1, 1, 1, -1, 300, 1}[o.c%8])
	}
	if o.c%251 == 7 {
		nonce = 65535
	}
	from := s.home(c, o.b)
	if o.d%3 == 0 {
		from = addr(o.d / 3)
	}
	pkt := signed(c, nonce, c.key)
	if o.kind == opBindForged {
		switch o.d % 5 {
		case 0: // another allocation's key
			pkt = signed(c, nonce, s.reservation(o.d/5).key)
		case 1:
			pkt[len(pkt)-1-int(o.d/5)%32] ^= 1
		case 2:
			pkt[8+int(o.d/5)%255] ^= 0x10
		case 3:
			pkt[4] = byte(1 + o.d/5%255)
		case 4: // a ticket in place of its own data
			if c.ticket != "" {
				copied := *c
				copied.data = c.ticket
				pkt = signed(&copied, nonce, c.key)
			}
		}
	}
	return from, pkt
}

// ticketFor is mostly what the card was given, sometimes anything.
func (s *sim) ticketFor(c *mReservation, o op) string {
	other := s.reservation(o.c)
	switch o.d % 12 {
	case 0:
		return other.data
	case 1:
		if other.ticket != "" {
			return other.ticket
		}
		return c.data
	case 2:
		broken := []byte(c.data)
		broken[o.d%255] ^= 1
		return string(broken)
	case 3:
		if c.role == "joiner" { // a ticket for its match, issued to another
			for _, x := range s.cards {
				if x.ticket != "" && x.match == c.match && x != c {
					return x.ticket
				}
			}
		}
		return c.data
	case 4:
		for _, x := range s.cards {
			if x.id == c.match {
				return x.data
			}
		}
	}
	if c.ticket != "" {
		return c.ticket
	}
	return c.data
}

func (s *sim) peerOf(c *mReservation, o op) mID {
	if o.d%4 == 0 {
		return s.reservation(o.c).id
	}
	if a := s.model.allocs[c.id]; a != nil {
		for _, x := range s.cards { // the first linked one: maps have no order
			if a.links[x.id] {
				return x.id
			}
		}
	}
	return c.match
}

func (s *sim) content(o op) int {
	if o.d%32 == 5 {
		return [...]int{0, 1399, 1400, 1401, 1434, 1435}[o.c%6]
	}
	return int(o.c % 60)
}

func (s *sim) junk(o op, c *mReservation) (int, []byte) {
	from := s.home(c, o.b)
	pkt := [][]byte{
		pingMessage(c.id), relayMessage(c.id, c.match, 9), message(9, c.id, c.match), message(11, c.id),
		connectMessage(c.id, c.data), signed(c, 1, c.key),
	}[o.c%6]
	switch o.d % 8 {
	case 0:
		pkt = pkt[:int(o.d/8)%len(pkt)]
	case 1:
		pkt = append(pkt, 0)
	case 2: // the version, at every length from 4
		pkt[2] = byte(1 + o.d/8%255)
		pkt = pkt[:max(4, len(pkt)-int(o.d/8%2)*(len(pkt)-20))]
	case 3:
		pkt[3] = byte(o.d / 8)
	case 4:
		pkt[3] = [...]byte{1, 6, 8, 12}[o.d/8%4]
	case 5:
		pkt[o.d/8%2] ^= 0x80
	case 6:
		pkt = connectMessage(c.id, c.data[:int(o.d/8)%255])
	case 7:
		pkt = binary.LittleEndian.AppendUint64(nil, uint64(o.d)<<32)[:o.d/8%9]
	}
	return from, pkt
}

var (
	modelSequences = flag.Int("model.sequences", 0, "random sequences to compare; 0: 500, or 300 with the race detector or -short")
	modelSteps     = flag.Int("model.steps", 200, "steps per sequence")
	long           = flag.Bool("long", false, "simulations with as many clients as a large relay has")
	modelSeed      = flag.Uint64("model.seed", 0, "first seed; 0: by the clock if -model.sequences is given, else 1")
)

// minHits is how often a run must hit every rule.
const minHits = 25

var modelRules = []string{
	"bind: first", "bind: takes an endpoint over", "bind: the endpoint is another's", "bind: takes its endpoint back",
	"bind: a validated path displaces one that is not",
	"bind: ended, no ERROR 4 to the endpoint of another", "bind: ended, ERROR 4 whatever the nonce",
	"nonce: same endpoint, lower", "nonce: same endpoint, equal", "nonce: same endpoint, higher",
	"nonce: other endpoint, not higher", "nonce: other endpoint, higher",
	"connect: wrong role or match, ERROR 2", "connect: ticket of another player, ERROR 2",
	"connect: another ticket of the same player", "connect: host ended, ERROR 4", "connect: repeated",
	"connect: full, a player's own link is alive", "connect: full, a player's own silent link yields",
	"connect: full, a player's own link whose session is closed yields", "connect: full, one link of several yields",
	"connect: full, a player's own link after a restart", "connect: full, more often than a player may ask",
	"link: first of a host restarts its clocks",
	"disconnect: forwarded and echoed", "disconnect: no link, same match, echoed",
	"mute: three ERROR 3, then silence", "mute: a BIND is on its way",
	"mute: ERROR 5 once a second per pair", "mute: ERROR 5 about three peers a second",
	"budget: mismatch", "budget: mismatch of a live allocation", "budget: mismatch of a live allocation from a prefix",
	"budget: mismatch in the network of the allocation", "budget: version", "budget: control",
	"budget: not connected",
	"budget: one of a code in 200 ms",
	"bind: answered once more, from memory", "bind: answered once more too often",
	"bind: old nonce once more, no signature checked",
	"connect: host may yet come back", "connect: places are kept for their players",
	"qos: more than 40 of a prefix at once", "link: more than 4 of a host at once", "link: more than 3 of a joiner at once",
	"close: takes effect after a second", "close: cancelled by traffic",
	"disconnect: takes effect after a second", "disconnect: cancelled by traffic",
	"restart: allocation rebuilt", "restart: a BIND from before is worthless",
	"restart: same endpoint, equal nonce", "restart: a kicked player stays out", "restart: a candidate has its turn again",
	"restart: the place of a host that had left", "restart: the host may come back", "restart: the host has not come back",
	"restart: the place of a host that has not come back", "restart: of no player of a host that has not come back",
	"restart: link restored by its host", "restart: link restored by its joiner",
	"expiry: no ERROR 1 to an endpoint that was not heard", "expiry: deferred since the relay was stalled",
	"expiry: never bound", "expiry: idle", "expiry: host alone", "expiry: nothing received",
	"expiry: deferred after a bad nonce",
	"size: first of a match is reported, dropped false", "size: first of a match is reported, dropped true",
	"migration: of a player that is not bound", "migration: of another match",
	"migration: forgotten, and the code leads to another host", "migration: of no player of the host",
	"migration: no place is free", "migration: the player was removed", "migration: the player disconnected itself",
	"migration: the host disconnected all as it left", "migration: the host goes on, and has removed the player",
	"migration: the host is silent, and has removed the player", "migration: the host has removed the player, and may leave",
	"migration: the host goes on without the player", "migration: the host is silent", "migration: the host was heard",
	"migration: the new host is there", "migration: the new host has left too", "migration: granted",
	"migration: granted again to the same player", "migration: another player has the place for a moment",
	"migration: a player with too many hosts", "migration: a join to a silent host",
	"migration: a candidate yields to a player that had no turn", "migration: a candidate yields to a player that had its turn",
	"migration: the first BIND takes the place", "migration: a candidate ends",
	"migration: a candidate binds and the place is not free", "migration: ends a silent host",
	"migration: ends a host that has said that it leaves", "migration: a host says that it leaves",
	"migration: a host leaves that was never bound",
	"path: from the network of the reservation", "path: as validated as the former one of the same network", "path: limited",
	"path: unvalidated, beyond the allowance", "path: excess of a path", "path: excess of a network", "path: excess of all",
	"path: excess in a private network",
	"path: a reply beyond the allowance",
	"player: its own silent host ends for the next one", "player: its own silent joiner ends for the next one",
	"player: its own silent one at the host ends for the next one",
	"player: too many of its own at the host, all in use", "player: too many of its own, all in use",
	"grace: a reply waits for a busy worker", "grace: a due allocation received something in time",
}

// unreachable are outcomes that a simulation without sockets, or within the
// size of the ring, cannot make; TestDropReasons raises them.
var unreachable = []outcome{
	dropTruncated, dropSource, dropBusy, outCheck, dropForbidden, dropPrivate, dropPanic, dropLoad, outRecord, dropPlain, dropIdentity,
}

// TestModel compares the engine with the reference model over random
// sequences, and fails when a rule was hardly tested.
func TestModel(t *testing.T) {
	t.Parallel()
	testkit.OneGoroutine(t)
	defer debug.SetGCPercent(debug.SetGCPercent(400)) // each sequence makes a relay of its own
	sequences, seed := *modelSequences, *modelSeed
	if seed == 0 {
		seed = randomSeed(sequences)
	}
	if sequences == 0 {
		sequences = 500 // CI plays 6000 when the engine has changed: make model.
		if testkit.RaceEnabled || testing.Short() {
			sequences = 300
		}
	}
	t.Logf("%d sequences of %d steps, first seed %d", sequences, *modelSteps, seed)
	hits := playModel(t, newIdentity(t), sequences, seed)
	report(t, hits, sequences)
}

func playModel(t *testing.T, ident *identity, sequences int, seed uint64) map[string]int {
	hits := map[string]int{}
	for i := range uint64(sequences) {
		script := randomScript(rand.New(rand.NewPCG(seed+i, 0)), *modelSteps)
		fresh := func() *sim { return ident.newSim(i%2 == 0) }
		s := fresh()
		if err := s.play(script); err != nil {
			short := shrink(fresh, script[:s.failedAt+1])
			t.Fatalf("seed %d, step %d: %v\na short script that fails:\n%s", seed+i, s.failedAt, err, showScript(short))
		}
		s.close()
		for rule, n := range s.hits {
			hits[rule] += n
		}
	}
	return hits
}

// randomSeed is a different one each time for a search, if a flag says how
// long it is to be, and the same for everyday runs, which are to be repeatable.
func randomSeed(length int) uint64 {
	if length == 0 {
		return 1
	}
	return uint64(time.Now().UnixNano())
}

func report(t *testing.T, hits map[string]int, sequences int) {
	want := slices.Clone(modelRules)
	for o := range numOutcomes {
		if !slices.Contains(unreachable, o) {
			want = append(want, "outcome: "+o.String())
		}
	}
	for _, rule := range want {
		hits[rule] += 0
	}
	var b strings.Builder
	for _, rule := range slices.Sorted(maps.Keys(hits)) {
		fmt.Fprintf(&b, "%9d  %s\n", hits[rule], rule)
	}
	t.Logf("hits of each rule:\n%s", b.String())
	if sequences < 1500 {
		t.Logf("no verdict on rules that were hit seldom: %d sequences are too few for one", sequences)
		return
	}
	for _, rule := range want {
		if hits[rule] < minHits {
			t.Errorf("rule %q was hit %d times, want at least %d", rule, hits[rule], minHits)
		}
	}
}

// shrink removes steps as long as the script still fails.
func shrink(newSim func() *sim, script []op) []op {
	for size := len(script) / 2; size > 0; size /= 2 {
		for at := 0; at+size <= len(script); {
			shorter := slices.Concat(script[:at], script[at+size:])
			s := newSim()
			fails := s.play(shorter) != nil
			s.close()
			if fails {
				script = shorter
			} else {
				at += size
			}
		}
	}
	return script
}

func showScript(script []op) string {
	var b strings.Builder
	for _, o := range script {
		fmt.Fprintf(&b, "\t{%d, %d, %d, %d, %d},\n", o.kind, o.a, o.b, o.c, o.d)
	}
	return b.String()
}

func FuzzModel(f *testing.F) {
	for seed := range uint64(4) {
		var data []byte
		for _, o := range randomScript(rand.New(rand.NewPCG(seed, 1)), 40) {
			data = append(data, byte(o.kind))
			for _, n := range []uint16{o.a, o.b, o.c, o.d} {
				data = binary.LittleEndian.AppendUint16(data, n)
			}
		}
		f.Add(data)
	}
	ident := newIdentity(f)
	f.Fuzz(func(t *testing.T, data []byte) {
		var script []op
		for ; len(data) >= 9 && len(script) < 100; data = data[9:] {
			n := func(i int) uint16 { return binary.LittleEndian.Uint16(data[1+2*i:]) }
			script = append(script, op{actionCase(data[0] % byte(numOps)), n(0), n(1), n(2), n(3)})
		}
		s := ident.newSim(true)
		defer s.close()
		if err := s.play(script); err != nil {
			t.Fatalf("%v\n%s", err, showScript(script))
		}
	})
}
