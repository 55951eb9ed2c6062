package websocket

import (
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"syscall"
	"testing"
	"time"
)

// BenchmarkSend sends messages to one client as fast as possible and reports the
// processor time per message. The client reads bytes from TCP without decrypting
// them, so almost all of that time is the server's.
func BenchmarkSend(b *testing.B) {
	for _, kind := range []struct {
		name, headers string
		server        func(http.Handler) *httptest.Server
	}{
		{"ws", "", httptest.NewServer}, {"wss", "", httptest.NewTLSServer},
		{"wss to a browser", "Origin: https://game.example\r\n", httptest.NewTLSServer},
	} {
		for _, size := range []int{100, 1270} {
			b.Run(fmt.Sprintf("%s/%d", kind.name, size), func(b *testing.B) { benchmarkSend(b, size, kind.headers, kind.server) })
		}
	}
}

func benchmarkSend(b *testing.B, size int, headers string, server func(http.Handler) *httptest.Server) {
	r := startOn(b, Config{QueueMessages: 4096, QueueBytes: 8 << 20, WriteTimeout: time.Minute, PingInterval: time.Hour}, server)
	conn, _, _ := r.dialRaw(headers)
	io.WriteString(conn, "\x82\x81\x00\x00\x00\x00a")
	serial := r.in.next(b).serial
	tcp := conn
	if inner := innerConn(conn); inner != nil {
		tcp = inner
	}
	tcp.(*net.TCPConn).SetReadBuffer(1 << 20)
	tcp.SetReadDeadline(time.Time{})
	go func() {
		buf := make([]byte, 256<<10)
		for {
			if _, err := tcp.Read(buf); err != nil {
				return
			}
		}
	}()
	pkt := make([]byte, size)
	b.SetBytes(int64(size))
	b.ResetTimer()
	before := processorTime(b)
	for range b.N {
		for !r.Send(serial, pkt) {
			time.Sleep(200 * time.Microsecond) // The queue is full.
		}
	}
	for r.counts.sent.Load() != uint64(b.N) {
		time.Sleep(50 * time.Microsecond)
	}
	b.ReportMetric(float64((processorTime(b)-before).Nanoseconds())/float64(b.N), "cpu-ns/op")
}

func processorTime(b *testing.B) time.Duration {
	b.Helper()
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		b.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
