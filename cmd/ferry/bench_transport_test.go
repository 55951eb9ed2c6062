package main

import (
	"crypto/x509"
	"encoding/pem"
	"io"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/ferryrelay/ferry/bench/report"
	"github.com/ferryrelay/ferry/internal/benchrig"
	"github.com/ferryrelay/ferry/internal/test/testkit"
)

func writeCertificate(t *testing.T) (cert, key string) {
	t.Helper()
	server := httptest.NewTLSServer(http.NotFoundHandler())
	defer server.Close()
	pair := server.TLS.Certificates[0]
	secret, err := x509.MarshalPKCS8PrivateKey(pair.PrivateKey)
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	for name, block := range map[string]*pem.Block{
		"cert": {Type: "CERTIFICATE", Bytes: pair.Certificate[0]}, "key": {Type: "PRIVATE KEY", Bytes: secret},
	} {
		if err := os.WriteFile(filepath.Join(dir, name), pem.EncodeToMemory(block), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return filepath.Join(dir, "cert"), filepath.Join(dir, "key")
}

func familyRelay(t *testing.T, args ...string) (p *ferryProcess, at map[string]string) {
	t.Helper()
	p = launch(t, nil, append([]string{
		"dev", "--udp", "127.0.0.1:0,[::1]:0", "--http", "[::]:0", "--admin", "127.0.0.1:0", "--log-level", "error",
	}, args...)...)
	lines := p.untilReady()
	at = addresses(lines[len(lines)-1])
	at["http"] = strings.Replace(at["http"], "[::]", "127.0.0.1", 1)
	return p, at
}

// TestBenchTURN: the binary measures coturn, hides the password, and says what to do about a coturn
// that forbids peers on loopback.
func TestBenchTURN(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "run.json")
	for _, permits := range []bool{true, false} {
		var more []string
		if permits {
			more = append(more, "--allow-loopback-peers")
		}
		port, log := testkit.Coturn(t, more...)
		args := shortly("--dialect", "turn", "--target", netip.AddrPortFrom(netip.IPv6Loopback(), port).String(), "--turn-user", "u:p",
			"--matches", "5", "--json", file)
		var code int
		var stdout, stderr string
		testkit.Eventually(t, "coturn answers", func() bool {
			code, stdout, stderr = ferry(t.Context(), args...)
			return !strings.Contains(stderr, "the port is closed")
		})
		if !permits {
			if code != exitNoVerdict || !strings.Contains(stderr, "coturn permits none on loopback without --allow-loopback-peers") {
				t.Errorf("code %d: %s\n%s", code, stderr, log)
			}
			continue
		}
		run, err := report.ReadFile(file)
		if !ran(code, stderr) || err != nil || run[0].Delivered == 0 || run[0].Dialect != "turn" || run[0].WireBytes != run[0].Load.Payload+4 ||
			strings.Contains(stdout, "u:p") || !slices.Contains(run[0].Command, "--turn-user=[hidden]") {
			t.Errorf("code %d, %+v, %v: %s%s", code, run, err, stdout, stderr)
		}
	}
}

// TestBenchTransports: by each transport and each family what is offered arrives, and the relay's
// own counts say that it was that transport.
func TestBenchTransports(t *testing.T) {
	t.Parallel()
	cert, key := writeCertificate(t)
	for _, c := range []struct{ transport, family string }{
		{"udp", "ipv4"}, {"udp", "ipv6"}, {"dtls", "ipv4"}, {"dtls", "ipv6"}, {"ws", "ipv4"}, {"ws", "ipv6"}, {"wss", "ipv4"}, {"wss", "ipv6"},
	} {
		t.Run(c.transport+" "+c.family, func(t *testing.T) {
			t.Parallel()
			file := filepath.Join(t.TempDir(), "run.json")
			var secure []string
			if c.transport == "wss" {
				secure = []string{"--tls-cert", cert, "--tls-key", key, "--advertise-name", "example.com"}
			}
			server, at := familyRelay(t, secure...)
			admin := at["admin"]
			args := []string{"--transport", c.transport, "--api", at["http"], "--family", c.family}
			if c.transport == "wss" { // The name is not in the DNS; the family is that of --relay.
				host := map[string]string{"ipv4": "127.0.0.1", "ipv6": "[::1]"}[c.family]
				port := netip.MustParseAddrPort(strings.TrimPrefix(at["http"], "https://")).Port()
				args = []string{
					"--transport", "wss", "--api", "https://127.0.0.1:" + strconv.Itoa(int(port)), "--ca", cert, "--relay",
					host + ":" + strconv.Itoa(int(port)),
				}
			}
			args = append(args, "--admin", admin, "--server-pid", strconv.Itoa(server.Process.Pid), "--drain", "3s", "--json", file, "--quiet")
			code, stdout, stderr := ferry(t.Context(), shortly(args...)...)
			if !ran(code, stderr) {
				t.Fatalf("code %d: %s", code, stderr)
			}
			counts := metricsOf(t, admin)
			runs, err := report.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			r := runs[0]
			if r.Load.Transport != c.transport || r.Load.Family != c.family ||
				!strings.Contains(stdout, "pairs, "+c.transport+" over "+c.family) {
				t.Errorf("load %+v, report:\n%s", r.Load, stdout)
			}
			if r.Offered != 500 || r.Delivered+r.Unsent != r.Offered || r.Delivered == 0 || r.Lost+r.Blocked+r.Duplicated+r.Corrupt+
				r.Misdelivered != 0 || len(r.Errors) != 0 {
				t.Errorf("%d of %d delivered, %d not sent, drops and errors in:\n%s", r.Delivered, r.Offered, r.Unsent, stdout)
			}
			if r.Server.NoSocket || r.Server.PID == 0 {
				t.Errorf("the relay's process: %+v", r.Server)
			}
			if tcp := benchrig.IsTCP(r.Load.Transport); (r.Connections != nil) != tcp || tcp && r.Connections.Ended != 0 {
				t.Errorf("connections %+v", r.Connections)
			}
			const endpoints = 10
			for name, by := range map[string]bool{
				`ferry_dtls_events_total{event="established"}`: c.transport == "dtls",
				"ferry_websocket_opened_total":                 benchrig.IsTCP(r.Load.Transport),
			} {
				want := 0.0
				if by {
					want = endpoints
				}
				if got := counts[name]; got != want {
					t.Errorf("%s: %v, want %v", name, got, want)
				}
			}
			text := &strings.Builder{}
			if err := report.GoBench(text, r); err != nil || !strings.Contains(text.String(), "/transport="+c.transport+"/family="+c.family+"/") {
				t.Errorf("gobench: %v, %s", err, text)
			}
		})
	}
}

// TestBenchIPv6Only: a relay that has no address of IPv4 is measured over IPv6 without a flag, and refused with one for IPv4.
func TestBenchIPv6Only(t *testing.T) {
	t.Parallel()
	p := launch(t, nil, "dev", "--udp", "[::1]:0", "--http", "[::1]:0", "--admin", "127.0.0.1:0", "--log-level", "error")
	lines := p.untilReady()
	api := addresses(lines[len(lines)-1])["http"]
	for _, transport := range []string{"udp", "ws"} {
		code, stdout, stderr := ferry(t.Context(), shortly("--api", api, "--transport", transport, "--quiet")...)
		if !ran(code, stderr) || !strings.Contains(stdout, transport+" over ipv6") {
			t.Errorf("%s: code %d: %s\n%s", transport, code, stderr, stdout)
		}
	}
	code, _, stderr := ferry(t.Context(), shortly("--api", api, "--family", "ipv4", "--quiet")...)
	if code != exitBenchUsage || !strings.Contains(stderr, "the relay lists endpoints for udp over ipv6 only") {
		t.Errorf("code %d: %s", code, stderr)
	}
}

func metricsOf(t *testing.T, admin string) map[string]float64 {
	t.Helper()
	res, err := http.Get(admin + "/metrics")
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	text, err := io.ReadAll(res.Body)
	if err != nil {
		t.Fatal(err)
	}
	samples := map[string]float64{}
	for line := range strings.Lines(string(text)) {
		line = strings.TrimSpace(line)
		at := strings.LastIndexByte(line, ' ')
		if v, err := strconv.ParseFloat(line[at+1:], 64); err == nil && at > 0 {
			samples[line[:at]] = v
		}
	}
	return samples
}
