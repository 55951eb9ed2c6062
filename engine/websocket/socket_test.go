package websocket

import (
	"crypto/tls"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/ferryrelay/ferry/internal/test/testkit"
)

// writeRecorder is a listener whose connections record the size of each write to
// TCP. A write blocks while mu is locked.
type writeRecorder struct {
	net.Listener
	mu      sync.Mutex // guards sizes
	blocked atomic.Int32
	sizes   []int
}

func (g *writeRecorder) Accept() (net.Conn, error) {
	conn, err := g.Listener.Accept()
	return &recordedConn{conn, g}, err
}

type recordedConn struct {
	net.Conn
	recorder *writeRecorder
}

func (c *recordedConn) Write(p []byte) (int, error) {
	c.recorder.blocked.Add(1)
	c.recorder.mu.Lock()
	defer c.recorder.mu.Unlock()
	c.recorder.blocked.Add(-1)
	c.recorder.sizes = append(c.recorder.sizes, len(p))
	return c.Conn.Write(p)
}

// TestWriteSizes: queued messages leave in writes of up to 16 KiB; with TLS, those to other clients
// than browsers of up to 1,400 bytes. No frame is split.
func TestWriteSizes(t *testing.T) {
	t.Parallel()
	const header, record = 4, 5 + 1 + 16 // TLS 1.3: record header, content type, tag
	for _, test := range []struct {
		secure, browser bool
		size, count     int
		want, remaining int // bytes of each write but the last, and of the last
	}{
		{false, false, 1270, 16, 12 * (header + 1270), 4 * (header + 1270)},
		{true, true, 1270, 16, 12*(header+1270) + record, 4*(header+1270) + record},
		{true, false, 1270, 16, header + 1270 + record, header + 1270 + record},
		{true, false, 696, 7, 2*(header+696) + record, header + 696 + record}, // two fill 1,400 exactly
		{true, false, 697, 7, header + 697 + record, header + 697 + record},
		{true, false, 1396, 3, header + 1396 + record, header + 1396 + record},
		{true, false, maxMessage, 3, header + maxMessage + record, header + maxMessage + record}, // a larger frame has its own record
	} {
		t.Run(fmt.Sprintf("%v/%v/%d", test.secure, test.browser, test.size), func(t *testing.T) {
			g := new(writeRecorder)
			r := startOn(t, Config{maxOutgoing: maxMessage}, func(h http.Handler) *httptest.Server {
				srv := httptest.NewUnstartedServer(h)
				g.Listener, srv.Listener = srv.Listener, g
				// Go's first records to a client are smaller, by its dynamic sizing.
				srv.TLS = &tls.Config{DynamicRecordSizingDisabled: test.browser}
				if test.secure {
					srv.StartTLS()
				} else {
					srv.Start()
				}
				return srv
			})
			headers := http.Header{}
			if test.browser {
				headers.Set("Origin", "https://game.example")
			}
			c := r.dial(headers)
			c.SetReadLimit(maxMessage)
			serial := r.firstMessage(c)
			g.mu.Lock()
			r.Send(serial, []byte("first"))
			testkit.Eventually(t, "the writer is blocked", func() bool { return g.blocked.Load() == 1 })
			for range test.count {
				if !r.Send(serial, make([]byte, test.size)) {
					t.Error("a message was not queued")
				}
			}
			g.sizes = nil
			g.mu.Unlock()
			for range test.count + 1 {
				read(t, c)
			}
			g.mu.Lock()
			defer g.mu.Unlock()
			got := g.sizes[1:] // The first is the message that blocked.
			last := len(got) - 1
			if got[last] != test.remaining || slices.ContainsFunc(got[:last], func(n int) bool { return n != test.want }) {
				t.Errorf("writes of %v bytes", got)
			}
		})
	}
}
