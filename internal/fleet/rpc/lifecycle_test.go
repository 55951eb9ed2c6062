package rpc

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"testing"
	"time"

	"github.com/ferryrelay/ferry/alloc"
	"github.com/ferryrelay/ferry/internal/fleet/placement"
	"github.com/ferryrelay/ferry/internal/test/testkit"
	"github.com/ferryrelay/ferry/proto"
)

func TestRunOnce(t *testing.T) {
	t.Parallel()
	x := newTestCluster(t)
	describe := func() error {
		_, err := x.remote().Describe(testContext(t), proto.AllocationID{1})
		return err
	}
	wantUnavailable(t, describe(), ErrNotRunning)
	stopServer, stopDialer := start(t, x.server.Run), start(t, x.dialer.Run)
	testkit.Within(t, testTimeout, "a call comes through", func() bool { return errors.Is(describe(), alloc.ErrNotFound) })
	stopDialer()
	wantUnavailable(t, describe(), ErrNotRunning)
	stopServer()
	if err := x.server.Close(); err != nil {
		t.Error(err)
	}
}

func TestStopWithCallsUnderWay(t *testing.T) {
	t.Parallel()
	x := newTestCluster(t)
	entered := make(chan struct{}, 1)
	x.relay.Before = func(ctx context.Context) {
		entered <- struct{}{}
		<-ctx.Done()
	}
	stopServer := start(t, x.server.Run)
	stopDialer := start(t, x.dialer.Run)
	testkit.Within(t, testTimeout, "it runs", func() bool { x.dialer.mu.Lock(); defer x.dialer.mu.Unlock(); return x.dialer.running })
	result := make(chan error, 1)
	go func() {
		ctx, cancel := context.WithTimeout(context.Background(), maxDeadline)
		defer cancel()
		_, err := x.remote().ReserveHost(ctx, testHost())
		result <- err
	}()
	<-entered
	stopDialer()
	wantUnavailable(t, <-result)
	stopServer()
	if _, live := x.relay.Count(); live != 0 {
		t.Errorf("%d reservations are left", live)
	}
}

func TestIdleRelaysAreRemoved(t *testing.T) {
	t.Parallel()
	x := startTestCluster(t)
	call := func(control string) error {
		_, err := x.dialer.Relay(placement.Node{Relay: testRelay, Control: control}).Describe(testContext(t), proto.AllocationID{1})
		return err
	}
	if err := call(x.server.Addr().String()); !errors.Is(err, alloc.ErrNotFound) {
		t.Fatal(err)
	}
	x.dialer.forget(time.Now().Add(-time.Minute))
	if n := x.dialer.Stats().Relays; n != 1 {
		t.Errorf("%d lines, want the one that was used just now", n)
	}
	x.dialer.mu.Lock()
	for i := range maxRelays - 1 {
		name := relayKey{relay: testRelay, control: fmt.Sprintf("127.0.0.1:%d", i)}
		x.dialer.conns[name] = newRelayConn(name, x.dialer.newTransport(testRelay))
	}
	x.dialer.mu.Unlock()
	wantUnavailable(t, call("192.0.2.1:7779"))
	x.dialer.forget(time.Now())
	if n := x.dialer.Stats().Relays; n != 0 {
		t.Errorf("%d lines", n)
	}
	if err := call(x.server.Addr().String()); !errors.Is(err, alloc.ErrNotFound) {
		t.Fatal(err)
	}
	if st := x.dialer.Stats(); st.Dialed != 2 {
		t.Errorf("%d connections were opened, want 2", st.Dialed)
	}
}

// TestConnectionsAge checks that an old connection is closed with an answer, and that
// the next call opens another one.
func TestConnectionsAge(t *testing.T) {
	t.Parallel()
	x := newTestCluster(t)
	x.server.http.ConnContext = func(ctx context.Context, _ net.Conn) context.Context {
		return context.WithValue(ctx, connSince{}, time.Now().Add(-connAge-time.Second))
	}
	start(t, x.server.Run)
	x.startDialer(t)
	for range 3 {
		if _, err := x.remote().ReserveHost(testContext(t), testHost()); err != nil {
			t.Fatal(err)
		}
	}
	if st := x.dialer.Stats(); st.Dialed != 3 || st.Lost != 0 {
		t.Errorf("counts %+v", st)
	}
}

func TestSlowCallers(t *testing.T) {
	t.Parallel()
	x := newTestCluster(t)
	x.server.http.ReadTimeout, x.server.http.ReadHeaderTimeout = time.Second, time.Second
	start(t, x.server.Run)
	x.startDialer(t)
	const slow = 20
	head := "POST " + pathReserveHost + " HTTP/1.1\r\nHost: relay\r\n" + headerDeadline + ": 10000\r\n" + headerKey + ": "
	var conns []net.Conn
	for i := range slow {
		begin := head[:len(head)/2]
		if i%2 == 0 {
			begin = head + newKey().String() + "\r\nContent-Length: 200\r\n\r\n{"
		}
		conns = append(conns, x.dial(t, begin))
	}
	silent, err := net.Dial("tcp", x.server.Addr().String()) // and one that shakes no hands
	if err != nil {
		t.Fatal(err)
	}
	defer silent.Close()
	for range 10 {
		testkit.Within(t, testTimeout, "a call is served meanwhile", func() bool {
			_, err := x.remote().ReserveHost(testContext(t), testHost())
			return err == nil
		})
	}
	for i, conn := range append(conns, silent) {
		_ = conn.SetReadDeadline(time.Now().Add(testTimeout))
		_, err := io.Copy(io.Discard, conn)
		if timeout, ok := errors.AsType[net.Error](err); ok && timeout.Timeout() {
			t.Errorf("caller %d is still there", i)
		}
	}
	if st := x.server.Stats(); st.Reserved < 10 || st.Reserved > 10+x.dialer.Stats().Lost {
		t.Errorf("%d reservations, want 10", st.Reserved)
	}
}

// dial opens a connection with the certificate of the cluster's API and sends the
// beginning of a request. It tries again if a busy machine exceeded the relay's
// timeout.
func (x *testCluster) dial(t *testing.T, begin string) (conn net.Conn) {
	t.Helper()
	testkit.Within(t, testTimeout, "a connection", func() bool {
		c, err := x.dialer.dial(t.Context(), testRelay, "tcp", x.server.Addr().String())
		if err != nil {
			return false
		}
		t.Cleanup(func() { c.Close() })
		conn = c
		_, err = io.WriteString(c, begin)
		return err == nil
	})
	return conn
}

// TestSlowAnswer checks that a call may take longer than the timeout for reading it.
func TestSlowAnswer(t *testing.T) {
	t.Parallel()
	x := newTestCluster(t)
	const read = 20 * time.Millisecond
	x.server.http.ReadTimeout = read
	x.relay.Before = func(context.Context) { time.Sleep(5 * read) }
	start(t, x.server.Run)
	status, body := 0, ""
	// A busy machine may miss so short a time-out itself.
	testkit.Within(t, testTimeout, "an answer", func() bool {
		status, body = x.post(t, x.apiClient(t), pathReserveHost, keyed(newKey()), testHostOf4)
		return status != 0
	})
	if status != 200 {
		t.Errorf("%d %s", status, body)
	}
}
