package dtls

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/ferryrelay/ferry/internal/test/testkit"
	"github.com/ferryrelay/ferry/internal/test/wiretest"
	"github.com/ferryrelay/ferry/proto"
	pion "github.com/pion/dtls/v3"
)

type tap struct {
	net.PacketConn
	mu     sync.Mutex
	all    [][]byte                       // what was sent, in order
	change func(n int, b []byte) [][]byte // nil sends as it is
}

func newTap(t *testing.T, local string) *tap {
	t.Helper()
	conn, err := net.ListenPacket("udp4", local)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	return &tap{PacketConn: conn}
}

func (c *tap) WriteTo(b []byte, to net.Addr) (int, error) {
	c.mu.Lock()
	n := len(c.all)
	c.all = append(c.all, bytes.Clone(b))
	c.mu.Unlock()
	all := [][]byte{b}
	if c.change != nil {
		all = c.change(n, b)
	}
	for _, x := range all {
		if _, err := c.PacketConn.WriteTo(x, to); err != nil {
			return 0, err
		}
	}
	return len(b), nil
}

func pionConnect(t *testing.T, c net.PacketConn, l *loop, identity []byte, key proto.Key, limit time.Duration,
	opts ...pion.ClientOption) (*pion.Conn, error) {
	t.Helper()
	opts = append([]pion.ClientOption{pion.WithFlightInterval(100 * time.Millisecond)}, opts...)
	conn, err := wiretest.DTLSClient(c, l.addr(), identity, key[:], opts...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	return conn, conn.HandshakeContext(ctx)
}

func mustPion(t *testing.T, c net.PacketConn, l *loop, n int, opts ...pion.ClientOption) *pion.Conn {
	t.Helper()
	id := testID(n)
	key := testKey(id)
	conn, err := pionConnect(t, c, l, id[:], key, 20*time.Second, opts...)
	if err != nil {
		t.Fatalf("%v: %v", err, l.stats())
	}
	return conn
}

func pionEcho(t *testing.T, conn *pion.Conn, msg string) {
	t.Helper()
	got := make([]byte, 2048)
	for range 40 {
		if _, err := conn.Write([]byte(msg)); err != nil {
			t.Fatal(err)
		}
		conn.SetReadDeadline(time.Now().Add(500 * time.Millisecond))
		if n, err := conn.Read(got); err == nil && string(got[:n]) == msg {
			return
		}
	}
	t.Fatal("no echo")
}

func TestPion(t *testing.T) {
	t.Parallel()
	id := testID(5)
	key := testKey(id)
	for _, c := range []struct {
		name     string
		identity []byte
		direct   int
		opts     []pion.ClientOption
	}{
		{"raw identity", id[:], 0, nil},
		{"text identity", []byte(id.String()), 0, nil},
		{"cookie", id[:], -1, nil},
		{"no extended master secret", id[:], 0, []pion.ClientOption{pion.WithExtendedMasterSecret(pion.DisableExtendedMasterSecret)}},
		{"all its suites", id[:], 0, []pion.ClientOption{pion.WithCipherSuites(
			pion.TLS_PSK_WITH_AES_128_CCM, pion.TLS_ECDHE_PSK_WITH_AES_128_CBC_SHA256, pion.TLS_PSK_WITH_AES_128_GCM_SHA256)}},
		{"server name", id[:], 0, []pion.ClientOption{pion.WithServerName("relay")}},
	} {
		t.Run(c.name, func(t *testing.T) {
			l := newLoop(t, Config{direct: c.direct})
			conn, err := pionConnect(t, newTap(t, "127.0.0.1:0"), l, c.identity, key, 20*time.Second, c.opts...)
			if err != nil {
				t.Fatal(err)
			}
			for _, size := range []int{1, 20, 295, 1200, 1400} {
				pionEcho(t, conn, strings.Repeat("m", size))
			}
			if st := l.stats(); (st.Counts[eventCookieSent] > 0) != (c.direct < 0) {
				t.Errorf("%d cookies", st.Counts[eventCookieSent])
			}
		})
	}
}

func TestPionLosses(t *testing.T) {
	t.Parallel()
	for n := range 3 {
		for name, change := range map[string]func(b []byte) [][]byte{
			"lost":    func([]byte) [][]byte { return nil },
			"doubled": func(b []byte) [][]byte { return [][]byte{b, b} },
		} {
			t.Run(name, func(t *testing.T) {
				l := newLoop(t, Config{direct: -1})
				c := newTap(t, "127.0.0.1:0")
				c.change = func(i int, b []byte) [][]byte {
					if i == n {
						return change(b)
					}
					return [][]byte{b}
				}
				pionEcho(t, mustPion(t, c, l, 6), "through")
			})
		}
	}
}

func openssl(t *testing.T, l *loop, key proto.Key, cipher string) *wiretest.OpenSSL {
	t.Helper()
	return wiretest.StartOpenSSL(t, l.addr(), testID(8).String(), key[:], cipher)
}

func TestOpenSSL(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		cipher string
		direct int
	}{
		{"PSK-AES128-GCM-SHA256", 0},
		{"PSK-AES128-GCM-SHA256", -1},
		{"PSK-AES256-GCM-SHA384", 0},
		{"PSK-AES256-GCM-SHA384", -1},
		{"PSK", 0},
	} {
		t.Run(fmt.Sprintf("%s direct %d", c.cipher, c.direct), func(t *testing.T) {
			l := newLoop(t, Config{direct: c.direct})
			client := openssl(t, l, testKey(testID(8)), c.cipher)
			testkit.Eventually(t, "a session", func() bool { return l.stats().Counts[eventEstablished] == 1 })
			for i := range 3 {
				msg := fmt.Sprintf("message %d of a player", i)
				if _, err := io.WriteString(client.In, msg+"\n"); err != nil {
					t.Fatal(err)
				}
				testkit.Eventually(t, "an echo", client.HasReceived(msg))
			}
			client.In.Close()
			testkit.Eventually(t, "close_notify", func() bool { return l.stats().Counts[eventClosed] == 1 })
			st := l.stats()
			if (st.Counts[eventCookieSent] > 0) != (c.direct < 0) {
				t.Errorf("%d cookies", st.Counts[eventCookieSent])
			}
		})
	}
}
