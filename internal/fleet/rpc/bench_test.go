package rpc

import (
	"crypto/tls"
	"testing"
	"time"

	"github.com/ferryrelay/ferry/alloc"
	"github.com/ferryrelay/ferry/proto"
)

// newBenchCluster starts a test cluster over HTTP/1.1, or over HTTP/2, which only
// benchmarks use, for comparison.
func newBenchCluster(b *testing.B, h2 bool) *testCluster {
	b.Helper()
	x := newTestCluster(b)
	if h2 {
		x.speakHTTP2()
	}
	start(b, x.server.Run)
	x.startDialer(b)
	return x
}

func (x *testCluster) speakHTTP2() {
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
	l.used = time.Now()
	x.dialer.conns[name] = l
}

func BenchmarkReserveHost(b *testing.B) {
	for _, h2 := range []bool{false, true} {
		name := "http1"
		if h2 {
			name = "http2"
		}
		b.Run(name, func(b *testing.B) {
			remote := newBenchCluster(b, h2).remote()
			b.ReportAllocs()
			for b.Loop() {
				if _, err := remote.ReserveHost(b.Context(), testHost()); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

func BenchmarkHandshake(b *testing.B) {
	x := newBenchCluster(b, false)
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

// BenchmarkAnswer measures a repeated call that is served from the attempt table.
func BenchmarkAnswer(b *testing.B) {
	res := alloc.Reservation{Endpoints: newFakeRelay().Endpoints}
	b.ReportAllocs()
	for b.Loop() {
		_ = answerOf(&res)
	}
}
