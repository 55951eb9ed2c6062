package netcode

import (
	"cmp"
	"encoding/binary"
	"iter"
	"slices"
	"time"

	"github.com/ferryrelay/ferry/internal/utp"
)

// Command is the input of a client for one of its ticks.
type Command struct {
	Tick uint32
	Data []byte // valid until the next Update
	// Late reports that an earlier Update returned a command of a later tick.
	Late bool
}

// SendCommand sends a command to the server with the next Flush. A second one for the same
// tick replaces the first; one for an earlier tick begins a new sequence. Later datagrams
// repeat it, see Config.CommandsPerDatagram.
//
// Errors: ErrGone, ErrNotAllowed, ErrTooLarge.
func (c Conn) SendCommand(tick uint32, b []byte) error {
	s, err := c.maySend(false, commandLen+tickLen, len(b))
	if err == nil {
		s.counts.Unsent += s.commands.sent.add(tick, b, c.d.cfg.CommandsPerDatagram)
	}
	return err
}

// Commands returns the commands of a client that were received in the last Update, in the
// order of their ticks and each once. A command that is 64 or more ticks older than the
// newest is dropped. More than 256 in one Update are dropped, unless they are repeated.
func (c Conn) Commands() iter.Seq[Command] {
	return func(yield func(Command) bool) { each(c.receivingSession().commands.inputs.sort(), yield) }
}

// commandHeader goes before the commands of a datagram, the newest first. With a count of
// 0 the datagram is an acknowledgement alone, and ends there.
//
//	 0    1          5      9      13       17      18     22
//	+----+----------+------+------+--------+-------+------+-------- - -+-------------+
//	| 00 | snapshot | mask | time | return | count | tick | repetitions | newest data |
//	+----+----------+------+------+--------+-------+------+-------- - -+-------------+
//	       u32 LE each                       u8      u32
//
// A repetition is a command of an earlier tick: u8 by how many ticks, at least 1, it is before
// the previous command of the datagram, u16 size, data.
//
// Times are the sender's, in ms and never 0. The return is the newest time of
// the peer and for how long it was held, 0 before there was one.
type commandHeader struct {
	acks      Acks
	time, ret uint32
}

const (
	commandLen    = 18
	tickLen       = 4
	repetitionLen = 3 // and the data
)

type commandPacket struct {
	commandHeader
	count       int
	tick        uint32 // of the newest, as newest
	newest      []byte
	repetitions []byte
}

func (h commandHeader) append(dst []byte) []byte {
	dst = binary.LittleEndian.AppendUint32(append(dst, kindCommand), h.acks.Newest)
	dst = binary.LittleEndian.AppendUint32(dst, h.acks.mask)
	dst = binary.LittleEndian.AppendUint32(dst, h.time)
	return binary.LittleEndian.AppendUint32(dst, h.ret)
}

func parseCommands(b []byte) (p commandPacket, ok bool) {
	if len(b) < commandLen || b[0] != kindCommand {
		return p, false
	}
	u32 := func(at int) uint32 { return binary.LittleEndian.Uint32(b[at:]) }
	p.commandHeader = commandHeader{acks: Acks{u32(1), u32(5)}, time: u32(9), ret: u32(13)}
	p.count = int(b[17])
	if p.count == 0 {
		return p, len(b) == commandLen
	}
	if len(b) < commandLen+tickLen {
		return p, false
	}
	p.tick = u32(commandLen)
	p.repetitions = b[commandLen+tickLen:]
	p.newest = p.repetitions
	for range p.count - 1 {
		back, _, rest, ok := nextRepetition(p.newest)
		if !ok || back == 0 {
			return p, false
		}
		p.newest = rest
	}
	return p, true
}

func nextRepetition(b []byte) (back uint32, data, rest []byte, ok bool) {
	if len(b) < repetitionLen {
		return 0, nil, nil, false
	}
	end := repetitionLen + int(binary.LittleEndian.Uint16(b[1:]))
	if len(b) < end {
		return 0, nil, nil, false
	}
	return uint32(b[0]), b[repetitionLen:end:end], b[end:], true
}

type sentCommands struct {
	list  []sentCommand // the first n, by tick; the others keep their buffers
	n     int
	fresh bool // the newest was in no datagram
}

type sentCommand struct {
	tick  uint32
	left  int // datagrams that will have it
	fresh bool
	data  []byte
}

func (q *sentCommands) reset() { q.n, q.fresh = 0, false }

// add queues a command for k datagrams, and returns how many leave the queue that were in none.
func (q *sentCommands) add(tick uint32, b []byte, k int) (unsent uint64) {
	for q.n > 0 && int32(q.list[q.n-1].tick-tick) >= 0 {
		q.n--
	}
	if q.n == k {
		unsent = q.drop()
	}
	if q.n == len(q.list) {
		q.list = append(q.list, sentCommand{})
	}
	e := &q.list[q.n]
	*e = sentCommand{tick: tick, left: k, fresh: true, data: append(e.data[:0], b...)}
	q.n++
	q.fresh = true
	return unsent
}

func (q *sentCommands) drop() (unsent uint64) {
	oldest := q.list[0]
	copy(q.list, q.list[1:q.n])
	q.n--
	q.list[q.n] = oldest
	if oldest.fresh {
		return 1
	}
	return 0
}

// fitting returns the first command to send. The newest always fits if it was in none.
func (q *sentCommands) fitting(room int) int {
	first := q.n
	room -= commandLen + tickLen
	for i := q.n - 1; i >= 0; i-- {
		newest := i == q.n-1
		room -= len(q.list[i].data)
		if !newest {
			room -= repetitionLen
		}
		if room < 0 && !(newest && q.fresh) || !newest && q.list[i+1].tick-q.list[i].tick > 255 {
			break
		}
		first = i
	}
	return first
}

func (q *sentCommands) append(dst []byte, first int) []byte {
	dst = append(dst, byte(q.n-first))
	if first == q.n {
		return dst
	}
	newest := &q.list[q.n-1]
	dst = binary.LittleEndian.AppendUint32(dst, newest.tick)
	for i := q.n - 2; i >= first; i-- {
		e := &q.list[i]
		dst = append(dst, byte(q.list[i+1].tick-e.tick))
		dst = binary.LittleEndian.AppendUint16(dst, uint16(len(e.data)))
		dst = append(dst, e.data...)
	}
	return append(dst, newest.data...)
}

// noteSent returns how many of the commands were in no datagram before.
func (q *sentCommands) noteSent(first int) (fresh uint64) {
	for i := first; i < q.n; i++ {
		e := &q.list[i]
		if e.fresh {
			fresh++
		}
		e.left--
		e.fresh = false
	}
	for q.n > 0 && q.list[0].left <= 0 {
		q.drop()
	}
	q.fresh = false
	return fresh
}

// ackInterval is how long a client in game sends no command before it acknowledges snapshots
// in a datagram without one.
const ackInterval = 50 * time.Millisecond

type commandStream struct {
	s      *session
	inputs inputs        // of a server
	sent   sentCommands  // of a client
	sentAt time.Duration // when a datagram of commands was sent
}

func (q *commandStream) flush() {
	s, d := q.s, q.s.d
	acks := s.snapshots.ackDue && s.inGame && d.clock.elapsed-q.sentAt >= ackInterval
	if !q.sent.fresh && !acks {
		return
	}
	now := d.clock.millis()
	h := commandHeader{acks: s.snapshots.acks, time: now, ret: s.trip.echoTime(now)}
	first := q.sent.fitting(d.ep.MaxPayload(utp.EntitiesUnreliable))
	d.scratch = q.sent.append(h.append(d.scratch[:0]), first)
	if d.ep.Send(s.conn, pipelineFor(d.ep, len(d.scratch)), d.scratch) != nil {
		return // The next Flush tries again.
	}
	s.counts.Sent += q.sent.noteSent(first)
	q.sentAt, s.snapshots.ackDue = d.clock.elapsed, false
}

func (q *commandStream) take(b []byte) {
	s := q.s
	p, ok := parseCommands(b)
	if !ok || s.state != StateConnected || !s.inGame {
		s.counts.Ignored++
		return
	}
	if s.trip.remote == 0 || int32(p.time-s.trip.remote) >= 0 {
		s.snapshots.acked = p.acks
	}
	s.measure(p.time, p.ret)
	if p.count == 0 {
		return
	}
	if !q.inputs.begin(p.tick, p.time) {
		s.counts.Dropped += uint64(p.count)
		return
	}
	q.takeOne(p.tick, p.newest)
	tick, rest := p.tick, p.repetitions
	for range p.count - 1 {
		var back uint32
		var data []byte
		back, data, rest, _ = nextRepetition(rest)
		tick -= back
		q.takeOne(tick, data)
	}
}

func (q *commandStream) takeOne(tick uint32, data []byte) {
	counts := &q.s.counts
	switch q.inputs.take(tick, data) {
	case inputNew:
		counts.Received++
	case inputLate:
		counts.Received++
		counts.Late++
	case inputRepeated:
		counts.Repeated++
	case inputDropped:
		counts.Dropped++
	}
}

type inputs struct {
	any       bool
	newest    uint32
	seen      uint64 // bit i: the command of tick newest-i was received
	returned  bool   // an Update returned commands
	before    uint32 // the newest tick that an earlier Update returned
	left      bool   // the game was left, so that another sequence of ticks may follow
	since, at uint32 // the client's time when this sequence began, 0 for the first, and of its newest datagram
	list      []Command
	unordered bool
}

// maxInputs bounds the commands of one client that an Update keeps.
const maxInputs = 256

type inputResult uint8

const (
	inputNew inputResult = iota
	inputLate
	inputRepeated
	inputDropped
)

func (in *inputs) reset() {
	clear(in.list)
	*in = inputs{list: in.list[:0]}
}

// leave forgets the commands that were not read. Those that were handled stay known, since the
// client repeats them.
func (in *inputs) leave() {
	clear(in.list)
	in.list, in.unordered = in.list[:0], false
	in.left = in.left || in.any
}

// begin is false for a datagram of a former sequence: in one sequence tick and time rise
// together, so that a lower tick at a later time begins another one.
func (in *inputs) begin(tick, time uint32) bool {
	switch {
	case in.since != 0 && int32(time-in.since) < 0:
		return false
	case !in.left || int32(time-in.at) <= 0:
	case int32(tick-in.newest) < 0:
		*in = inputs{list: in.list, unordered: in.unordered, left: true, since: time}
	}
	if in.at == 0 || int32(time-in.at) > 0 {
		in.at = time
	}
	return true
}

func (in *inputs) next() {
	clear(in.list)
	in.list = in.list[:0]
	in.unordered = false
	in.returned, in.before = in.any, in.newest
}

func (in *inputs) take(tick uint32, data []byte) inputResult {
	ahead := int32(tick - in.newest)
	switch back := -int64(ahead); {
	case !in.any || ahead > 0:
	case back >= 64:
		return inputDropped
	case in.seen&(1<<back) != 0:
		return inputRepeated
	}
	if len(in.list) == maxInputs {
		return inputDropped
	}
	switch {
	case !in.any:
		in.any, in.newest, in.seen = true, tick, 1
	case ahead > 0:
		in.newest, in.seen = tick, in.seen<<uint32(ahead)|1 // A shift by 64 or more gives 0.
	default:
		in.seen |= 1 << -ahead
		in.unordered = true
	}
	late := in.returned && int32(tick-in.before) < 0
	in.list = append(in.list, Command{Tick: tick, Data: data, Late: late})
	if late {
		return inputLate
	}
	return inputNew
}

func (in *inputs) sort() []Command {
	if in.unordered {
		slices.SortFunc(in.list, func(a, b Command) int { return cmp.Compare(in.newest-b.Tick, in.newest-a.Tick) })
		in.unordered = false
	}
	return in.list
}
