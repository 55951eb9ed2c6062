package benchrig

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"runtime"
	"syscall"
	"time"

	"github.com/ferryrelay/ferry/internal/net/endpoint"
	"github.com/ferryrelay/ferry/internal/net/sock"
)

// Direct is the Dialect without a relay: the baseline of a machine, of the
// generator and the kernel.
type Direct struct {
	// Header is the number of bytes in front of the payload. 0 = none.
	Header int
}

// Name returns "direct".
func (Direct) Name() string { return "direct" }

// Open opens the sockets; no handshake is necessary.
func (d Direct) Open(_ context.Context, p Plan) (*Rig, error) {
	r, err := newHeaderRig(p, max(d.Header, 0))
	if err != nil {
		return nil, err
	}
	for i := range r.Flows {
		f := &r.Flows[i]
		f.Dst = r.Endpoints[f.To].Addr
	}
	return r, nil
}

func newHeaderRig(p Plan, size int) (*Rig, error) {
	r, err := NewRig(p)
	if err != nil {
		return nil, err
	}
	for ep := range r.Endpoints {
		r.Endpoints[ep].Offset = size
	}
	headers := make([]byte, size*len(p.Flows))
	for i, l := range p.Flows {
		r.Flows = append(r.Flows, Flow{From: l.From, To: l.To, Prefix: headers[i*size : (i+1)*size : (i+1)*size]})
	}
	return r, nil
}

// DefaultHeader is the header that Swap puts in front of a payload, in bytes:
// that of RELAY, so that datagrams have the same size with both dialects.
const DefaultHeader = 38

// Swap is the Dialect of relays that compute the destination from the source
// address, such as NullRelay. They send each datagram back to its port and to
// this address:
//
//	pairs  the source address with its lowest bit flipped
//	star   from a player, whose last byte is not 0: the source address with 0
//	       there, its host; from a host: the last byte is the first byte of the
//	       datagram
//
// A plan with one player per host that is no star uses pairs.
type Swap struct {
	// Relay is where the relay listens. Required.
	Relay netip.AddrPort
	// Header is the number of bytes in front of the payload, of which the
	// first is the number of the player to which a host sends. 0 = DefaultHeader; at least 1.
	Header int
}

// Name returns "swap".
func (Swap) Name() string { return "swap" }

// Open sends one datagram through the relay to check that it runs.
func (d Swap) Open(ctx context.Context, p Plan) (*Rig, error) {
	d.Header = cmp.Or(d.Header, DefaultHeader)
	if d.Header < 1 {
		return nil, fmt.Errorf("%w: header of %d bytes", ErrConfig, d.Header)
	}
	if p.single || p.Addr(0).Is6() {
		return nil, fmt.Errorf("%w: %s tells endpoints apart by their IPv4 addresses", ErrConfig, d.Name())
	}
	r, err := newHeaderRig(p, d.Header)
	if err != nil {
		return nil, err
	}
	for i := range r.Flows {
		f := &r.Flows[i]
		_, place := p.Match(f.To)
		f.Dst, f.Prefix[0] = d.Relay, byte(place)
	}
	if err := d.probe(ctx, r); err != nil {
		return nil, errors.Join(err, r.close())
	}
	return r, nil
}

func (d Swap) probe(ctx context.Context, r *Rig) error {
	ctx, cancel := context.WithTimeout(ctx, 3*time.Second)
	defer cancel()
	f := &r.Flows[0]
	pkt := append(bytes.Clone(f.Prefix), "probe"...)
	r.Explain = func(_ int, got []byte) string {
		if bytes.Equal(got, pkt) {
			return "" // a repeated probe
		}
		return Foreign
	}
	arrived, sent := false, time.Time{}
	err := r.Await(ctx, func() bool { return arrived }, func(now time.Time) error {
		if now.Sub(sent) < 100*time.Millisecond {
			return nil
		}
		sent = now
		return r.SendTo(f.From, f.Dst, pkt)
	}, func(ep int, _ netip.AddrPort, got []byte) {
		arrived = arrived || ep == f.To && bytes.Equal(got, pkt)
	})
	if errors.Is(err, context.DeadlineExceeded) {
		if err := checkPort(d.Relay); err != nil {
			return err
		}
		return fmt.Errorf("bench: nothing comes back from %v: is there a relay that swaps by address, in the mode of this shape?", d.Relay)
	}
	return err
}

func checkPort(addr netip.AddrPort) error {
	conn, err := net.DialUDP("udp", nil, net.UDPAddrFromAddrPort(addr))
	if err != nil {
		return err
	}
	defer conn.Close()
	_ = conn.SetReadDeadline(time.Now().Add(200 * time.Millisecond))
	if _, err = conn.Write(nil); err == nil {
		_, err = conn.Read(make([]byte, 1))
	}
	if errors.Is(err, syscall.ECONNREFUSED) {
		return fmt.Errorf("bench: no relay listens at UDP %v: the port is closed", addr)
	}
	return nil
}

// NullConfig configures a NullRelay.
type NullConfig struct {
	// Addr is the address to listen on, IPv4. Zero: 127.0.0.1 with a free port.
	Addr netip.AddrPort
	// Star finds destinations by the rule of stars, see Swap. Default: pairs.
	Star bool
}

// NullRelay is a relay without lookups, for a comparison: it receives a batch,
// computes each destination by the rule of Swap, and sends the batch. A relay on
// package sock cannot cost less. Run's goroutine owns its batches.
type NullRelay struct {
	cfg   NullConfig
	group *sock.Group
}

// NewNullRelay binds the socket. The caller calls Run or Close. If there is
// more than one processor of Go's scheduler, its loop keeps one, see
// [sock.Config.HoldProcessor].
func NewNullRelay(cfg NullConfig) (*NullRelay, error) {
	if !cfg.Addr.IsValid() {
		cfg.Addr = netip.AddrPortFrom(netip.AddrFrom4([4]byte{127, 0, 0, 1}), 0)
	}
	g, err := sock.Listen(sock.Config{
		Addr: cfg.Addr, DisableGSO: true, HoldProcessor: runtime.GOMAXPROCS(0) > 1,
	}, 1)
	if err != nil {
		return nil, err
	}
	return &NullRelay{cfg: cfg, group: g}, nil
}

// Addr returns the address and port that the relay listens on.
func (n *NullRelay) Addr() netip.AddrPort { return n.group.Addr() }

// Close closes the socket, which ends Run.
func (n *NullRelay) Close() error { return n.group.Close() }

// Run relays until ctx ends or Close is called, on a thread of its own.
func (n *NullRelay) Run(ctx context.Context) error {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	defer context.AfterFunc(ctx, n.group.StopReceiving)()
	c := n.group.Conns()[0]
	rx, tx := c.NewRecvBatch(), c.NewSendBatch(sock.MaxBatch)
	for {
		count, err := c.Recv(rx)
		if errors.Is(err, net.ErrClosed) {
			return n.Close()
		}
		if err != nil {
			return errors.Join(err, n.Close())
		}
		for i := range count {
			from, pkt, _ := rx.At(i)
			if to := n.swap(from, pkt); !to.IsZero() {
				tx.Add(to, pkt)
			}
		}
		c.Send(tx)
	}
}

// swap returns where a datagram goes, the zero Endpoint if nowhere. The second
// word of an Endpoint is the IPv4 address.
func (n *NullRelay) swap(from endpoint.Endpoint, pkt []byte) endpoint.Endpoint {
	switch {
	case from.Kind() != endpoint.KindUDP4:
		return endpoint.Endpoint{}
	case !n.cfg.Star:
		from.Lo ^= 1
	case from.Lo&0xff != 0:
		from.Lo &^= 0xff
	case len(pkt) == 0:
		return endpoint.Endpoint{}
	default:
		from.Lo |= uint64(pkt[0])
	}
	return from
}
