package secure

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"sync"
	"time"

	"github.com/pion/dtls/v3"
	dtlsnet "github.com/pion/dtls/v3/pkg/net"

	"github.com/ferryrelay/ferry/internal/benchrig"
)

const (
	// within is how long a handshake may take.
	within = 10 * time.Second
	// repeatAfter is when pion repeats what was not answered.
	repeatAfter = 200 * time.Millisecond
)

// PSK are the options of a client with a pre-shared key.
func PSK(identity, key []byte) []dtls.ClientOption {
	return []dtls.ClientOption{
		dtls.WithPSK(func([]byte) ([]byte, error) { return key, nil }), dtls.WithPSKIdentityHint(identity),
		dtls.WithCipherSuites(dtls.TLS_PSK_WITH_AES_128_GCM_SHA256),
	}
}

// AnyCertificate are the options of a client that takes every certificate: the
// server is our own and on this machine.
func AnyCertificate() []dtls.ClientOption {
	return []dtls.ClientOption{
		dtls.WithInsecureSkipVerify(true), dtls.WithCipherSuites(dtls.TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256),
	}
}

// Handshake makes a session of an endpoint with a server, and sets the endpoint's
// Cipher. What comes to other endpoints meanwhile goes to others.
func Handshake(ctx context.Context, r *benchrig.Rig, ep int, server netip.AddrPort, opts []dtls.ClientOption, others benchrig.Handler) error {
	ctx, cancel := context.WithTimeout(ctx, within)
	defer cancel()
	near, far := net.Pipe()
	conn, err := dtls.ClientWithOptions(dtlsnet.PacketConnFromConn(near), net.UDPAddrFromAddrPort(server),
		append(opts, dtls.WithFlightInterval(repeatAfter))...)
	if err != nil {
		return fmt.Errorf("secure: %w", err)
	}
	b := newBridge(far)
	done := make(chan error, 1)
	go func() { done <- conn.HandshakeContext(ctx) }()
	err = b.carry(ctx, r, ep, server, done, others)
	var c *Cipher
	if err == nil {
		state, ok := conn.ConnectionState()
		if !ok {
			err = errors.New("pion has no state")
		} else {
			c, err = fromState(&state)
		}
	}
	b.close() // before pion, whose close_notify must not be sent
	_ = conn.Close()
	if err != nil {
		return fmt.Errorf("secure: handshake of %v with %v: %w", r.Endpoints[ep].Addr, server, err)
	}
	r.Endpoints[ep].Cipher = c
	return nil
}

// bridge is between pion, which wants a connection of its own, and the rig, which
// has one goroutine: datagrams go through two channels.
type bridge struct {
	conn    net.Conn
	up      chan []byte // to the server
	down    chan []byte
	stopped chan struct{}
	both    sync.WaitGroup
}

func newBridge(conn net.Conn) *bridge {
	b := &bridge{conn: conn, up: make(chan []byte, 16), down: make(chan []byte, 16), stopped: make(chan struct{})}
	b.both.Go(func() {
		buf := make([]byte, 8192)
		for {
			n, err := conn.Read(buf)
			if err != nil {
				return
			}
			select {
			case b.up <- append([]byte(nil), buf[:n]...):
			case <-b.stopped:
				return
			}
		}
	})
	b.both.Go(func() {
		for {
			select {
			case pkt := <-b.down:
				if _, err := conn.Write(pkt); err != nil {
					return
				}
			case <-b.stopped:
				return
			}
		}
	})
	return b
}

// carry moves datagrams until the handshake is done.
func (b *bridge) carry(ctx context.Context, r *benchrig.Rig, ep int, server netip.AddrPort, done <-chan error, others benchrig.Handler) error {
	over := false
	idle := func(time.Time) error {
		for {
			select {
			case err := <-done:
				over = true
				return err
			case pkt := <-b.up:
				if err := r.SendTo(ep, server, pkt); err != nil {
					return err
				}
			default:
				return nil
			}
		}
	}
	return r.Await(ctx, func() bool { return over }, idle, func(to int, from netip.AddrPort, pkt []byte) {
		switch {
		case to != ep:
			others(to, from, pkt)
		case from == server:
			select {
			case b.down <- append([]byte(nil), pkt...):
			default: // as if lost: pion repeats it
			}
		}
	})
}

func (b *bridge) close() {
	close(b.stopped)
	_ = b.conn.Close()
	b.both.Wait()
}
