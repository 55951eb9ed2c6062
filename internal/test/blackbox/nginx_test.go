package blackbox

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	ws "github.com/coder/websocket"

	"github.com/ferryrelay/ferry/alloc/api"
	"github.com/ferryrelay/ferry/internal/test/enginetest"
	"github.com/ferryrelay/ferry/internal/test/testkit"
	"github.com/ferryrelay/ferry/internal/test/wiretest"
	"github.com/ferryrelay/ferry/proto"
)

// shown returns a piece of configuration from docs/operating.md, the one that begins with a
// comment, with other values in the place of those shown.
func shown(t *testing.T, language, comment string, values map[string]string) string {
	t.Helper()
	page, err := os.ReadFile("../../../docs/operating.md")
	if err != nil {
		t.Fatal(err)
	}
	_, rest, found := strings.Cut(string(page), "\n```"+language+"\n"+comment+"\n")
	block, _, ended := strings.Cut(rest, "\n```\n")
	if !found || !ended {
		t.Fatalf("docs/operating.md has no %s that begins with %q", language, comment)
	}
	for from, to := range values {
		if !strings.Contains(block, from) {
			t.Fatalf("%q of docs/operating.md has no %q", comment, from)
		}
		block = strings.ReplaceAll(block, from, to)
	}
	return block + "\n"
}

const streamModule = "/usr/lib/nginx/modules/ngx_stream_module.so"

func nginx(t *testing.T, top, inHTTP, ready string) {
	t.Helper()
	path, dir := testkit.Program(t, "nginx", "nginx"), t.TempDir()
	var conf strings.Builder
	if strings.Contains(top, "stream") {
		if _, err := os.Stat(streamModule); err != nil {
			testkit.Missing(t, streamModule, "libnginx-mod-stream")
		}
		fmt.Fprintf(&conf, "load_module %s;\n", streamModule)
	}
	fmt.Fprintf(&conf, "pid %s/nginx.pid;\nworker_processes 1;\nevents {}\n%s", dir, top)
	if os.Getuid() == 0 {
		conf.WriteString("user root;\n") // The directory of a test is its owner's.
	}
	conf.WriteString("http {\naccess_log off;\n")
	for _, kind := range []string{"client_body", "proxy", "fastcgi", "uwsgi", "scgi"} {
		fmt.Fprintf(&conf, "%s_temp_path %s/%s;\n", kind, dir, kind)
	}
	conf.WriteString(inHTTP + "}\n")
	file := filepath.Join(dir, "nginx.conf")
	if err := os.WriteFile(file, []byte(conf.String()), 0o600); err != nil {
		t.Fatal(err)
	}
	log := new(text)
	cmd := exec.Command(path, "-c", file, "-p", dir, "-e", "stderr", "-g", "daemon off;")
	cmd.Stdout, cmd.Stderr = log, log
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan struct{})
	go func() { _ = cmd.Wait(); close(ended) }()
	t.Cleanup(func() {
		_ = cmd.Process.Signal(syscall.SIGTERM) // It ends its workers.
		<-ended
		if t.Failed() {
			t.Logf("nginx said:\n%s\nto\n%s", log, conf.String())
		}
	})
	testkit.Eventually(t, "nginx listens", func() bool {
		conn, err := net.Dial("tcp", ready)
		if err == nil {
			conn.Close()
		}
		return err == nil
	})
}

func freeAddr(t *testing.T) (addr, port string) {
	t.Helper()
	addr = testkit.FreeAddr(t, "tcp")
	_, port, err := net.SplitHostPort(addr)
	if err != nil {
		t.Fatal(err)
	}
	return addr, port
}

// TestNginx: the configuration that docs/operating.md shows carries the API and wss, and every
// player counts as himself, whatever he says of himself.
func TestNginx(t *testing.T) {
	t.Parallel()
	id := newIdentity(t)
	addr, port := freeAddr(t)
	p := newPlace(t)
	p.settle(shown(t, "yaml", "# ferry.yaml, behind nginx", map[string]string{
		"203.0.113.7": "127.0.0.1", "relay.example.org": testName + ":" + port,
	}))
	f := p.serve("--max-websockets", "32")
	defer f.Stop()
	nginx(t, "", shown(t, "nginx", "# /etc/nginx/conf.d/ferry.conf", map[string]string{
		"listen 443 ssl": "listen " + addr + " ssl", "server_name relay.example.org": "server_name " + testName,
		"/etc/nginx/relay.pem": id.cert, "/etc/nginx/relay.key": id.key,
		"http://127.0.0.1:7777": f.api,
	}), addr)
	testProxy(t, f, id, port)
}

// TestNginxStream: a proxy that does not look inside tells players' addresses by
// the PROXY protocol, with the configuration that docs/operating.md shows.
func TestNginxStream(t *testing.T) {
	t.Parallel()
	id := newIdentity(t)
	addr, port := freeAddr(t)
	p := newPlace(t)
	p.settle(shown(t, "yaml", "# ferry.yaml, behind a proxy of TCP", map[string]string{
		"203.0.113.7": "127.0.0.1", "relay.example.org:443": testName + ":" + port,
		"/etc/ferry/cert.pem": id.cert, "/etc/ferry/key.pem": id.key,
	}))
	f := p.serve("--max-websockets", "32")
	defer f.Stop()
	nginx(t, shown(t, "nginx", "# at the top level of /etc/nginx/nginx.conf", map[string]string{
		"listen 443": "listen " + addr, "127.0.0.1:7777": strings.TrimPrefix(f.api, "https://"),
	}), "", addr)
	testProxy(t, f, id, port)

	// A connection from the address of the proxy must report an address too.
	if _, err := id.browse("127.0.0.1").Get(f.api + "/v1/regions"); err == nil {
		t.Error("a call from the proxy's address without a header was answered")
	}
	if n := f.metric(`ferry_http_connections_refused_total{reason="proxy_header"}`); n != 1 {
		t.Errorf("%v connections without a header were refused", n)
	}
	// Other clients cannot report one.
	forged := id.browse("127.0.0.5")
	dial := forged.Transport.(*http.Transport).DialContext
	forged.Transport.(*http.Transport).DialContext = func(ctx context.Context, network, to string) (net.Conn, error) {
		conn, err := dial(ctx, network, to)
		if err == nil {
			_, err = conn.Write([]byte("PROXY TCP4 198.51.100.1 203.0.113.7 1 443\r\n"))
		}
		return conn, err
	}
	if _, err := forged.Get(strings.Replace(f.api, "127.0.0.1", testName, 1) + "/v1/regions"); err == nil {
		t.Error("a forged header was taken")
	}
}

// testProxy plays a match of a host by wss and a player by UDP, which both call the
// API through the proxy, and then opens more WebSockets than an address may have.
func testProxy(t *testing.T, f *ferry, id identity, port string) {
	t.Helper()
	base := testName + ":" + port
	calls := func(from string) *api.Client {
		return &api.Client{BaseURL: "https://" + base, Token: token, HTTP: id.browse(from)}
	}
	a, err := calls("127.0.0.2").Allocate(t.Context(), api.AllocateRequest{MaxConnections: 4})
	if err != nil {
		t.Fatal(err)
	}
	e, ok := a.Endpoint("wss")
	if !ok || net.JoinHostPort(e.Host, fmt.Sprint(e.Port)) != base || !e.Secure {
		t.Fatalf("the endpoints for players are %+v", a.ServerEndpoints)
	}
	host := overWSS(t, id, "127.0.0.2", "wss://"+base+"/")
	cred := enginetest.Credentials{ID: [16]byte(a.AllocationIDBytes), Key: a.Key, ConnectionData: a.ConnectionData}
	host.Bind(cred, 0)
	code, err := calls("127.0.0.2").JoinCode(t.Context(), a.AllocationID)
	if err != nil {
		t.Fatal(err)
	}
	player, playerID := overUDP(t, calls("127.0.0.3"), code)
	echo := make(chan struct{})
	go func() {
		defer close(echo)
		sendBack(host, playerID, proto.AllocationID(a.AllocationIDBytes))
	}()
	converse(t, player, 20)
	for _, step := range []struct {
		from, forged string
	}{
		{"127.0.0.2", ""},
		{"127.0.0.2", ""}, // takes the place of the one before, as the next one does
		{"127.0.0.2", "198.51.100.9"},
		{"127.0.0.4", ""},
	} {
		header := http.Header{}
		if step.forged != "" {
			header.Set("X-Forwarded-For", step.forged)
		}
		conn, res, err := ws.Dial(t.Context(), "wss://"+base+"/", &ws.DialOptions{HTTPClient: id.browse(step.from), HTTPHeader: header})
		if err != nil {
			t.Fatalf("%+v: %v, %v", step, res, err)
		}
		defer conn.CloseNow()
	}
	testkit.Eventually(t, "two have ended for others of their address", func() bool {
		return f.metric(`ferry_websocket_ended_total{reason="shed"}`) == 2
	})
	_ = host.Close()
	<-echo
}

func overWSS(t *testing.T, id identity, from, url string) *wiretest.Conn {
	t.Helper()
	conn, _, err := ws.Dial(t.Context(), url, &ws.DialOptions{HTTPClient: id.browse(from)})
	if err != nil {
		t.Fatal(err)
	}
	return wiretest.WebSocket(t, conn)
}

func sendBack(c *wiretest.Conn, player, host proto.AllocationID) {
	for m := range c.Got {
		if r, err := proto.ParseRelay(m); err == nil && r.From == player {
			_ = c.Send(proto.Relay{From: host, To: player, Payload: r.Payload}.Append(nil))
		}
	}
}
