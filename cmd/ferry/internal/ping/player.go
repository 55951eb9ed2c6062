package ping

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"time"

	ws "github.com/coder/websocket"
	pion "github.com/pion/dtls/v3"

	"github.com/ferryrelay/ferry/alloc/api"
	"github.com/ferryrelay/ferry/client"
	"github.com/ferryrelay/ferry/proto"
)

// answerTimeout is how long opening a connection may take, and the answer to a request with its
// repetitions.
const answerTimeout = 5 * time.Second

var (
	errNoAnswer = errors.New("the relay does not answer")
	errNoRelay  = errors.New("it answers with something else than a relay does: another service has the address")
)

// openPlayer returns a running session over a transport. The caller closes it.
func openPlayer(ctx context.Context, transport, address string, a api.Allocation, secure *tls.Config) (*client.Session, error) {
	ctx, cancel := context.WithTimeout(ctx, answerTimeout)
	defer cancel()
	id, err := proto.ParseAllocationID(a.AllocationID)
	if err != nil {
		return nil, err
	}
	key := proto.Key(a.Key)
	var c client.Conn
	switch transport {
	case "udp":
		c, err = openUDP(ctx, address)
	case "dtls":
		c, err = openDTLS(ctx, address, id, key)
	default:
		c, err = openWebSocket(ctx, transport+"://"+address+"/", secure)
	}
	if err != nil && ctx.Err() != nil {
		return nil, errNoAnswer
	} else if err != nil {
		return nil, err
	}
	s, err := client.New(client.Config{
		Ticket: client.Ticket{
			Server: relayAddr, ID: id, Key: key, ConnectionData: a.ConnectionData, HostConnectionData: a.HostConnectionData,
		},
		Conn: c, BindTimeout: answerTimeout, ConnectTimeout: answerTimeout,
	})
	if err != nil {
		_ = c.Close() // The reason is that of New.
		return nil, err
	}
	go s.Run(context.Background()) // until Close
	return s, nil
}

// bind waits for the relay's answer to BIND.
func bind(ctx context.Context, s *client.Session) error {
	err := s.Bind(ctx)
	if errors.Is(err, client.ErrBindTimeout) && s.Stats().Malformed > 0 {
		return errNoRelay
	}
	return err
}

// relayAddr stands for the relay in a session, whose connection leads nowhere else.
var relayAddr = netip.AddrPortFrom(netip.IPv6Loopback(), 1)

// packetConn is UDP or DTLS as a [client.Conn].
type packetConn struct {
	net.Conn
	final bool // after an error nothing more is received
}

func (c packetConn) ReadFromUDPAddrPort(b []byte) (int, netip.AddrPort, error) {
	n, err := c.Read(b)
	if err != nil && c.final {
		err = closedError(err)
	}
	return n, relayAddr, err
}

func (c packetConn) WriteToUDPAddrPort(b []byte, _ netip.AddrPort) (int, error) { return c.Write(b) }

// closedError makes an error one after which a session reads no more.
func closedError(err error) error { return fmt.Errorf("%w: %w", err, net.ErrClosed) }

func openUDP(ctx context.Context, address string) (client.Conn, error) {
	var dialer net.Dialer
	c, err := dialer.DialContext(ctx, "udp", address)
	return packetConn{Conn: c}, err
}

// openDTLS opens a session with the allocation's key.
func openDTLS(ctx context.Context, address string, id proto.AllocationID, key proto.Key) (client.Conn, error) {
	to, err := net.ResolveUDPAddr("udp", address)
	if err != nil {
		return nil, err
	}
	c, err := pion.DialWithOptions("udp", to,
		pion.WithPSK(func([]byte) ([]byte, error) { return key[:], nil }), pion.WithPSKIdentityHint(id[:]),
		pion.WithCipherSuites(pion.TLS_PSK_WITH_AES_128_GCM_SHA256))
	if err != nil {
		return nil, err
	}
	if err := c.HandshakeContext(ctx); err != nil {
		_ = c.Close() // A handshake that failed has closed it, mostly.
		return nil, err
	}
	return packetConn{c, true}, nil
}

// webSocket is a WebSocket as a [client.Conn].
type webSocket struct{ *ws.Conn }

func openWebSocket(ctx context.Context, url string, secure *tls.Config) (client.Conn, error) {
	c, _, err := ws.Dial(ctx, url, &ws.DialOptions{HTTPClient: &http.Client{Transport: &http.Transport{TLSClientConfig: secure}}})
	return webSocket{c}, err
}

func (w webSocket) ReadFromUDPAddrPort(b []byte) (int, netip.AddrPort, error) {
	_, pkt, err := w.Read(context.Background())
	if err != nil {
		err = closedError(err)
	}
	return copy(b, pkt), relayAddr, err
}

func (w webSocket) WriteToUDPAddrPort(b []byte, _ netip.AddrPort) (int, error) {
	ctx, cancel := context.WithTimeout(context.Background(), answerTimeout)
	defer cancel()
	return len(b), w.Write(ctx, ws.MessageBinary, b)
}

func (w webSocket) LocalAddr() net.Addr { return client.Addr{} }

func (w webSocket) Close() error { return w.CloseNow() }
