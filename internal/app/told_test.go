package app

import (
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"net"
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/ferryrelay/ferry/alloc/api"
	"github.com/ferryrelay/ferry/internal/config"
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
	v4, v6 := listeners[0].Addr, fmt.Sprintf("[2001:db8::1]:%d", listeners[1].Addr.Port())
	want := fmt.Sprintf("udp:%v udp:%v dtls:%v dtls:%v ws:%v", v4, v6, v4, v6, listeners[2].Addr)
	var got []string
	for _, e := range a.ServerEndpoints {
		got = append(got, e.ConnectionType+":"+net.JoinHostPort(e.Host, fmt.Sprint(e.Port)))
	}
	if strings.Join(got, " ") != want || a.Region != "moon" {
		t.Errorf("players are told %v in %q, want %s", got, a.Region, want)
	}
	code, err := r.caller("").JoinCode(t.Context(), a.AllocationID)
	if err != nil {
		t.Fatal(err)
	}
	joiner, err := r.caller("").Join(t.Context(), code)
	if err != nil || !slices.Equal(joiner.ServerEndpoints, a.ServerEndpoints) {
		t.Errorf("a joiner is told %v (%v)", joiner.ServerEndpoints, err)
	}
	regions, err := r.caller("").Regions(t.Context())
	if err != nil || len(regions) != 1 || regions[0].QoSAddress != v4.String() {
		t.Errorf("regions %v (%v)", regions, err)
	}
}

func TestHTTPS(t *testing.T) {
	var pool *x509.CertPool
	c := local()
	c.TLSCert, c.TLSKey, pool = newCertificate(t)
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
