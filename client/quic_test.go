package client_test

import (
	"bytes"
	"context"
	"crypto/tls"
	"io"
	mrand "math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/quic-go/quic-go"

	"github.com/ferryrelay/ferry/alloc"
	"github.com/ferryrelay/ferry/client"
	"github.com/ferryrelay/ferry/engine"
	"github.com/ferryrelay/ferry/internal/test/enginetest"
	"github.com/ferryrelay/ferry/internal/test/testkit"
)

// transferSize is what goes each way, in bytes.
const transferSize = 1 << 20

// TestQUICRunsThroughTheRelay is existing code over a session: quic-go on both
// sides, unchanged, and a MiB each way.
func TestQUICRunsThroughTheRelay(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	relay := enginetest.Start(t, engine.Config{})
	reserved := relay.Host("host", 1)
	host := session(t, relay, reserved)
	joiner := session(t, relay, relay.Joiner("player", reserved.ID))
	if err := host.Bind(ctx); err != nil {
		t.Fatal(err)
	}
	toHost, err := joiner.Connect(ctx)
	if err != nil {
		t.Fatal(err)
	}
	const name = "relay.example.org"
	cert, protocols := testkit.SelfSigned(t), []string{"ferry-test"}
	serverTLS := &tls.Config{Certificates: []tls.Certificate{{Certificate: [][]byte{cert.Raw}, PrivateKey: cert.Key}}, NextProtos: protocols}
	clientTLS := &tls.Config{RootCAs: cert.Pool(), ServerName: name, NextProtos: protocols}
	up, down := noise(1), noise(2)

	server := &quic.Transport{Conn: host.PacketConn()}
	defer server.Close()
	listener, err := server.Listen(serverTLS, nil)
	if err != nil {
		t.Fatal(err)
	}
	served := make(chan error, 1)
	go func() { served <- serveOnce(ctx, listener, up, down) }()

	player := &quic.Transport{Conn: joiner.PacketConn()}
	defer player.Close()
	conn, err := player.Dial(ctx, toHost.RemoteAddr(), clientTLS, nil)
	if err != nil {
		t.Fatal(err)
	}
	stream, err := conn.OpenStreamSync(ctx)
	if err != nil {
		t.Fatal(err)
	}
	if err := exchange(stream, up, down); err != nil {
		t.Errorf("player: %v", err)
	}
	if err := <-served; err != nil {
		t.Errorf("host: %v", err)
	}
	_ = conn.CloseWithError(0, "")
	if st := joiner.Stats(); st.SentBytes < transferSize || st.ReceivedBytes < transferSize {
		t.Errorf("%d bytes sent and %d received through the relay", st.SentBytes, st.ReceivedBytes)
	}
}

// session runs a session of a reservation until the test ends. It is closed
// before the relay is.
func session(t *testing.T, r *enginetest.Relay, res alloc.Reservation) *client.Session {
	t.Helper()
	ticket := client.Ticket{Server: r.Addr(), ID: res.ID, Key: res.Key, ConnectionData: res.ConnectionData[:]}
	if res.HostConnectionData != res.ConnectionData {
		ticket.HostConnectionData = res.HostConnectionData[:]
	}
	s, err := client.New(client.Config{Ticket: ticket})
	if err != nil {
		t.Fatal(err)
	}
	var running sync.WaitGroup
	running.Go(func() {
		if err := s.Run(context.Background()); err != nil {
			t.Errorf("session ended with %v", err)
		}
	})
	t.Cleanup(func() {
		_ = s.Close()
		running.Wait()
	})
	return s
}

func serveOnce(ctx context.Context, l *quic.Listener, want, send []byte) error {
	conn, err := l.Accept(ctx)
	if err != nil {
		return err
	}
	stream, err := conn.AcceptStream(ctx)
	if err != nil {
		return err
	}
	return exchange(stream, send, want)
}

func exchange(stream *quic.Stream, send, want []byte) error {
	sent := make(chan error, 1)
	go func() {
		_, err := stream.Write(send)
		_ = stream.Close()
		sent <- err
	}()
	got, err := io.ReadAll(stream)
	if sendErr := <-sent; err == nil {
		err = sendErr
	}
	if err == nil && !bytes.Equal(got, want) {
		err = io.ErrUnexpectedEOF
	}
	return err
}

// noise returns a MiB that follows from a seed.
func noise(seed byte) []byte {
	b := make([]byte, transferSize)
	_, _ = mrand.NewChaCha8([32]byte{seed}).Read(b)
	return b
}
