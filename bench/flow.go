package bench

import (
	"encoding/binary"
	"hash/crc32"
	"time"

	"github.com/ferryrelay/ferry/internal/benchrig"
	"github.com/ferryrelay/ferry/internal/net/endpoint"
)

// flow is the state of a benchrig.Flow. The generator's goroutine owns it.
type flow struct {
	dst    endpoint.Endpoint // destination, with the number of the source address
	prefix []byte
	cipher benchrig.Cipher // of the sending endpoint; nil: none
	seq    uint32          // the next number to send
	socket int32           // it leaves from
	from   int32           // endpoint
	to     int32           // endpoint

	window      window
	arrives     int32  // socket that it arrives on
	local       uint16 // number of the address there
	size        int32  // of the datagram there, without Traffic
	inFlight    int32  // closed loop: sent, not yet arrived
	lastArrival int64  // closed loop: last arrival
}

func newFlows(r *benchrig.Rig) []flow {
	flows := make([]flow, len(r.Flows))
	words := windowWords(len(flows))
	bits := make([]uint64, words*len(flows))
	for i := range r.Flows {
		f := &r.Flows[i]
		from, to := &r.Endpoints[f.From], &r.Endpoints[f.To]
		flows[i] = flow{
			dst: endpoint.UDP(f.Dst, from.Local, 0), prefix: f.Prefix, cipher: from.Cipher,
			socket: int32(from.Socket), from: int32(f.From), to: int32(f.To),
			window:  window{bits: bits[i*words : (i+1)*words]},
			arrives: int32(to.Socket), local: to.Local,
			size: int32(r.Sockets[to.Socket].Offset + r.Plan.Payload),
		}
	}
	return flows
}

// outgoing is the batch of one socket that is being filled, with the memory of
// its datagrams. The generator's goroutine owns it.
type outgoing struct {
	conn    benchrig.PacketConn
	batch   benchrig.Batch
	bufs    [][]byte // one per entry
	used    int      // of bufs
	dues    []int64  // due times of the entries that are datagrams of the load
	portion *portion // of all of those; nil outside of the measured interval
}

func newOutgoing(s *benchrig.Socket, batch, size int) outgoing {
	o := outgoing{conn: s.Conn, batch: s.Conn.NewBatch(batch), bufs: make([][]byte, batch), dues: make([]int64, 0, batch)}
	mem := make([]byte, batch*size)
	for i := range o.bufs {
		o.bufs[i] = mem[i*size : (i+1)*size : (i+1)*size]
	}
	return o
}

// plan lays out the endpoints and flows of a checked configuration.
func (cfg *Config) plan() (benchrig.Plan, error) {
	p := benchrig.Plan{
		Matches: cfg.Matches, Players: cfg.Players, Payload: cfg.Payload, Stride: 2,
		AllowRemote: cfg.AllowRemote, BindRate: cfg.BindRate, Keepalive: cfg.Keepalive,
		Sockets: cfg.Sockets, ReadBuffer: cfg.ReadBuffer, Batch: cfg.Batch, Transport: benchrig.Transport(cfg.Transport),
	}
	p.Spare = cfg.spareMatches()
	p.Matches += p.Spare
	if cfg.Players > 1 || cfg.Shape == ShapeStar || cfg.Shape == ShapeNetcode {
		p.Stride = 256
	}
	if err := p.Place(cfg.Sources); err != nil {
		return p, err
	}
	for m := range p.Matches {
		p.Flows = append(p.Flows, cfg.links(m)...)
	}
	switch cfg.Align {
	case AlignTick:
		for i := range p.Flows {
			p.Flows[i].Group = 0
		}
	case AlignEven:
		for i := range p.Flows {
			p.Flows[i].Group = i
		}
	}
	return p, nil
}

// spareMatches returns how many matches have endpoints for later ones.
func (cfg *Config) spareMatches() int {
	if cfg.ReplaceRate == 0 {
		return 0
	}
	return int(cfg.ReplaceRate*spareTime) + newMatches
}

// liveFlows returns how many flows the schedule has.
func (cfg *Config) liveFlows(p *benchrig.Plan) int {
	return len(p.Flows) / p.Matches * (p.Matches - p.Spare)
}

// links returns the flows of match m: first all up, then all down, as a game's
// tick has it.
func (cfg *Config) links(m int) (links []benchrig.Link) {
	host := m * (1 + cfg.Players)
	if cfg.Direction != DirectionDown {
		for j := 1; j <= cfg.Players; j++ {
			links = append(links, benchrig.Link{From: host + j, To: host, Group: m})
		}
	}
	if cfg.Direction != DirectionUp {
		for j := 1; j <= cfg.Players; j++ {
			links = append(links, benchrig.Link{From: host, To: host + j, Group: m})
		}
	}
	return links
}

// schedule says when each datagram of an open loop is due. It is a pure
// function of the number of a datagram: nothing that happens in a run can
// change it, so that a slow server cannot reduce the load. The generator's goroutine owns
// its position; before may run beside it.
type schedule interface {
	// next returns the datagram that is due next.
	next() scheduled
	// advance goes on to the one after it, and reports whether a tick has ended.
	advance() bool
	// before counts the datagrams that are due before end.
	before(end int64) uint64
}

type scheduled struct {
	due        int64 // ns of sock.Now
	flow, size int   // place in the schedule, bytes of the payload
}

// newSchedule returns the schedule of a configuration, nil in a closed loop.
func newSchedule(cfg *Config, start int64, p *benchrig.Plan) schedule {
	switch {
	case cfg.Traffic != nil:
		return newTrafficSchedule(cfg, start)
	case cfg.Rate > 0:
		return newTickSchedule(start, cfg.Rate, cfg.Payload, p.Flows[:cfg.liveFlows(p)])
	}
	return nil
}

// tickSchedule lets flows take turns in a tick of flows/rate seconds. Groups of flows begin
// evenly spread over the tick, and the flows of a group are due together.
type tickSchedule struct {
	start int64   // ns of sock.Now; datagram 0 is due then
	tick  float64 // ns
	phase []int64 // of each flow in the tick, ns, rising
	size  int     // of each payload

	ticks int64 // of the datagram that is due next
	flow  int
}

// newTickSchedule spreads rate datagrams per second over the links, whose groups
// are numbered from 0 and rise. The rate must be above 0.
func newTickSchedule(start int64, rate float64, size int, links []benchrig.Link) *tickSchedule {
	s := &tickSchedule{start: start, tick: float64(len(links)) / rate * 1e9, phase: make([]int64, len(links)), size: size}
	groups := float64(links[len(links)-1].Group + 1)
	for i, l := range links {
		s.phase[i] = int64(s.tick * float64(l.Group) / groups)
	}
	return s
}

// due returns the time at which a flow sends in a tick.
func (s *tickSchedule) due(tick int64, flow int) int64 {
	return s.start + int64(float64(tick)*s.tick) + s.phase[flow]
}

func (s *tickSchedule) next() scheduled { return scheduled{s.due(s.ticks, s.flow), s.flow, s.size} }

func (s *tickSchedule) advance() bool {
	if s.flow++; s.flow < len(s.phase) {
		return false
	}
	s.flow = 0
	s.ticks++
	return true
}

func (s *tickSchedule) before(end int64) uint64 {
	if end <= s.start {
		return 0
	}
	tick := max(int64(float64(end-s.start)/s.tick)-1, 0)
	n := tick * int64(len(s.phase))
	for ; ; tick++ {
		for flow := range s.phase {
			if s.due(tick, flow) >= end {
				return uint64(n)
			}
			n++
		}
	}
}

// arrival classifies a datagram by its sequence number.
type arrival uint8

const (
	arrivedInOrder   arrival = iota
	arrivedReordered         // after a higher number: RFC 4737, 3.3
	arrivedDuplicate         // arrived before
	arrivedLate              // so far behind that it may have been seen
	arrivedUnsent            // never sent
)

// window records which of the newest sequence numbers of a flow have
// arrived, in a ring of bits. bits has a power of two of words.
type window struct {
	next uint32 // one above the highest number seen
	bits []uint64
}

// size returns the number of sequence numbers in the window.
func (w *window) size() uint32 { return uint32(len(w.bits)) * 64 }

// arrive records number seq of a flow that has sent numbers below sent. Numbers
// do not wrap around: 2^32 datagrams of one flow are more than a run has.
func (w *window) arrive(seq, sent uint32) arrival {
	switch {
	case seq >= sent:
		return arrivedUnsent
	case seq >= w.next:
		w.advance(seq)
		w.set(seq)
		return arrivedInOrder
	case w.next-seq > w.size():
		return arrivedLate
	case w.has(seq):
		return arrivedDuplicate
	}
	w.set(seq)
	return arrivedReordered
}

// advance makes seq the newest number and clears the bits of new numbers.
func (w *window) advance(seq uint32) {
	if seq-w.next >= w.size() {
		clear(w.bits)
	} else {
		for i := w.next; i != seq; i++ {
			w.unset(i)
		}
	}
	w.next = seq + 1
}

func (w *window) at(seq uint32) (word *uint64, bit uint64) {
	return &w.bits[seq>>6&uint32(len(w.bits)-1)], 1 << (seq & 63)
}

func (w *window) set(seq uint32) {
	word, bit := w.at(seq)
	*word |= bit
}

func (w *window) unset(seq uint32) {
	word, bit := w.at(seq)
	*word &^= bit
}

func (w *window) has(seq uint32) bool {
	word, bit := w.at(seq)
	return *word&bit != 0
}

// windowWords chooses the words of a window so that all flows together stay
// near 8 MiB: 64 (4,096 numbers) when there are few, 4 when there are many.
func windowWords(flows int) int {
	words := 64
	for words > 4 && words*flows > 1<<20 {
		words /= 2
	}
	return words
}

// stampLen is the size in bytes of the stamp at the beginning of each payload:
//
//	0   check      CRC-32C of the rest of the payload, combined with stampMagic
//	4   run        a random number, by which datagrams of an earlier run are recognised
//	8   flow       number of the flow
//	12  sequence   of the flow, from 0
//	16  time       intended send time, nanoseconds of sock.Now
//
// All numbers are big-endian.
const stampLen = 24

// stampMagic tells the check from that of another program.
const stampMagic = 0xFE221B3C

// castagnoli is the polynomial that processors have an instruction for.
var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// stamp is the content of a payload: it identifies the datagram.
type stamp struct {
	run  uint32
	flow uint32
	seq  uint32
	due  int64
}

// put writes the stamp to the first stampLen bytes of a payload, whose other bytes it covers.
func (s *stamp) put(b []byte) {
	_ = b[stampLen-1]
	binary.BigEndian.PutUint32(b[4:], s.run)
	binary.BigEndian.PutUint32(b[8:], s.flow)
	binary.BigEndian.PutUint32(b[12:], s.seq)
	binary.BigEndian.PutUint64(b[16:], uint64(s.due))
	binary.BigEndian.PutUint32(b, stampMagic^crc32.Checksum(b[4:], castagnoli))
}

// parseStamp reads the stamp of a payload; false means that b is not as put left it.
func parseStamp(b []byte) (s stamp, ok bool) {
	if len(b) < stampLen || binary.BigEndian.Uint32(b) != stampMagic^crc32.Checksum(b[4:], castagnoli) {
		return stamp{}, false
	}
	return stamp{
		run:  binary.BigEndian.Uint32(b[4:]),
		flow: binary.BigEndian.Uint32(b[8:]),
		seq:  binary.BigEndian.Uint32(b[12:]),
		due:  int64(binary.BigEndian.Uint64(b[16:])),
	}, true
}

// stallTimeout is how long, in ns, a flow of a closed loop waits for datagrams in flight
// before it counts them as lost and continues.
const stallTimeout = int64(200 * time.Millisecond)

// credits are the permissions to send of a closed loop, as a ring of flow
// numbers. The generator's goroutine owns it.
type credits struct {
	ring       []int32
	head, size int
	checked    int64 // last look for stalled flows
}

// newCredits gives each flow its window.
func newCredits(flows, window int) credits {
	c := credits{ring: make([]int32, flows*window)}
	for range window {
		for i := range flows {
			c.add(int32(i))
		}
	}
	return c
}

func (c *credits) add(flow int32) {
	if c.size < len(c.ring) {
		c.ring[(c.head+c.size)%len(c.ring)] = flow
		c.size++
	}
}

func (c *credits) take() (int32, bool) {
	if c.size == 0 {
		return 0, false
	}
	flow := c.ring[c.head]
	if c.head++; c.head == len(c.ring) {
		c.head = 0
	}
	c.size--
	return flow, true
}

// creditArrival gives a flow credit for n datagrams: the one that arrived and those that
// it overtook, which are most likely lost. What was given up before earns nothing.
func (c *credits) creditArrival(f *flow, i int32, n uint32, now int64) {
	f.lastArrival = now
	for ; n > 0 && f.inFlight > 0; n-- {
		f.inFlight--
		c.add(i)
	}
}

// restoreStalled takes what stalled flows have under way for lost.
func (c *credits) restoreStalled(flows []flow, now int64) {
	if now-c.checked < stallTimeout/4 {
		return
	}
	c.checked = now
	for i := range flows {
		f := &flows[i]
		if f.lastArrival == 0 {
			f.lastArrival = now
		}
		if f.inFlight > 0 && now-f.lastArrival > stallTimeout {
			for ; f.inFlight > 0; f.inFlight-- {
				c.add(int32(i))
			}
			f.lastArrival = now
		}
	}
}
