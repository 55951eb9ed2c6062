package benchrig

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"time"

	"github.com/ferryrelay/ferry/internal/net/endpoint"
	"github.com/ferryrelay/ferry/internal/net/sock"
)

// MaxDatagram is the most bytes of a datagram, header and payload: one Ethernet frame.
const MaxDatagram = 1472

// Rig has the sockets, endpoints and flows that are ready on a relay. One goroutine
// uses it at a time: first that of Open, then the generator's.
type Rig struct {
	Sockets   []*Socket
	Endpoints []Endpoint // as numbered in the Plan
	Flows     []Flow     // flow i is Plan.Flows[i]

	// Sized is true if each Prefix ends with the length of the payload, u16, or is empty.
	Sized bool

	// Explain names an arriving packet that is no datagram of the load, without allocating;
	// ep is -1 for an address without an endpoint. "" means an expected answer; Answer means an answer to a Rebind;
	// the others are errors. Nil: all are "foreign".
	Explain func(ep int, pkt []byte) string

	// Maintain keeps what Open made alive: it is called each millisecond, sends with SendTo,
	// and Explain gets the answers. Nil: nothing to do.
	Maintain func()

	// Leave deletes the state of the relay for this rig, with SendTo. Close calls it
	// once, before it closes the sockets. Nil: nothing to do.
	Leave func()

	Plan Plan // of which the rig was made

	// Dialer connects endpoints over transports other than UDP.
	Dialer *Dialer

	poller *sock.Poller // of many UDP sockets; nil: all are asked
	ready  []int32
}

// Names that Explain returns for expected packets.
const (
	Foreign      = "foreign"                   // no message of the relay
	OtherContent = "RELAY of something else"   // a message with content that the load does not know
	Answer       = "answer"                    // to an Endpoint's Rebind
	Accepted     = "accepted"                  // to an Arrival's Connect
	Alive        = "alive"                     // to an Endpoint's Keepalive
	TimedOut     = "ERROR 1 timed out"         // the allocation of a silent endpoint has ended
	Mismatch     = "ERROR 3 endpoint mismatch" // the endpoint is not bound, as after a restart of the relay
)

// Socket is one socket of the generator. It has many endpoints: each has an address of its
// own on the same port, or, over TCP, a connection.
type Socket struct {
	Conn PacketConn

	byLocal []int32 // endpoint number by endpoint.Endpoint.Local; -1 = none
	tx      Batch   // of SendTo
}

// Endpoint is one player or host: where datagrams come from and go to.
type Endpoint struct {
	Socket int            // index into Rig.Sockets
	Local  uint16         // number of the source address in Socket.Group
	Addr   netip.AddrPort // what the relay sees
	Offset int            // length of the header in front of an arriving payload

	// Relay is where Keepalive and Rebind go.
	Relay netip.AddrPort
	// Keepalive is the datagram for a silent endpoint. Nil: none.
	Keepalive []byte
	// LastSent is when Open last sent for the endpoint, in ns of sock.Now. 0: just now.
	LastSent int64
	// Rebind is a handshake that an endpoint may repeat at any time. Nil: none.
	Rebind []byte
	// Renew returns the next Rebind of an endpoint that connected again. Nil: Rebind.
	Renew func() []byte
	// Server is where the endpoint connects again. Nil: it does not, as over UDP.
	Server *Server
	// Cipher is for all datagrams of an endpoint over DTLS. Nil: plain datagrams.
	Cipher Cipher
}

// Flow is one direction between two endpoints, of Prefix and payload.
type Flow struct {
	From, To int            // endpoint numbers
	Dst      netip.AddrPort // where From sends to
	Prefix   []byte         // the relay's header, not changed after Open; may be empty
	Header   []byte         // as it arrives, of the length Endpoint.Offset. Nil: Prefix
}

// NewRig opens the sockets of a plan. A Dialect sets the other fields.
func NewRig(p Plan) (*Rig, error) {
	r := &Rig{Plan: p, Endpoints: make([]Endpoint, p.Len())}
	r.Dialer = newDialer(r)
	if err := r.open(); err != nil {
		return nil, errors.Join(err, r.close())
	}
	return r, nil
}

func (r *Rig) open() error {
	p := &r.Plan
	for first := 0; first < p.Len(); {
		end := first
		for end < p.Len() && p.Socket(end) == p.Socket(first) {
			end++
		}
		open := r.openSocket
		if IsTCP(p.Transport) {
			open = r.openStreams
		}
		if err := open(first, end); err != nil {
			return err
		}
		first = end
	}
	r.poll()
	return nil
}

// manySockets is the number of UDP sockets from which a call for each that has nothing costs
// more than to ask for those that have.
const manySockets = 8

// poll asks the kernel from now on which sockets can be read, if there are many.
func (r *Rig) poll() {
	for i := range r.Sockets {
		r.ready = append(r.ready, int32(i))
	}
	if len(r.Sockets) < manySockets || IsTCP(r.Plan.Transport) {
		return
	}
	poller, err := sock.NewPoller()
	for i, s := range r.Sockets {
		if err == nil {
			err = poller.AddConn(s.Conn.(*udpConn).conn, int32(i))
		}
	}
	switch {
	case err == nil:
		r.poller = poller
	case poller != nil:
		_ = poller.Close() // All sockets are asked.
	}
}

func (r *Rig) readable() ([]int32, error) {
	if r.poller == nil {
		return r.ready, nil
	}
	var err error
	r.ready, err = r.poller.Ready(r.ready[:0])
	return r.ready, err
}

// openStreams prepares the connections of endpoints first to end-1, which Connect makes.
func (r *Rig) openStreams(first, end int) error {
	counts := new(Connections)
	if first > 0 { // All sockets have the same.
		counts = r.Sockets[0].Conn.(*streams).counts
	}
	c, err := newStreams(end-first, counts)
	if err != nil {
		return err
	}
	numbers := make([]uint16, end-first)
	for i := range numbers {
		numbers[i] = uint16(i)
	}
	r.addSocket(c, first, numbers, 0)
	return nil
}

func (r *Rig) addSocket(conn PacketConn, first int, numbers []uint16, port uint16) {
	s := &Socket{Conn: conn, tx: conn.NewBatch(1)}
	for i, local := range numbers {
		for len(s.byLocal) <= int(local) {
			s.byLocal = append(s.byLocal, -1)
		}
		s.byLocal[local] = int32(first + i)
		r.Endpoints[first+i] = Endpoint{
			Socket: len(r.Sockets), Local: local, Addr: netip.AddrPortFrom(r.Plan.Addr(first+i), port),
		}
	}
	r.Sockets = append(r.Sockets, s)
}

func (r *Rig) openSocket(first, end int) error {
	wildcard := netip.IPv4Unspecified()
	if r.Plan.Addr(first).Is6() {
		wildcard = netip.IPv6Unspecified()
	}
	// Merged datagrams would travel unsegmented over loopback, which favours
	// relays that receive them unsegmented.
	g, err := sock.Listen(sock.Config{
		Addr: netip.AddrPortFrom(wildcard, 0), Batch: r.Plan.Batch, DisableGSO: true,
	}, 1)
	if err != nil {
		return fmt.Errorf("bench: %w", err)
	}
	addrs := make([]netip.Addr, 0, end-first)
	for i := first; i < end; i++ {
		addrs = append(addrs, r.Plan.Addr(i))
	}
	numbers, err := g.Locals(addrs)
	if err != nil {
		return errors.Join(fmt.Errorf("bench: %w", err), g.Close())
	}
	conn := g.Conns()[0]
	r.addSocket(&udpConn{g, conn, conn.NewRecvBatch()}, first, numbers, g.Addr().Port())
	return nil
}

// SendTo sends pkt from endpoint ep to dst at once. It is for handshakes, not
// for load. The error is ErrRemote for a destination that the plan does not
// permit, or says that the kernel refused the datagram.
func (r *Rig) SendTo(ep int, dst netip.AddrPort, pkt []byte) error {
	if err := r.permit(dst); err != nil {
		return err
	}
	return r.send(ep, dst, r.Encrypt(ep, pkt))
}

func (r *Rig) send(ep int, dst netip.AddrPort, pkt []byte) error {
	e := &r.Endpoints[ep]
	s := r.Sockets[e.Socket]
	s.tx.Add(endpoint.UDP(dst, e.Local, 0), pkt)
	switch res := s.Conn.Send(s.tx); {
	case res.Blocked > 0:
		return fmt.Errorf("bench: the relay at %v ended the connection from %v", dst, e.Addr)
	case res.Failed > 0:
		return fmt.Errorf("bench: the kernel refused a datagram from %v to %v", e.Addr, dst)
	}
	return nil
}

func (r *Rig) permit(dst netip.AddrPort) error {
	if family := FamilyOf(r.Plan.Addr(0)); !dst.IsValid() || FamilyOf(dst.Addr()) != family {
		return fmt.Errorf("%w: %v is not of the family %s, which the endpoints have", ErrConfig, dst, family)
	}
	if dst.Addr().Unmap().IsLoopback() {
		return nil
	}
	if !r.Plan.AllowRemote {
		return fmt.Errorf("%w: %v", ErrRemote, dst)
	}
	if from := r.Plan.Addr(0); from.IsLoopback() {
		return fmt.Errorf("%w: Sources, such as %v, are loopback and cannot reach %v", ErrConfig, from, dst)
	}
	return nil
}

// Receive calls take for each batch that has arrived, without blocking, with the number of the
// socket and of the datagrams, which are valid during the call. It returns the number of datagrams.
func (r *Rig) Receive(batches int, take func(socket int32, n int)) (total int, err error) {
	ready, err := r.readable()
	if err != nil {
		return 0, fmt.Errorf("bench: %w", err)
	}
	for _, i := range ready {
		for range batches {
			n, err := r.Sockets[i].Conn.TryRecv()
			if err != nil {
				return total, fmt.Errorf("bench: socket %d: %w", i, err)
			}
			if n > 0 {
				take(i, n)
			}
			if total += n; n < r.Plan.Batch {
				break
			}
		}
	}
	return total, nil
}

// Poll calls handle for each datagram that has arrived, without blocking. It returns the number
// of datagrams, those to no endpoint included.
func (r *Rig) Poll(handle Handler) (int, error) {
	return r.Receive(1, func(socket int32, n int) {
		s := r.Sockets[socket]
		for i := range n {
			from, pkt, _ := s.Conn.At(i)
			ep := s.Owner(from.Local())
			if ep < 0 || r.Dialer.Divert(int(ep), pkt) {
				continue
			}
			if pkt = r.Decrypt(ep, pkt); pkt != nil {
				handle(int(ep), from.AddrPort(), pkt)
			}
		}
	})
}

// Await polls until done reports true, and calls idle in between, at least once
// a millisecond. It ends with ctx's error or that of idle.
func (r *Rig) Await(ctx context.Context, done func() bool, idle func(now time.Time) error, handle Handler) error {
	for !done() {
		if err := ctx.Err(); err != nil {
			return err
		}
		if err := idle(time.Now()); err != nil {
			return err
		}
		n, err := r.Poll(handle)
		if err != nil {
			return err
		}
		if n == 0 {
			time.Sleep(time.Millisecond)
		}
	}
	return nil
}

// Owner returns the endpoint behind a local number, or -1.
func (s *Socket) Owner(local uint16) int32 {
	if int(local) >= len(s.byLocal) {
		return -1
	}
	return s.byLocal[local]
}

// Close calls Leave and closes the sockets. Further calls only close again.
func (r *Rig) Close() error {
	if leave := r.Leave; leave != nil {
		r.Leave = nil
		leave()
	}
	return r.close()
}

func (r *Rig) close() error {
	r.Dialer.close()
	var errs []error
	for _, s := range r.Sockets {
		errs = append(errs, s.Conn.Close())
	}
	if r.poller != nil {
		errs = append(errs, r.poller.Close())
		r.poller = nil
	}
	return errors.Join(errs...)
}

// Check reports in what a rig differs from its plan, which is an error of the Dialect.
func (r *Rig) Check() error {
	if len(r.Flows) != len(r.Plan.Flows) || len(r.Endpoints) != r.Plan.Len() {
		return fmt.Errorf("%w: the dialect made %d flows and %d endpoints of %d and %d",
			ErrConfig, len(r.Flows), len(r.Endpoints), len(r.Plan.Flows), r.Plan.Len())
	}
	for i := range r.Flows {
		f, want := &r.Flows[i], r.Plan.Flows[i]
		if f.From != want.From || f.To != want.To {
			return fmt.Errorf("%w: flow %d goes from %d to %d, planned was %d to %d", ErrConfig, i, f.From, f.To, want.From, want.To)
		}
		if err := r.permit(f.Dst); err != nil {
			return err
		}
		if size := len(f.Prefix) + r.Overhead(f.From); size+r.Plan.Payload > MaxDatagram {
			return fmt.Errorf("%w: %d bytes of header and %d of payload are more than %d", ErrConfig, size, r.Plan.Payload, MaxDatagram)
		}
	}
	rebinds := 0
	for i := range r.Endpoints {
		e := &r.Endpoints[i]
		if e.Rebind != nil {
			rebinds++
		}
		if e.Keepalive == nil && e.Rebind == nil {
			continue
		}
		if err := r.permit(e.Relay); err != nil {
			return err
		}
	}
	if r.Plan.BindRate > 0 && rebinds == 0 {
		return fmt.Errorf("%w: the dialect has no handshake to repeat", ErrConfig)
	}
	return nil
}

// Decrypt returns the message in a datagram to an endpoint, nil if there is none.
func (r *Rig) Decrypt(ep int32, pkt []byte) []byte {
	if ep < 0 || r.Endpoints[ep].Cipher == nil {
		return pkt
	}
	return r.Endpoints[ep].Cipher.Open(pkt)
}

// Encrypt returns the datagram of an endpoint for a message.
func (r *Rig) Encrypt(ep int, msg []byte) []byte {
	if c := r.Endpoints[ep].Cipher; c != nil {
		return c.Seal(nil, msg)
	}
	return msg
}

// Overhead returns the number of bytes that the Cipher of an endpoint adds.
func (r *Rig) Overhead(ep int) int {
	if c := r.Endpoints[ep].Cipher; c != nil {
		return c.Overhead()
	}
	return 0
}

// SizeLen is the size in bytes of the length at the end of a Sized header.
const SizeLen = 2

// PutHeader writes the header of a payload of size bytes, and returns its length.
func (r *Rig) PutHeader(buf, header []byte, size int) int {
	n := copy(buf, header)
	if r.Sized && n > 0 {
		binary.BigEndian.PutUint16(buf[n-SizeLen:], uint16(size))
	}
	return n
}

// HasHeader reports whether a message begins with the header of a payload of its size.
func (r *Rig) HasHeader(msg, header []byte) bool {
	n := len(header)
	if !r.Sized || n == 0 || len(msg) < n {
		return bytes.HasPrefix(msg, header)
	}
	return bytes.Equal(msg[:n-SizeLen], header[:n-SizeLen]) && int(binary.BigEndian.Uint16(msg[n-SizeLen:])) == len(msg)-n
}
