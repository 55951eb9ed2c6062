package dtls

import (
	"context"
	"net"
	"sync"
	"testing"

	"github.com/ferryrelay/ferry/internal/endpoint"
)

// loop is a small relay on a UDP socket: it echoes the messages in records.
type loop struct {
	*Records
	conn *net.UDPConn
}

func newLoop(t *testing.T, c Config) *loop {
	t.Helper()
	c.PSK = testKey
	r, err := New(c)
	if err != nil {
		t.Fatal(err)
	}
	conn, err := net.ListenUDP("udp4", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1)})
	if err != nil {
		t.Fatal(err)
	}
	l := &loop{Records: r, conn: conn}
	ctx, stop := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	wg.Go(func() { _ = r.Run(ctx, l.send) })
	wg.Go(l.serve)
	t.Cleanup(func() {
		stop()
		conn.Close()
		wg.Wait()
	})
	return l
}

func (l *loop) addr() *net.UDPAddr { return l.conn.LocalAddr().(*net.UDPAddr) }

// send drops datagrams that the kernel does not accept, as a network may.
func (l *loop) send(to endpoint.Endpoint, pkt []byte) { l.conn.WriteToUDPAddrPort(pkt, to.AddrPort()) }

func (l *loop) serve() {
	in, out := make([]byte, 2048), make([]byte, 0, 2048)
	for {
		n, addr, err := l.conn.ReadFromUDPAddrPort(in)
		if err != nil {
			return
		}
		s, msg := l.Open(endpoint.UDP(addr, 0, 0), in[:n])
		if msg == nil {
			continue
		}
		if b, to, ok := l.Seal(out, s.Serial, msg); ok {
			l.send(to, b)
		}
	}
}
