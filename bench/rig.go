package bench

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"time"

	"github.com/ferryrelay/ferry/internal/endpoint"
	"github.com/ferryrelay/ferry/internal/sock"
)

// NewRig opens the sockets of a plan and gives each endpoint its address. A
// Dialect then sets Offset, Relay, Flows and what else it needs.
func NewRig(p Plan) (*Rig, error) {
	r := &Rig{plan: p, Endpoints: make([]Endpoint, p.Len())}
	if err := r.open(); err != nil {
		return nil, errors.Join(err, r.close())
	}
	return r, nil
}

func (r *Rig) open() error {
	p := &r.plan
	for first := 0; first < p.Len(); {
		end := first
		for end < p.Len() && p.socket(end) == p.socket(first) {
			end++
		}
		if err := r.openSocket(first, end); err != nil {
			return err
		}
		first = end
	}
	return nil
}

// openSocket makes the socket of endpoints first to end-1.
func (r *Rig) openSocket(first, end int) error {
	any4 := netip.AddrPortFrom(netip.IPv4Unspecified(), 0)
	// Merged datagrams would travel unsegmented over loopback, and flatter
	// relays that take them so.
	g, err := sock.Listen(sock.Config{
		Addr: any4, Batch: r.plan.Batch, ReadBuffer: r.plan.ReadBuffer, Unmerged: true,
	}, 1)
	if err != nil {
		return fmt.Errorf("bench: %w", err)
	}
	s := &Socket{Group: g, Conn: g.Conns()[0]}
	s.rx, s.tx = s.Conn.NewRecvBatch(), s.Conn.NewSendBatch(1)
	r.Sockets = append(r.Sockets, s)
	addrs := make([]netip.Addr, 0, end-first)
	for i := first; i < end; i++ {
		addrs = append(addrs, r.plan.Addr(i))
	}
	numbers, err := g.Locals(addrs)
	if err != nil {
		return fmt.Errorf("bench: %w", err)
	}
	for i, local := range numbers {
		for len(s.byLocal) <= int(local) {
			s.byLocal = append(s.byLocal, -1)
		}
		s.byLocal[local] = int32(first + i)
		r.Endpoints[first+i] = Endpoint{
			Socket: len(r.Sockets) - 1, Local: local,
			Addr: netip.AddrPortFrom(addrs[i], g.Addr().Port()),
		}
	}
	return nil
}

// SendTo sends pkt from endpoint ep to dst at once. It is for handshakes, not
// for load. The error is ErrRemote for a destination that the plan does not
// permit, or says that the kernel refused the datagram.
func (r *Rig) SendTo(ep int, dst netip.AddrPort, pkt []byte) error {
	if err := r.permit(dst); err != nil {
		return err
	}
	e := &r.Endpoints[ep]
	s := r.Sockets[e.Socket]
	s.tx.Add(endpoint.UDP(dst, e.Local, 0), r.encrypt(ep, pkt))
	r.Setup.Handshake++
	if res := s.Conn.Send(s.tx); res.Sent != 1 {
		return fmt.Errorf("bench: the kernel refused a datagram from %v to %v", e.Addr, dst)
	}
	return nil
}

func (r *Rig) permit(dst netip.AddrPort) error {
	if !dst.IsValid() || !dst.Addr().Unmap().Is4() {
		return fmt.Errorf("%w: %v is no IPv4 address", ErrConfig, dst)
	}
	if dst.Addr().Unmap().IsLoopback() {
		return nil
	}
	if !r.plan.AllowRemote {
		return fmt.Errorf("%w: %v", ErrRemote, dst)
	}
	if from := r.plan.Addr(0); from.IsLoopback() {
		return fmt.Errorf("%w: Sources, such as %v, are loopback and cannot reach %v", ErrConfig, from, dst)
	}
	return nil
}

// Poll hands over what has arrived, without blocking: the number of the
// endpoint it came to, who sent it, and the datagram, which is valid during the
// call. It returns how many there were; datagrams to no endpoint count but are
// not handed over.
func (r *Rig) Poll(handle func(ep int, from netip.AddrPort, pkt []byte)) (int, error) {
	total := 0
	for _, s := range r.Sockets {
		n, err := s.Conn.TryRecv(s.rx)
		if err != nil {
			return total, fmt.Errorf("bench: %w", err)
		}
		total += n
		for i := range n {
			from, pkt, _ := s.rx.At(i)
			ep := s.owner(from.Local())
			if pkt = r.decrypt(ep, pkt); ep >= 0 && pkt != nil {
				handle(int(ep), from.AddrPort(), pkt)
			}
		}
	}
	return total, nil
}

// Await polls until done reports true, and calls idle in between, at least once
// a millisecond. It ends with ctx's error or that of idle.
func (r *Rig) Await(ctx context.Context, done func() bool, idle func(now time.Time) error,
	handle func(ep int, from netip.AddrPort, pkt []byte),
) error {
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

// owner returns the endpoint behind a local number, or -1.
func (s *Socket) owner(local uint16) int32 {
	if int(local) >= len(s.byLocal) {
		return -1
	}
	return s.byLocal[local]
}

// Close says goodbye and closes the sockets. It may be called again.
func (r *Rig) Close() error {
	if leave := r.Leave; leave != nil {
		r.Leave = nil
		leave()
	}
	return r.close()
}

func (r *Rig) close() error {
	var errs []error
	for _, s := range r.Sockets {
		errs = append(errs, s.Group.Close())
	}
	return errors.Join(errs...)
}

// check holds a Dialect to its plan.
func (r *Rig) check() error {
	if len(r.Flows) != len(r.plan.Flows) || len(r.Endpoints) != r.plan.Len() {
		return fmt.Errorf("%w: the dialect made %d flows and %d endpoints of %d and %d",
			ErrConfig, len(r.Flows), len(r.Endpoints), len(r.plan.Flows), r.plan.Len())
	}
	for i := range r.Flows {
		f, want := &r.Flows[i], r.plan.Flows[i]
		if f.From != want.From || f.To != want.To {
			return fmt.Errorf("%w: flow %d goes from %d to %d, planned was %d to %d", ErrConfig, i, f.From, f.To, want.From, want.To)
		}
		if err := r.permit(f.Dst); err != nil {
			return err
		}
		if size := len(f.Prefix) + r.overhead(f.From); size+r.plan.Payload > MaxDatagram {
			return fmt.Errorf("%w: %d bytes of header and %d of payload are more than %d", ErrConfig, size, r.plan.Payload, MaxDatagram)
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
	if r.plan.BindRate > 0 && rebinds == 0 {
		return fmt.Errorf("%w: the dialect has no handshake to repeat", ErrConfig)
	}
	return nil
}
