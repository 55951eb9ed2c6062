// Package acmetest runs pebble, Let's Encrypt's certificate authority for tests, which connects to
// the addresses of a test as the real one does to those of the Internet.
package acmetest

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/binary"
	"encoding/json"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"testing"

	"golang.org/x/net/dns/dnsmessage"

	"github.com/ferryrelay/ferry/internal/test/testkit"
)

// Authority is a pebble, which is not running before [Authority.Start]. For it, each name leads to 127.0.0.1.
type Authority struct {
	// URL is that of its directory, and Certificate the one of the directory itself, in File.
	URL, File   string
	Certificate testkit.Certificate
	// HTTPPort and TLSPort are where it expects HTTP-01 and TLS-ALPN-01 in place of ports 80 and 443. A test may
	// change them before Start.
	HTTPPort, TLSPort int

	t              testing.TB
	program        string
	key            string // the file
	listen, manage string
	resolver       string
	cmd            *exec.Cmd
	log            testkit.LogBuffer
}

// module is the directory of the module that has pebble.
func module() string {
	_, self, _, _ := runtime.Caller(0)
	return filepath.Join(filepath.Dir(self), "pebble")
}

// build builds pebble, once, and returns its path.
var build = sync.OnceValues(func() (path string, err error) {
	out, err := exec.Command("go", "-C", module(), "tool", "-n", "pebble").Output()
	return strings.TrimSpace(string(out)), err
})

// New returns an authority with ports of its own. Without pebble, which go downloads, the test ends: as failed in
// CI, elsewhere as skipped.
func New(t testing.TB) *Authority {
	t.Helper()
	testkit.Input(t, filepath.Join(module(), "go.mod"), filepath.Join(module(), "go.sum"))
	path, err := build()
	if err != nil {
		testkit.Missing(t, "pebble, which is built by go -C "+module()+" tool -n pebble ("+err.Error()+")", "none")
	}
	port := func() int {
		n, _ := strconv.Atoi(testkit.FreePort(t))
		return n
	}
	a := &Authority{
		Certificate: testkit.SelfSigned(t), HTTPPort: port(), TLSPort: port(), t: t, program: path,
		listen: "127.0.0.1:" + testkit.FreePort(t), manage: "127.0.0.1:" + testkit.FreePort(t), resolver: resolve(t),
	}
	a.URL = "https://" + a.listen + "/dir"
	a.File, a.key = a.Certificate.WriteFiles(t, t.TempDir())
	t.Cleanup(a.Stop)
	return a
}

// Start starts it, with no account and a new root, and waits until it answers.
func (a *Authority) Start() {
	a.t.Helper()
	type profile struct{ ValidityPeriod int }
	settings, err := json.Marshal(map[string]any{"pebble": map[string]any{
		"listenAddress": a.listen, "managementListenAddress": a.manage, "certificate": a.File, "privateKey": a.key,
		"httpPort": a.HTTPPort, "tlsPort": a.TLSPort, "keyAlgorithm": "ecdsa",
		"profiles": map[string]profile{"default": {90 * 86400}, "shortlived": {160 * 3600}},
	}})
	if err != nil {
		a.t.Fatal(err)
	}
	file := filepath.Join(filepath.Dir(a.File), "pebble.json")
	if err := os.WriteFile(file, settings, 0o600); err != nil {
		a.t.Fatal(err)
	}
	a.cmd = exec.Command(a.program, "-config", file, "-dnsserver", a.resolver)
	a.cmd.Env = append(os.Environ(), "PEBBLE_VA_NOSLEEP=1", "PEBBLE_WFE_NONCEREJECT=0", "PEBBLE_AUTHZREUSE=0")
	a.cmd.Stdout, a.cmd.Stderr = &a.log, &a.log
	if err := a.cmd.Start(); err != nil {
		a.t.Fatal(err)
	}
	if !testkit.Poll(testkit.WaitLimit, func() bool { _, err := a.roots(); return err == nil }) {
		a.t.Fatalf("pebble does not answer:\n%s", a.log.String())
	}
}

// Stop ends it.
func (a *Authority) Stop() {
	if a.cmd != nil {
		_ = a.cmd.Process.Kill()
		_ = a.cmd.Wait()
		a.cmd = nil
	}
}

// Log returns what it has written.
func (a *Authority) Log() string { return a.log.String() }

// Roots returns what clients of its certificates trust, in PEM.
func (a *Authority) Roots() (pem []byte, pool *x509.CertPool) {
	a.t.Helper()
	pem, err := a.roots()
	if err != nil {
		a.t.Fatal(err)
	}
	pool = x509.NewCertPool()
	pool.AppendCertsFromPEM(pem)
	return pem, pool
}

func (a *Authority) roots() ([]byte, error) {
	transport := &http.Transport{DisableKeepAlives: true, TLSClientConfig: &tls.Config{RootCAs: a.Certificate.Pool()}}
	r, err := http.NewRequestWithContext(context.Background(), http.MethodGet, "https://"+a.manage+"/roots/0", nil)
	if err != nil {
		return nil, err
	}
	res, err := transport.RoundTrip(r)
	if err != nil {
		return nil, err
	}
	defer res.Body.Close()
	return io.ReadAll(res.Body)
}

// resolve serves the address 127.0.0.1 for each name by DNS over TCP, and returns where.
func resolve(t testing.TB) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			_ = answer(conn) // pebble reports what it misses.
			conn.Close()
		}
	}()
	return l.Addr().String()
}

func answer(conn net.Conn) error {
	var size [2]byte
	if _, err := io.ReadFull(conn, size[:]); err != nil {
		return err
	}
	buf := make([]byte, binary.BigEndian.Uint16(size[:]))
	if _, err := io.ReadFull(conn, buf); err != nil {
		return err
	}
	var m dnsmessage.Message
	if err := m.Unpack(buf); err != nil {
		return err
	}
	m.Response, m.Additionals = true, nil
	for _, q := range m.Questions {
		if q.Type == dnsmessage.TypeA {
			m.Answers = append(m.Answers, dnsmessage.Resource{
				Header: dnsmessage.ResourceHeader{Name: q.Name, Class: q.Class},
				Body:   &dnsmessage.AResource{A: [4]byte{127, 0, 0, 1}},
			})
		}
	}
	packed, err := m.AppendPack(make([]byte, 2))
	if err != nil {
		return err
	}
	binary.BigEndian.PutUint16(packed, uint16(len(packed)-2))
	_, err = conn.Write(packed)
	return err
}
