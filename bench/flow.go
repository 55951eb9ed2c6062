package bench

import (
	"github.com/ferryrelay/ferry/internal/endpoint"
	"github.com/ferryrelay/ferry/internal/sock"
)

// flow is what the generator's loop knows of a Flow. The generator's goroutine
// owns it.
type flow struct {
	dst    endpoint.Endpoint // destination, with the number of the source address
	prefix []byte
	cipher Cipher // of the endpoint that it leaves; nil: none
	seq    uint32 // the next number to send
	socket int32  // it leaves from
	from   int32  // endpoint

	window   window
	arrives  int32  // socket that it arrives on
	local    uint16 // number of the address there
	size     int32  // of the datagram there
	inFlight int32  // closed loop: sent and not yet heard of
	heard    int64  // closed loop: last arrival
}

// newFlows prepares the flows of a rig.
func newFlows(r *Rig) []flow {
	flows := make([]flow, len(r.Flows))
	words := windowWords(len(flows))
	bits := make([]uint64, words*len(flows))
	for i := range r.Flows {
		f := &r.Flows[i]
		from, to := &r.Endpoints[f.From], &r.Endpoints[f.To]
		flows[i] = flow{
			dst: endpoint.UDP(f.Dst, from.Local, 0), prefix: f.Prefix, cipher: from.Cipher,
			socket: int32(from.Socket), from: int32(f.From),
			window:  window{bits: bits[i*words : (i+1)*words]},
			arrives: int32(to.Socket), local: to.Local,
			size: int32(r.Sockets[to.Socket].Offset + r.plan.Payload),
		}
	}
	return flows
}

// outgoing is the batch of one socket that is being filled, with the memory of
// its datagrams. The generator's goroutine owns it.
type outgoing struct {
	conn    *sock.Conn
	batch   *sock.SendBatch
	bufs    [][]byte // one per entry
	used    int      // of bufs
	load    int      // entries that are datagrams of ours
	portion *portion // of all of those; nil outside of the measured interval
	oldest  int64    // due time of the first of those
}

func newOutgoing(s *Socket, batch, size int) outgoing {
	o := outgoing{conn: s.Conn, batch: s.Conn.NewSendBatch(batch), bufs: make([][]byte, batch)}
	mem := make([]byte, batch*size)
	for i := range o.bufs {
		o.bufs[i] = mem[i*size : (i+1)*size : (i+1)*size]
	}
	return o
}
