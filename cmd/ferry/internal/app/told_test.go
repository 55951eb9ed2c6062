package app

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"math/big"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/ferryrelay/ferry/alloc/api"
	"github.com/ferryrelay/ferry/cmd/ferry/internal/config"
)

// TestTold: what players are told, with ports that were free ones.
func TestTold(t *testing.T) {
	c := local()
	c.UDP = []config.Addr{addr("127.0.0.1:0"), addr("[::1]:0")}
	c.Advertise = []config.Host{host(t, "2001:db8::1")}
	c.Region = "moon"
	r := start(t, options(c, Dev))
	a, err := r.caller("").Allocate(t.Context(), api.AllocateRequest{MaxConnections: 1})
	if err != nil {
		t.Fatal(err)
	}
	listeners := r.Listeners()
	want := fmt.Sprintf("%v [2001:db8::1]:%d", listeners[0].Addr, listeners[1].Addr.Port())
	var got []string
	for _, e := range a.ServerEndpoints {
		got = append(got, net.JoinHostPort(e.Host, fmt.Sprint(e.Port)))
	}
	if strings.Join(got, " ") != want || a.Region != "moon" {
		t.Errorf("players are told %v in %q, want %s", got, a.Region, want)
	}
	code, err := r.caller("").JoinCode(t.Context(), a.AllocationID)
	if err != nil {
		t.Fatal(err)
	}
	joiner, err := r.caller("").Join(t.Context(), code)
	if err != nil || len(joiner.ServerEndpoints) != 2 || joiner.ServerEndpoints[1] != a.ServerEndpoints[1] {
		t.Errorf("a joiner is told %v (%v)", joiner.ServerEndpoints, err)
	}
}

// certificate writes a certificate for 127.0.0.1 that signs itself.
func certificate(t *testing.T) (cert, key string, pool *x509.CertPool) {
	t.Helper()
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), NotAfter: time.Now().Add(time.Hour),
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, IsCA: true, BasicConstraintsValid: true,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, private.Public(), private)
	if err != nil {
		t.Fatal(err)
	}
	secret, err := x509.MarshalPKCS8PrivateKey(private)
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	cert, key = filepath.Join(dir, "cert.pem"), filepath.Join(dir, "key.pem")
	parsed, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	pool = x509.NewCertPool()
	pool.AddCert(parsed)
	for name, block := range map[string]*pem.Block{
		cert: {Type: "CERTIFICATE", Bytes: der}, key: {Type: "PRIVATE KEY", Bytes: secret},
	} {
		if err := os.WriteFile(name, pem.EncodeToMemory(block), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return cert, key, pool
}

func TestHTTPS(t *testing.T) {
	var pool *x509.CertPool
	c := local()
	c.TLSCert, c.TLSKey, pool = certificate(t)
	r := start(t, options(c, Serve))
	if !strings.HasPrefix(r.URL(), "https://127.0.0.1:") || r.Listeners()[1].Kind != "https" {
		t.Errorf("the API is at %s", r.URL())
	}
	caller := r.caller(secret)
	caller.HTTP.Transport = &http.Transport{
		DisableKeepAlives: true, TLSClientConfig: &tls.Config{RootCAs: pool}, ForceAttemptHTTP2: true,
	}
	if _, err := caller.Regions(t.Context()); err != nil {
		t.Error(err)
	}
	public := c
	public.HTTP = addr("0.0.0.0:0")
	if err := Check(public, Serve); err != nil {
		t.Errorf("HTTPS on a public address: %v", err)
	}
	if status, _ := fetch(t, "http"+strings.TrimPrefix(r.URL(), "https")); status != http.StatusBadRequest {
		t.Errorf("plain HTTP on the port of HTTPS: %d", status)
	}
}
