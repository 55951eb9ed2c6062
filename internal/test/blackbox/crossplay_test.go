package blackbox

import (
	"bytes"
	"context"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"encoding/base64"
	"fmt"
	"net"
	"net/http"
	"testing"
	"time"

	"github.com/ferryrelay/ferry/alloc/api"
	"github.com/ferryrelay/ferry/client"
	"github.com/ferryrelay/ferry/internal/test/testkit"
	"github.com/ferryrelay/ferry/proto"
)

const testName = "relay.example.org"

type identity struct {
	name      string // by which clients verify it
	cert, key string
	pool      *x509.CertPool
	pin       string // of its key, as Chromium takes it
}

func newIdentity(t *testing.T) identity {
	t.Helper()
	c := testkit.SelfSigned(t)
	i := identity{name: testName, pool: c.Pool()}
	i.cert, i.key = c.WriteFiles(t, t.TempDir())
	sum := sha256.Sum256(c.RawSubjectPublicKeyInfo)
	i.pin = base64.StdEncoding.EncodeToString(sum[:])
	return i
}

// browse returns a client of HTTP that trusts the identity, finds every name on
// this machine, and calls from an address of it.
func (i identity) browse(from string) *http.Client {
	dialer := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(from)}}
	return &http.Client{Timeout: 20 * time.Second, Transport: &http.Transport{
		DisableKeepAlives: true, TLSClientConfig: &tls.Config{RootCAs: i.pool},
		DialContext: func(ctx context.Context, network, addr string) (net.Conn, error) {
			_, port, err := net.SplitHostPort(addr)
			if err != nil {
				return nil, err
			}
			return dialer.DialContext(ctx, network, net.JoinHostPort("127.0.0.1", port))
		},
	}}
}

// converse sends n texts to a host, each until it comes back.
func converse(t *testing.T, conn net.Conn, n int) {
	t.Helper()
	for i := range n {
		if text := fmt.Sprint("text ", i); !echoed(t, conn, []byte(text)) {
			t.Fatalf("%q did not come back", text)
		}
	}
}

func echoed(t *testing.T, conn net.Conn, content []byte) bool {
	t.Helper()
	buf := make([]byte, 2048)
	for range 100 {
		if _, err := conn.Write(content); err != nil {
			t.Fatal(err)
		}
		for until := time.Now().Add(200 * time.Millisecond); ; {
			_ = conn.SetReadDeadline(until)
			n, err := conn.Read(buf)
			if err != nil {
				break // Time is over.
			}
			if bytes.Equal(buf[:n], content) {
				return true
			}
		}
	}
	return false
}

func overUDP(t *testing.T, calls *api.Client, code string) (*client.Peer, proto.AllocationID) {
	t.Helper()
	ticket, err := client.Redeem(t.Context(), calls, code)
	if err != nil {
		t.Fatal(err)
	}
	session, err := client.New(client.Config{Ticket: ticket})
	if err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- session.Run(context.Background()) }()
	t.Cleanup(func() {
		session.Close()
		<-ended
	})
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	host, err := session.Connect(ctx)
	if err != nil {
		t.Fatal(err)
	}
	return host, ticket.ID
}
