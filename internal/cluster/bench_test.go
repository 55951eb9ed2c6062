package cluster

import (
	"crypto/tls"
	"testing"
	"time"

	"github.com/ferryrelay/ferry/alloc"
	"github.com/ferryrelay/ferry/proto"
)

// benchHouse is a running house whose two sides talk HTTP/1.1, or HTTP/2, which
// only the benchmarks do, to compare.
func benchHouse(b *testing.B, h2 bool) *house {
	b.Helper()
	x := newHouse(b)
	if h2 {
		x.speakHTTP2()
	}
	start(b, x.server.Run)
	x.startDialer(b)
	return x
}

// speakHTTP2 changes both sides of a house in which nothing runs yet.
func (x *house) speakHTTP2() {
	x.server.http.Protocols.SetHTTP2(true)
	x.server.http.TLSConfig = &tls.Config{GetConfigForClient: func(*tls.ClientHelloInfo) (*tls.Config, error) {
		c := x.server.creds.current.Load().server.Clone()
		c.NextProtos = []string{"h2"}
		return c, nil
	}}
	name := relayKey{relay: testRelay, control: x.server.Addr().String()}
	transport := x.dialer.newTransport(testRelay)
	transport.Protocols.SetHTTP2(true)
	transport.DialTLSContext = nil
	transport.TLSClientConfig = x.dialer.creds.client(testRelay)
	l := newRelayConn(name, transport)
	l.slots = make(chan struct{}, 10000)
	for range cap(l.slots) {
		l.slots <- struct{}{}
	}
	l.used = time.Now()
	x.dialer.conns[name] = l
}

// BenchmarkReserveHost is a whole call, from one goroutine to another process'
// worth of server and back, over mutual TLS that is there already.
func BenchmarkReserveHost(b *testing.B) {
	for _, h2 := range []bool{false, true} {
		name := "http1"
		if h2 {
			name = "http2"
		}
		b.Run(name, func(b *testing.B) {
			remote := benchHouse(b, h2).remote()
			b.ReportAllocs()
			for b.Loop() {
				if _, err := remote.ReserveHost(b.Context(), testHost()); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

// BenchmarkHandshake is what a connection costs both sides together.
func BenchmarkHandshake(b *testing.B) {
	x := benchHouse(b, false)
	for b.Loop() {
		x.dialer.closeIdle()
		if _, err := x.remote().Describe(b.Context(), proto.AllocationID{1}); err == nil {
			b.Fatal("described")
		}
	}
	if n := x.dialer.Stats().Dialed; n < uint64(b.N) {
		b.Fatalf("%d connections for %d calls", n, b.N)
	}
}

// BenchmarkAnswer is what the memory of a reservation costs when it is asked for
// again.
func BenchmarkAnswer(b *testing.B) {
	res := alloc.Reservation{Endpoints: fakeWays}
	b.ReportAllocs()
	for b.Loop() {
		_ = answerOf(&res)
	}
}
