package ping

import (
	"context"
	"crypto/tls"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/http"
	"time"

	ws "github.com/coder/websocket"
	pion "github.com/pion/dtls/v3"

	"github.com/ferryrelay/ferry/alloc/api"
	"github.com/ferryrelay/ferry/proto"
)

// conn carries the messages of one player. One goroutine reads and one writes.
type conn interface {
	// read waits for a message, until Close.
	read() ([]byte, error)
	write([]byte) error
	Close() error
}

// player is one side of a match.
type player struct {
	conn
	id           proto.AllocationID
	key          proto.Key
	data, ticket []byte

	malformed bool // an answer to the last request was

	received chan []byte   // closed by the reader at its end
	readErr  error         // of the reader, set before it closes received
	closed   chan struct{} // closed by close
}

// receiveQueue is how many messages may wait, more than a match has in flight.
const receiveQueue = 64

func openPlayer(ctx context.Context, transport, address string, a api.Allocation, secure *tls.Config) (*player, error) {
	ctx, cancel := context.WithTimeout(ctx, answerTimeout)
	defer cancel()
	id, err := proto.ParseAllocationID(a.AllocationID)
	if err != nil {
		return nil, err
	}
	p := &player{id: id, key: proto.Key(a.Key), data: a.ConnectionData, ticket: a.HostConnectionData}
	var c conn
	switch transport {
	case "udp":
		c, err = openUDP(ctx, address)
	case "dtls":
		c, err = openDTLS(ctx, address, p)
	default:
		c, err = openWebSocket(ctx, transport+"://"+address+"/", secure)
	}
	if err != nil && ctx.Err() != nil {
		return nil, errNoAnswer
	} else if err != nil {
		return nil, err
	}
	p.start(c)
	return p, nil
}

// start runs the reader of a connection, until close.
func (p *player) start(c conn) {
	p.conn, p.received, p.closed = c, make(chan []byte, receiveQueue), make(chan struct{})
	go func() {
		defer close(p.received)
		for {
			pkt, err := c.read()
			if err != nil {
				p.readErr = err
				return
			}
			select {
			case p.received <- pkt:
			case <-p.closed:
				return
			}
		}
	}()
}

// close ends the connection and waits for its reader.
func (p *player) close() {
	close(p.closed)
	_ = p.conn.Close() // The match is over.
	for range p.received {
	}
}

func (p *player) receive(ctx context.Context) ([]byte, error) {
	select {
	case pkt, ok := <-p.received:
		if !ok {
			return nil, p.readErr
		}
		return pkt, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// packetConn is UDP or DTLS.
type packetConn struct{ net.Conn }

func (c packetConn) write(pkt []byte) error { _, err := c.Write(pkt); return err }

func (c packetConn) read() ([]byte, error) {
	buf := make([]byte, 2048)
	n, err := c.Read(buf)
	return buf[:n], err
}

func openUDP(ctx context.Context, address string) (conn, error) {
	var dialer net.Dialer
	c, err := dialer.DialContext(ctx, "udp", address)
	return packetConn{c}, err
}

// openDTLS opens a session with the allocation's key.
func openDTLS(ctx context.Context, address string, p *player) (conn, error) {
	to, err := net.ResolveUDPAddr("udp", address)
	if err != nil {
		return nil, err
	}
	c, err := pion.DialWithOptions("udp", to,
		pion.WithPSK(func([]byte) ([]byte, error) { return p.key[:], nil }), pion.WithPSKIdentityHint(p.id[:]),
		pion.WithCipherSuites(pion.TLS_PSK_WITH_AES_128_GCM_SHA256))
	if err != nil {
		return nil, err
	}
	if err := c.HandshakeContext(ctx); err != nil {
		_ = c.Close() // A handshake that failed has closed it, mostly.
		return nil, err
	}
	return packetConn{c}, nil
}

type webSocket struct{ *ws.Conn }

func openWebSocket(ctx context.Context, url string, secure *tls.Config) (conn, error) {
	c, _, err := ws.Dial(ctx, url, &ws.DialOptions{HTTPClient: &http.Client{Transport: &http.Transport{TLSClientConfig: secure}}})
	return webSocket{c}, err
}

func (w webSocket) write(pkt []byte) error {
	ctx, cancel := context.WithTimeout(context.Background(), answerTimeout)
	defer cancel()
	return w.Write(ctx, ws.MessageBinary, pkt)
}

func (w webSocket) read() ([]byte, error) {
	_, pkt, err := w.Read(context.Background())
	return pkt, err
}

func (w webSocket) Close() error { return w.CloseNow() }

const (
	// answerTimeout is how long opening a connection may take, and the answer to a request with its
	// repetitions.
	answerTimeout = 5 * time.Second
	// repeatAfter is when a message that was not answered is repeated, as clients do.
	repeatAfter = 500 * time.Millisecond
)

var (
	errNoAnswer = errors.New("the relay does not answer")
	errNoRelay  = errors.New("it answers with something else than a relay does: another service has the address")
)

// ask sends a message until an answer of a type comes. An ERROR or REJECTED is an error.
func (p *player) ask(ctx context.Context, pkt []byte, want proto.Type) error {
	p.malformed = false
	ctx, cancel := context.WithTimeout(ctx, answerTimeout)
	defer cancel()
	for ctx.Err() == nil {
		if err := p.write(pkt); err != nil {
			return err
		}
		if answered, err := p.awaitAnswer(ctx, want); answered || err != nil {
			return err
		}
	}
	if p.malformed {
		return errNoRelay
	}
	return errNoAnswer
}

// awaitAnswer waits for an answer of a type until the request has to be repeated.
func (p *player) awaitAnswer(ctx context.Context, want proto.Type) (answered bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, repeatAfter)
	defer cancel()
	for {
		answer, err := p.receive(ctx)
		if ctx.Err() != nil {
			return false, nil
		}
		if err != nil {
			return false, err
		}
		t, err := proto.ParseType(answer)
		p.malformed = p.malformed || err != nil
		switch t {
		case want:
			return true, nil
		case proto.TypeError:
			m, err := proto.ParseError(answer)
			if err == nil {
				err = fmt.Errorf("ERROR %d", m.Code)
			}
			return false, err
		case proto.TypeRejected:
			return false, errors.New("REJECTED")
		}
	}
}

func (p *player) bind(ctx context.Context) error {
	var signer proto.Signer
	return p.ask(ctx, signer.Append(nil, proto.Bind{ConnectionData: p.data}, &p.key), proto.TypeBindReceived)
}

func (p *player) connect(ctx context.Context) error {
	return p.ask(ctx, proto.ConnectRequest{ID: p.id, ConnectionData: p.ticket}.Append(nil), proto.TypeAccepted)
}

// echo returns each payload to its sender, until ctx ends or the connection does.
func (p *player) echo(ctx context.Context) {
	for {
		pkt, err := p.receive(ctx)
		if err != nil {
			return
		}
		if m, err := proto.ParseRelay(pkt); err == nil {
			if p.write(proto.Relay{From: p.id, To: m.From, Payload: m.Payload}.Append(nil)) != nil {
				return
			}
		}
	}
}

// awaitEcho waits for the payload with a number from the other side. It skips late echoes of
// earlier ones.
func (p *player) awaitEcho(ctx context.Context, from proto.AllocationID, number uint32) error {
	for {
		pkt, err := p.receive(ctx)
		if err != nil {
			return err
		}
		m, err := proto.ParseRelay(pkt)
		if err == nil && m.From == from && len(m.Payload) >= 4 && binary.BigEndian.Uint32(m.Payload) == number {
			return nil
		}
	}
}
