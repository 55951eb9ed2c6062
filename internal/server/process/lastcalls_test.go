package process

import (
	"bufio"
	"bytes"
	"io"
	"net"
	"net/http"
	"sync"
	"testing"
	"time"

	"github.com/ferryrelay/ferry/internal/test/testkit"
)

// callOnce calls the API on a connection that stays open, by a call that no client or proxy repeats after it was
// sent, and reports whether the answer closes the connection.
func callOnce(c *http.Client, url string) (closes bool, err error) {
	body := struct{ io.Reader }{bytes.NewReader([]byte(`{"maxConnections":1}`))} // no GetBody
	r, err := http.NewRequest(http.MethodPost, url+"/v1/allocate", body)
	if err != nil {
		return false, err
	}
	r.Header.Set("Authorization", "Bearer "+secret)
	a, err := c.Do(r)
	if err != nil {
		return false, err
	}
	defer a.Body.Close()
	_, err = io.Copy(io.Discard, a.Body)
	return a.Close, err
}

// TestLastCalls: a process that stops answers a call on each connection that was open, and says that it is the last
// one, so that a proxy's calls are not lost with connections that close under them.
func TestLastCalls(t *testing.T) {
	t.Parallel()
	r := startChanged(t, options(local(), Serve), func(a *App) { a.api.web.Linger = testkit.WaitLimit })
	const clients = 8
	called := make(chan struct{}, clients)
	var all sync.WaitGroup
	for range clients {
		all.Go(func() {
			c := &http.Client{Transport: new(http.Transport), Timeout: testkit.WaitLimit}
			defer c.CloseIdleConnections()
			for first := true; ; first = false {
				closes, err := callOnce(c, r.URL())
				if first {
					called <- struct{}{}
				}
				if err != nil {
					t.Errorf("a call was lost: %v", err)
				}
				if closes || err != nil {
					return
				}
			}
		})
	}
	for range clients {
		<-called
	}
	r.cancel()
	all.Wait()
	if err := <-r.ended; err != nil { // Else it would wait for WaitLimit.
		t.Error(err)
	}
}

// TestIdleConnections: connections that bring no call hold the end up for a bounded time, and a new one is served meanwhile.
func TestIdleConnections(t *testing.T) {
	t.Parallel()
	linger := make(chan time.Duration, 1)
	r := startChanged(t, options(local(), Serve), func(a *App) {
		linger <- a.api.web.Linger
		a.api.web.Linger = testkit.WaitLimit
	})
	if l := <-linger; l != lingerFor {
		t.Errorf("it lingers for %v", l)
	}
	idle := keepOpen(t, r)
	r.cancel()
	c := &http.Client{Transport: new(http.Transport), Timeout: testkit.WaitLimit}
	testkit.Eventually(t, "it stops", func() bool {
		closes, err := callOnce(c, r.URL())
		return err != nil || closes
	})
	if closes, err := callOnce(c, r.URL()); err != nil || !closes {
		t.Errorf("a new connection: %v, it closes: %v", err, closes)
	}
	select {
	case err := <-r.ended:
		t.Errorf("it ended with an open connection: %v", err)
	default:
	}
	idle.Close()
	if err := <-r.ended; err != nil {
		t.Error(err)
	}

	quick := startChanged(t, options(local(), Serve), func(a *App) { a.api.web.Linger = time.Millisecond })
	keepOpen(t, quick)
	quick.cancel()
	if err := <-quick.ended; err != nil {
		t.Error(err)
	}
}

// keepOpen returns a connection to the API that has brought a call.
func keepOpen(t *testing.T, r running) net.Conn {
	t.Helper()
	c, err := net.Dial("tcp", r.apiAddr().String())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	if _, err := io.WriteString(c, "GET /v1/regions HTTP/1.1\r\nHost: a\r\n\r\n"); err != nil {
		t.Fatal(err)
	}
	answer, err := http.ReadResponse(bufio.NewReader(c), nil)
	if err != nil || answer.Close {
		t.Fatalf("%+v, %v", answer, err)
	}
	return c
}
