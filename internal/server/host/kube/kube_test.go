package kube

import (
	"context"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func openTest(t *testing.T, handler http.HandlerFunc) *Client {
	t.Helper()
	server := httptest.NewTLSServer(handler)
	t.Cleanup(server.Close)
	host, port, err := net.SplitHostPort(server.Listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	t.Setenv("KUBERNETES_SERVICE_HOST", host)
	t.Setenv("KUBERNETES_SERVICE_PORT", port)
	dir := t.TempDir()
	ca := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw})
	for name, text := range map[string]string{tokenFile: "secret\n", caFile: string(ca)} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	c, err := Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	return c
}

func TestNodeAddresses(t *testing.T) {
	client := openTest(t, func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/api/v1/nodes/node-1" {
			w.WriteHeader(http.StatusNotFound)
			fmt.Fprint(w, `{"kind": "Status", "message": "nodes \"node-2\" not found"}`)
			return
		}
		fmt.Fprint(w, `{"metadata": {"annotations": {"example.org/relay": "2001:db8::9, 203.0.113.9", "example.org/name": "n.example.org"}},
			"status": {"addresses": [{"type": "InternalIP", "address": "10.0.0.5"}, {"type": "ExternalIP", "address": "2001:db8::5"},
			{"type": "ExternalIP", "address": "203.0.113.5"}, {"type": "ExternalDNS", "address": "node-1.example.org"},
			{"type": "Hostname", "address": "unknown.example.org"}]}}`)
	})
	lookup := func(_ context.Context, _, host string) ([]netip.Addr, error) {
		if host == "unknown.example.org" {
			return nil, errors.New("no such host")
		}
		return []netip.Addr{netip.MustParseAddr("::ffff:198.51.100.7")}, nil
	}
	for _, c := range []struct{ node, source, families, want string }{
		{"node-1", "ExternalIP", "ip4", "[203.0.113.5] "},
		{"node-1", "ExternalIP", "ip4 ip6", "[203.0.113.5 2001:db8::5] "},
		{"node-1", "InternalIP", "ip4", "[10.0.0.5] "},
		{"node-1", "ExternalDNS", "ip4", "[198.51.100.7] node-1.example.org"},
		{"node-1", "example.org/relay", "ip6 ip4", "[2001:db8::9 203.0.113.9] "},
		{"node-1", "example.org/name", "ip4", "[198.51.100.7] n.example.org"},
		{"node-1", "InternalIP", "ip4 ip6", "InternalIP of node node-1 has none of ip6, only [10.0.0.5]"},
		{"node-1", "example.org/other", "ip4", "example.org/other of node node-1 has none of ip4, only []"},
		{"node-1", "Hostname", "ip4", "no such host"},
		{"node-2", "ExternalIP", "ip4", `404 Not Found: nodes "node-2" not found`},
	} {
		var families []Family
		for _, f := range strings.Fields(c.families) {
			families = append(families, Family(f))
		}
		found, err := client.NodeAddresses(t.Context(), c.node, c.source, families, lookup)
		got := fmt.Sprint(found.IPs, " ", found.Name)
		if err != nil {
			got = err.Error()
		}
		if got != c.want && (err == nil || !strings.Contains(got, c.want)) {
			t.Errorf("%s of %s: %q, want %q", c.source, c.node, got, c.want)
		}
	}
}

// TestOpenRefuses checks the errors that an operator reads if a pod has no service account.
func TestOpenRefuses(t *testing.T) {
	t.Setenv("KUBERNETES_SERVICE_HOST", "")
	if _, err := Open(t.TempDir()); !errors.Is(err, ErrNotInCluster) {
		t.Error(err)
	}
	c := openTest(t, func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "{") })
	if _, err := c.Secret(t.Context(), SecretName{"a", "b"}); err == nil {
		t.Error("an answer that is no JSON is accepted")
	}
	if err := os.WriteFile(filepath.Join(c.dir, tokenFile), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := Open(c.dir); err == nil || !strings.Contains(err.Error(), "token is empty") {
		t.Error(err)
	}
	if _, err := Open(t.TempDir()); !errors.Is(err, os.ErrNotExist) {
		t.Error(err)
	}
	for _, text := range []string{"", "a", "/a", "a/", "a/b/c"} {
		if _, err := ParseSecretName(text); err == nil {
			t.Errorf("%q is accepted", text)
		}
	}
}
