// Package wiretest sends and receives single messages of the relay protocol over UDP, DTLS and WebSocket, for
// tests that need no client with its rules: that is [enginetest.UTP].
package wiretest

import (
	"bytes"
	"context"
	"net"
	"net/netip"
	"testing"
	"time"

	ws "github.com/coder/websocket"
	pion "github.com/pion/dtls/v3"

	"github.com/ferryrelay/ferry/internal/test/enginetest"
	"github.com/ferryrelay/ferry/internal/test/testkit"
	"github.com/ferryrelay/ferry/proto"
)

// Conn carries messages between a test and a relay, over a connection that ends with the test.
type Conn struct {
	Send  func(message []byte) error
	Close func() error  // ends it without a message of the relay protocol
	Got   <-chan []byte // what has arrived; closed when the connection has ended
	Err   error         // why it has ended; valid when Got is closed

	t testing.TB
}

// New returns a connection that sends, receives and ends by these functions. receive fails after end.
func New(t testing.TB, send func([]byte) error, receive func() ([]byte, error), end func() error) *Conn {
	got := make(chan []byte, 64)
	c := &Conn{Send: send, Got: got, t: t}
	done := make(chan struct{})
	c.Close = func() error {
		err := end() // It may have ended.
		<-done
		return err
	}
	go func() {
		defer close(done)
		defer close(got)
		for {
			m, err := receive()
			if err != nil {
				c.Err = err
				return
			}
			select {
			case got <- m:
			default: // No test reads: it has failed.
			}
		}
	}()
	t.Cleanup(func() { _ = c.Close() })
	return c
}

// Datagrams sends each message as one datagram.
func Datagrams(t testing.TB, conn net.Conn) *Conn {
	return datagrams(t, conn, conn.Close)
}

func datagrams(t testing.TB, conn net.Conn, end func() error) *Conn {
	return New(t, func(m []byte) error {
		_, err := conn.Write(m)
		return err
	}, func() ([]byte, error) {
		buf := make([]byte, 2048)
		n, err := conn.Read(buf)
		return buf[:n], err
	}, end)
}

// DTLSClient returns pion's client on a socket, before its handshake. identity is the id of an allocation,
// and key its key.
func DTLSClient(socket net.PacketConn, relay net.Addr, identity, key []byte, options ...pion.ClientOption) (*pion.Conn, error) {
	return pion.ClientWithOptions(socket, relay, append([]pion.ClientOption{
		pion.WithPSK(func([]byte) ([]byte, error) { return key, nil }), pion.WithPSKIdentityHint(identity),
		pion.WithCipherSuites(pion.TLS_PSK_WITH_AES_128_GCM_SHA256),
	}, options...)...)
}

// DTLS does a handshake with a relay as the client of an allocation. Close closes the socket, as the end
// of a process does.
func DTLS(t testing.TB, socket net.PacketConn, relay netip.AddrPort, id [16]byte, key []byte) *Conn {
	t.Helper()
	conn, err := DTLSClient(socket, net.UDPAddrFromAddrPort(relay), id[:], key, pion.WithFlightInterval(200*time.Millisecond))
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	if err := conn.HandshakeContext(ctx); err != nil {
		t.Fatal(err)
	}
	return datagrams(t, conn, socket.Close)
}

// WebSocket sends each message as one binary message.
func WebSocket(t testing.TB, conn *ws.Conn) *Conn {
	return New(t, func(m []byte) error { return conn.Write(context.Background(), ws.MessageBinary, m) },
		func() ([]byte, error) {
			_, m, err := conn.Read(context.Background())
			return m, err
		}, conn.CloseNow)
}

// Ask sends a message each 200 ms until one arrives that fits, for [testkit.WaitLimit] at the most.
func (c *Conn) Ask(message []byte, fits func([]byte) bool) {
	c.t.Helper()
	for end := time.Now().Add(testkit.WaitLimit); time.Now().Before(end); {
		if err := c.Send(message); err != nil {
			c.t.Fatal(err)
		}
		if c.Receives(200*time.Millisecond, fits) {
			return
		}
	}
	c.t.Fatalf("%x has no answer", message[:min(len(message), 20)])
}

// Receives reads messages until one fits, and reports whether one did within a time.
func (c *Conn) Receives(within time.Duration, fits func([]byte) bool) bool {
	ctx, cancel := context.WithTimeout(context.Background(), within)
	defer cancel()
	return c.Await(ctx, fits) == nil
}

// Await reads messages until one fits. It fails with the error of ctx, or with that of the connection.
func (c *Conn) Await(ctx context.Context, fits func([]byte) bool) error {
	for {
		select {
		case m, open := <-c.Got:
			if !open {
				return c.Err
			}
			if fits(m) {
				return nil
			}
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// Bind binds the allocation of these credentials.
func (c *Conn) Bind(cred enginetest.Credentials, nonce uint16) {
	c.t.Helper()
	c.Ask(enginetest.SignedBind(cred, nonce), Equals(proto.BindReceived{}.Append(nil)))
}

// Equals returns a condition for [Conn.Ask]: the message is want.
func Equals(want []byte) func([]byte) bool {
	return func(got []byte) bool { return bytes.Equal(got, want) }
}

// HasType returns a condition for [Conn.Ask]: the message is of a type.
func HasType(want proto.Type) func([]byte) bool {
	return func(got []byte) bool { kind, err := proto.ParseType(got); return err == nil && kind == want }
}
