package benchrig

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"time"

	"github.com/pion/dtls/v3"
	dtlsnet "github.com/pion/dtls/v3/pkg/net"
)

// flightInterval is the time after which pion repeats what was not answered.
const flightInterval = 200 * time.Millisecond

// PSK are the options of a DTLS client with a pre-shared key.
func PSK(identity, key []byte) []dtls.ClientOption {
	return []dtls.ClientOption{
		dtls.WithPSK(func([]byte) ([]byte, error) { return key, nil }), dtls.WithPSKIdentityHint(identity),
		dtls.WithCipherSuites(dtls.TLS_PSK_WITH_AES_128_GCM_SHA256),
	}
}

// anyCertificate are the options for a server whose certificate is not checked.
func anyCertificate() []dtls.ClientOption {
	return []dtls.ClientOption{
		dtls.WithInsecureSkipVerify(true),
		dtls.WithCipherSuites(dtls.TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256, dtls.TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256),
	}
}

// dtlsHandshake is the handshake of an endpoint. Pion makes it, over the very socket that the
// load will use; the records after it are made here, since a connection of pion has goroutines
// and a socket of its own, and a generator that spends its time in them is no measure of a
// relay. Pion wants a connection and the rig has one goroutine, so datagrams go through two
// channels.
type dtlsHandshake struct {
	conn    net.Conn
	up      chan []byte // to the server
	down    chan []byte
	stopped chan struct{}
	both    sync.WaitGroup
}

func newDTLSHandshake(conn net.Conn) *dtlsHandshake {
	h := &dtlsHandshake{conn: conn, up: make(chan []byte, 16), down: make(chan []byte, 16), stopped: make(chan struct{})}
	h.both.Go(func() {
		buf := make([]byte, 8192)
		for {
			n, err := conn.Read(buf)
			if err != nil {
				return
			}
			select {
			case h.up <- append([]byte(nil), buf[:n]...):
			case <-h.stopped:
				return
			}
		}
	})
	h.both.Go(func() {
		for {
			select {
			case pkt := <-h.down:
				if _, err := conn.Write(pkt); err != nil {
					return
				}
			case <-h.stopped:
				return
			}
		}
	})
	return h
}

// receive passes a datagram to pion. One that does not fit is as if lost: pion repeats it.
func (h *dtlsHandshake) receive(pkt []byte) {
	select {
	case h.down <- append([]byte(nil), pkt...):
	default:
	}
}

func (h *dtlsHandshake) close() {
	close(h.stopped)
	_ = h.conn.Close()
	h.both.Wait()
}

func startDTLS(server Server) (*dtlsHandshake, func(context.Context) (*records, error), error) {
	near, far := net.Pipe()
	conn, err := dtls.ClientWithOptions(dtlsnet.PacketConnFromConn(near), net.UDPAddrFromAddrPort(server.Addr),
		append(server.DTLS, dtls.WithFlightInterval(flightInterval))...)
	if err != nil {
		return nil, nil, fmt.Errorf("bench: DTLS: %w", err)
	}
	h := newDTLSHandshake(far)
	return h, func(ctx context.Context) (*records, error) {
		var c *records
		err := conn.HandshakeContext(ctx)
		if err == nil {
			state, ok := conn.ConnectionState()
			if !ok {
				err = errors.New("pion has no state")
			} else {
				c, err = newRecords(&state)
			}
		}
		h.close() // before pion, whose close_notify must not be sent
		_ = conn.Close()
		return c, err
	}, nil
}
