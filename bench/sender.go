package bench

import (
	"github.com/ferryrelay/ferry/internal/benchrig"
	"github.com/ferryrelay/ferry/internal/net/endpoint"
	"github.com/ferryrelay/ferry/internal/net/sock"
)

// sender fills the batches of the sockets. The generator's goroutine owns it.
type sender struct {
	rig      *benchrig.Rig
	run      uint32 // in each stamp
	flows    []flow
	out      []outgoing // by socket
	plain    []byte     // a datagram that is being encrypted
	recorder *recorder
	keep     *keepaliveTimer
}

func (s *sender) queue(i, size int, due int64) {
	f := &s.flows[i]
	o := &s.out[f.socket]
	p := s.recorder.portionOf(due)
	if o.batch.Len() == len(o.bufs) || len(o.dues) > 0 && p != o.portion {
		s.flush(o)
	}
	o.batch.Add(f.dst, s.datagram(o.bufs[o.used], i, size, due))
	o.used++
	o.dues, o.portion = append(o.dues, due), p
	s.keep.lastSent[f.from] = due
	s.recorder.expectDelivery(f.to, due)
}

func (s *sender) datagram(buf []byte, i, size int, due int64) []byte {
	f := &s.flows[i]
	pkt := buf[:len(f.prefix)+size]
	st := stamp{run: s.run, flow: uint32(i), seq: f.seq, due: due}
	st.put(pkt[s.rig.PutHeader(pkt, f.prefix, size):])
	f.seq++
	if f.cipher != nil {
		return s.seal(f, buf, pkt)
	}
	return pkt
}

// seal encrypts a datagram of a flow in place: the result has the memory of buf.
func (s *sender) seal(f *flow, buf, pkt []byte) []byte {
	s.plain = append(s.plain[:0], pkt...)
	return f.cipher.Seal(buf[:0], s.plain)
}

// add queues a datagram that is not of the load: a keep-alive or a handshake.
func (s *sender) add(ep int, pkt []byte) {
	e := &s.rig.Endpoints[ep]
	s.roomFor(e.Socket).batch.Add(endpoint.UDP(e.Relay, e.Local, 0), s.rig.Encrypt(ep, pkt))
}

// sendKeepalive counts it if its answer can arrive before the end of the run.
func (s *sender) sendKeepalive(ep int, counts bool) bool {
	pkt := s.rig.Endpoints[ep].Keepalive
	if pkt != nil {
		s.add(ep, pkt)
	}
	if pkt != nil && counts {
		s.keep.recordSent(ep, sock.Now())
	}
	return pkt != nil
}

// roomFor returns the batch of a socket, with room for a datagram.
func (s *sender) roomFor(socket int) *outgoing {
	o := &s.out[socket]
	if o.batch.Len() == len(o.bufs) {
		s.flush(o)
	}
	return o
}

func (s *sender) flushAll() {
	for i := range s.out {
		s.flush(&s.out[i])
	}
}

func (s *sender) flush(o *outgoing) {
	if o.batch.Len() == 0 {
		return
	}
	res := o.conn.Send(o.batch)
	s.recorder.recordSent(o, res, sock.Now())
}

// outgoing is the batch of one socket. The generator's goroutine owns it.
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
