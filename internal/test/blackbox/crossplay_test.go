package blackbox

import (
	"bytes"
	"context"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"encoding/base64"
	"encoding/pem"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/ferryrelay/ferry/alloc/api"
	"github.com/ferryrelay/ferry/client"
	"github.com/ferryrelay/ferry/proto"
)

// testName is the name in the certificate of package httptest.
const testName = "example.com"

// identity is a certificate in files, and how to trust it.
type identity struct {
	cert, key string
	pool      *x509.CertPool
	pin       string // of its key, as Chromium takes it
}

// newIdentity writes the certificate of package httptest, which is for testName.
func newIdentity(t *testing.T) identity {
	t.Helper()
	srv := httptest.NewTLSServer(nil)
	defer srv.Close()
	pair := srv.TLS.Certificates[0]
	key, err := x509.MarshalPKCS8PrivateKey(pair.PrivateKey)
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	i := identity{cert: filepath.Join(dir, "cert.pem"), key: filepath.Join(dir, "key.pem"), pool: x509.NewCertPool()}
	i.pool.AddCert(srv.Certificate())
	sum := sha256.Sum256(srv.Certificate().RawSubjectPublicKeyInfo)
	i.pin = base64.StdEncoding.EncodeToString(sum[:])
	for name, block := range map[string]*pem.Block{
		i.cert: {Type: "CERTIFICATE", Bytes: pair.Certificate[0]}, i.key: {Type: "PRIVATE KEY", Bytes: key},
	} {
		if err := os.WriteFile(name, pem.EncodeToMemory(block), 0o600); err != nil {
			t.Fatal(err)
		}
	}
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

// echoed reports whether content that is sent to a host comes back.
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

// overUDP joins with the Go client.
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
