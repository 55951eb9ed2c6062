package canary

import (
	"context"
	"crypto/tls"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"strconv"
	"time"

	ws "github.com/coder/websocket"
	pion "github.com/pion/dtls/v3"

	"github.com/ferryrelay/ferry/alloc/api"
	"github.com/ferryrelay/ferry/proto"
)

// conn is the connection of one player. Its methods may be called by one sender and one receiver.
type conn interface {
	send([]byte) error
	// receive waits for a message until a time, and then returns os.ErrDeadlineExceeded.
	receive(until time.Time) ([]byte, error)
	// interrupt ends a receive that waits.
	interrupt()
	Close() error
}

// player is one side of a match.
type player struct {
	conn
	id           proto.AllocationID
	key          proto.Key
	data, ticket []byte
}

// openPlayer opens the connection of an allocation over a transport.
func openPlayer(ctx context.Context, transport string, a api.Allocation, secure *tls.Config) (*player, error) {
	id, err := proto.ParseAllocationID(a.AllocationID)
	if err != nil {
		return nil, err
	}
	p := &player{id: id, key: proto.Key(a.Key), data: a.ConnectionData, ticket: a.HostConnectionData}
	e, ok := a.Endpoint(transport)
	if !ok {
		return nil, fmt.Errorf("the relay offers no endpoint for %s", transport)
	}
	address := net.JoinHostPort(e.Host, strconv.Itoa(e.Port))
	switch transport {
	case "udp":
		var dialer net.Dialer
		c, err := dialer.DialContext(ctx, "udp", address)
		if err != nil {
			return nil, err
		}
		p.conn = packetConn{c}
	case "dtls":
		p.conn, err = openDTLS(ctx, address, p)
	default:
		p.conn, err = openWebSocket(ctx, transport+"://"+address+"/", secure)
	}
	return p, err
}

// packetConn is UDP or DTLS.
type packetConn struct{ net.Conn }

func (c packetConn) send(pkt []byte) error { _, err := c.Write(pkt); return err }

func (c packetConn) interrupt() { _ = c.SetReadDeadline(time.Unix(1, 0)) }

func (c packetConn) receive(until time.Time) ([]byte, error) {
	if err := c.SetReadDeadline(until); err != nil {
		return nil, err
	}
	buf := make([]byte, 2048)
	n, err := c.Read(buf)
	if timeout, ok := errors.AsType[net.Error](err); ok && timeout.Timeout() {
		err = os.ErrDeadlineExceeded
	}
	return buf[:n], err
}

// openDTLS opens a session with the allocation's key.
func openDTLS(ctx context.Context, address string, p *player) (conn, error) {
	to, err := net.ResolveUDPAddr("udp", address)
	if err != nil {
		return nil, err
	}
	socket, err := net.ListenUDP("udp", nil)
	if err != nil {
		return nil, err
	}
	c, err := pion.ClientWithOptions(socket, to,
		pion.WithPSK(func([]byte) ([]byte, error) { return p.key[:], nil }), pion.WithPSKIdentityHint(p.id[:]),
		pion.WithCipherSuites(pion.TLS_PSK_WITH_AES_128_GCM_SHA256))
	if err == nil {
		err = c.HandshakeContext(ctx)
	}
	if err != nil {
		return nil, errors.Join(err, socket.Close())
	}
	return dtlsConn{packetConn{c}, socket}, nil
}

// dtlsConn closes its socket too.
type dtlsConn struct {
	packetConn
	socket net.PacketConn
}

func (c dtlsConn) Close() error { return errors.Join(c.packetConn.Close(), c.socket.Close()) }

// webSocket is a WebSocket. A receive that ends early would close it, so a goroutine reads.
type webSocket struct {
	conn     *ws.Conn
	messages chan []byte
	failed   chan error // the error of the reader, once
	stop     context.CancelFunc
	wake     chan struct{}
}

// socketQueue is how many messages may wait, more than a match has in flight.
const socketQueue = 64

func openWebSocket(ctx context.Context, url string, secure *tls.Config) (conn, error) {
	c, _, err := ws.Dial(ctx, url, &ws.DialOptions{HTTPClient: &http.Client{Transport: &http.Transport{TLSClientConfig: secure}}})
	if err != nil {
		return nil, err
	}
	reading, stop := context.WithCancel(context.Background())
	w := &webSocket{conn: c, messages: make(chan []byte, socketQueue), failed: make(chan error, 1), stop: stop, wake: make(chan struct{}, 1)}
	go func() {
		for {
			_, pkt, err := c.Read(reading)
			if err != nil {
				w.failed <- err
				return
			}
			select {
			case w.messages <- pkt:
			case <-reading.Done():
			}
		}
	}()
	return w, nil
}

// sendWithin is how long a WebSocket may take for a message.
const sendWithin = 5 * time.Second

func (w *webSocket) send(pkt []byte) error {
	ctx, cancel := context.WithTimeout(context.Background(), sendWithin)
	defer cancel()
	return w.conn.Write(ctx, ws.MessageBinary, pkt)
}

func (w *webSocket) interrupt() {
	select {
	case w.wake <- struct{}{}:
	default:
	}
}

func (w *webSocket) receive(until time.Time) ([]byte, error) {
	select {
	case pkt := <-w.messages:
		return pkt, nil
	case err := <-w.failed:
		w.failed <- err
		return nil, err
	case <-w.wake:
	case <-time.After(time.Until(until)):
	}
	return nil, os.ErrDeadlineExceeded
}

// Close ends the connection and waits for its reader.
func (w *webSocket) Close() error {
	w.stop()
	err := w.conn.CloseNow()
	<-w.failed
	return err
}

// repeatAfter is when a message that was not answered is repeated, as clients do.
const repeatAfter = 500 * time.Millisecond

var errNoAnswer = errors.New("the relay does not answer")

// ask sends a message until an answer of a type comes, or ctx ends. An ERROR or REJECTED is an
// error.
func (p *player) ask(ctx context.Context, pkt []byte, want proto.Type) error {
	for ctx.Err() == nil {
		if err := p.conn.send(pkt); err != nil {
			return err
		}
		for until := time.Now().Add(repeatAfter); ; {
			answer, err := p.conn.receive(until)
			if errors.Is(err, os.ErrDeadlineExceeded) {
				break
			}
			if err != nil {
				return err
			}
			switch t, _ := proto.ParseType(answer); t {
			case want:
				return nil
			case proto.TypeError:
				m, err := proto.ParseError(answer)
				if err == nil {
					err = fmt.Errorf("ERROR %d", m.Code)
				}
				return err
			case proto.TypeRejected:
				return errors.New("REJECTED")
			}
		}
	}
	return errNoAnswer
}

func (p *player) bind(ctx context.Context) error {
	var signer proto.Signer
	return p.ask(ctx, signer.Append(nil, proto.Bind{ConnectionData: p.data}, &p.key), proto.TypeBindReceived)
}

func (p *player) connect(ctx context.Context) error {
	return p.ask(ctx, proto.ConnectRequest{ID: p.id, ConnectionData: p.ticket}.Append(nil), proto.TypeAccepted)
}

// echo returns each payload to its sender, until ctx ends and the connection is interrupted.
func (p *player) echo(ctx context.Context) error {
	for ctx.Err() == nil {
		pkt, err := p.conn.receive(time.Now().Add(lostAfter))
		if errors.Is(err, os.ErrDeadlineExceeded) {
			continue
		}
		if err != nil {
			return err
		}
		if m, err := proto.ParseRelay(pkt); err == nil {
			if err := p.conn.send(proto.Relay{From: p.id, To: m.From, Payload: m.Payload}.Append(nil)); err != nil {
				return err
			}
		}
	}
	return nil
}

// awaitEcho waits for the payload with a number from the other side, and reports whether it
// came in time. Late echoes of earlier ones are skipped.
func (p *player) awaitEcho(ctx context.Context, from proto.AllocationID, number uint32, until time.Time) (bool, error) {
	for ctx.Err() == nil {
		pkt, err := p.conn.receive(until)
		if errors.Is(err, os.ErrDeadlineExceeded) {
			return false, nil
		}
		if err != nil {
			return false, err
		}
		m, err := proto.ParseRelay(pkt)
		if err == nil && m.From == from && len(m.Payload) >= 4 && binary.BigEndian.Uint32(m.Payload) == number {
			return true, nil
		}
	}
	return false, ctx.Err()
}
