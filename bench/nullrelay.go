package bench

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"runtime"

	"github.com/ferryrelay/ferry/internal/endpoint"
	"github.com/ferryrelay/ferry/internal/sock"
)

// NullConfig says how a NullRelay behaves.
type NullConfig struct {
	// Addr is the address to listen on, IPv4. Zero: 127.0.0.1 with a free port.
	Addr netip.AddrPort
	// Star finds destinations by the rule of stars, see Swap. Default: pairs.
	Star bool
	// Batch is the most datagrams of one call. 0 = sock.DefaultBatch, at most 256.
	Batch int
	// Merge lets datagrams of a batch to one endpoint leave as one message.
	Merge bool
	// ReadBuffer and WriteBuffer of the socket in bytes. 0 = as of sock.Config.
	ReadBuffer, WriteBuffer int
	// Pin ties the relay's thread to processor CPU.
	Pin bool
	CPU int
}

// NullRelay is the socket loop of the engine without an engine: it receives a
// batch, finds each destination by the rule of Swap, and sends the batch. It is
// the least that a relay written on package sock can cost. Run's goroutine owns
// its batches.
type NullRelay struct {
	cfg   NullConfig
	group *sock.Group
}

// NewNullRelay binds the socket. A NullRelay that is never run has to be closed.
// Its loop keeps a processor of Go's scheduler, as the engine's do, if there is
// more than one: see [sock.Config.HoldProcessor]. A process that is tied to one
// core sets GOMAXPROCS to two before.
func NewNullRelay(cfg NullConfig) (*NullRelay, error) {
	if !cfg.Addr.IsValid() {
		cfg.Addr = netip.AddrPortFrom(netip.AddrFrom4([4]byte{127, 0, 0, 1}), 0)
	}
	g, err := sock.Listen(sock.Config{
		Addr: cfg.Addr, Batch: cfg.Batch, ReadBuffer: cfg.ReadBuffer, WriteBuffer: cfg.WriteBuffer,
		DisableGSO: !cfg.Merge, HoldProcessor: runtime.GOMAXPROCS(0) > 1,
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

// Run relays until ctx ends or Close is called, and closes the socket. It locks
// its goroutine to a thread.
func (n *NullRelay) Run(ctx context.Context) error {
	if n.cfg.Pin {
		if err := sock.PinThread(n.cfg.CPU); err != nil {
			return errors.Join(err, n.Close())
		}
	} else {
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
	}
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
