package bench

import (
	"encoding/binary"
	"hash/maphash"

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
	header      []byte // as it arrives
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
			dst: endpoint.UDP(f.Dst, from.Local, 0), prefix: f.Prefix, header: f.Header, cipher: from.Cipher,
			socket: int32(from.Socket), from: int32(f.From), to: int32(f.To),
			window:  window{bits: bits[i*words : (i+1)*words]},
			arrives: int32(to.Socket), local: to.Local,
			size: int32(to.Offset + r.Plan.Payload),
		}
		if f.Header == nil {
			flows[i].header = f.Prefix
		}
	}
	return flows
}

type arrival uint8

const (
	arrivedInOrder   arrival = iota
	arrivedReordered         // after a higher number: RFC 4737, 3.3
	arrivedDuplicate         // arrived before
	arrivedLate              // so far behind that it may have been seen
	arrivedUnsent            // never sent
)

// window is a ring of bits, with a power of two of words.
type window struct {
	next uint32 // one above the highest number seen
	bits []uint64
}

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

// windowWords keeps all flows together near 8 MiB: 4,096 numbers of few flows.
func windowWords(flows int) int {
	words := 64
	for words > 4 && words*flows > 1<<20 {
		words /= 2
	}
	return words
}

// stampLen is the size in bytes of the stamp at the beginning of each payload:
//
//	0   check      hash of the rest of the payload, keyed by this process
//	4   run        a random number, by which datagrams of an earlier run are recognised
//	8   flow       number of the flow
//	12  sequence   of the flow, from 0
//	16  time       intended send time, nanoseconds of sock.Now
//
// All numbers are big-endian.
const stampLen = 24

// stampKey is the key of all checks. A relay that does not know it cannot change a stamp, as its due
// time, unnoticed. A CRC would not do, keyed or not: it is linear, so a change of the data says that of the check.
var stampKey = maphash.MakeSeed()

func stampCheck(b []byte) uint32 { return uint32(maphash.Bytes(stampKey, b[4:])) }

type stamp struct {
	run  uint32
	flow uint32
	seq  uint32
	due  int64
}

func (s *stamp) put(b []byte) {
	_ = b[stampLen-1]
	binary.BigEndian.PutUint32(b[4:], s.run)
	binary.BigEndian.PutUint32(b[8:], s.flow)
	binary.BigEndian.PutUint32(b[12:], s.seq)
	binary.BigEndian.PutUint64(b[16:], uint64(s.due))
	binary.BigEndian.PutUint32(b, stampCheck(b))
}

func parseStamp(b []byte) (s stamp, ok bool) {
	if len(b) < stampLen || binary.BigEndian.Uint32(b) != stampCheck(b) {
		return stamp{}, false
	}
	return stamp{
		run:  binary.BigEndian.Uint32(b[4:]),
		flow: binary.BigEndian.Uint32(b[8:]),
		seq:  binary.BigEndian.Uint32(b[12:]),
		due:  int64(binary.BigEndian.Uint64(b[16:])),
	}, true
}
