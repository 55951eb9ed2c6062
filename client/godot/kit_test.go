// Package godot holds the client in GDScript, and its tests, which run it with Godot 3.2 without a screen against
// the program ferry.
package godot

import (
	"context"
	"flag"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/ferryrelay/ferry/alloc/api"
	"github.com/ferryrelay/ferry/client"
	"github.com/ferryrelay/ferry/internal/test/clienttest"
	"github.com/ferryrelay/ferry/internal/test/ferrytest"
	"github.com/ferryrelay/ferry/internal/test/testkit"
)

const token = "backend-0123456789"

var long = flag.Bool("long", false, "situations that take up to 64 s")

// needLong skips what takes too long for each run of go test.
func needLong(t *testing.T) {
	t.Helper()
	if !*long {
		t.Skip("NOT TESTED: it takes up to 64 s; make clients does it")
	}
}

func TestMain(m *testing.M) {
	testkit.DefaultParallel(16)
	ferrytest.Main(m)
}

func godot(t *testing.T, script string, env ...string) *exec.Cmd {
	t.Helper()
	program := testkit.Program(t, "godot3-server", "godot3-server")
	file, err := filepath.Abs(filepath.Join("testdata", script))
	if err != nil {
		t.Fatal(err)
	}
	scripts(t)
	ctx, cancel := context.WithTimeout(context.Background(), 3*clienttest.Within)
	t.Cleanup(cancel)
	cmd := exec.CommandContext(ctx, program, "-s", file)
	cmd.Dir = t.TempDir() // Godot writes its logs there.
	cmd.Env = append(os.Environ(), append([]string{"HOME=" + cmd.Dir, "LANG=en_US.UTF-8"}, env...)...)
	return cmd
}

// scripts returns the client's files. Reading them in Go makes results in go test's cache depend on them.
func scripts(t *testing.T) map[string]string {
	t.Helper()
	all := map[string]string{}
	for _, pattern := range []string{"*.gd", "testdata/*.gd", "godot4/*"} {
		names, err := filepath.Glob(pattern)
		if err != nil || len(names) == 0 {
			t.Fatal(pattern, err)
		}
		for _, name := range names {
			text, err := os.ReadFile(name)
			if err != nil {
				t.Fatal(err)
			}
			all[name] = string(text)
		}
	}
	return all
}

// build makes the program ferry, once.
func build(t *testing.T) string {
	t.Helper()
	testkit.Program(t, "godot3-server", "godot3-server") // before minutes of work for nothing
	return ferrytest.Binary(t)
}

// relay is a running `ferry serve`, behind a gate.
type relay struct {
	*ferrytest.Process
	t    *testing.T
	args []string
	gate *clienttest.Gate
}

func serve(t *testing.T, ip string) *relay {
	t.Helper()
	binary, dir := build(t), t.TempDir()
	config := filepath.Join(dir, "ferry.yaml")
	text := "tokens:\n  - secret: " + token + "\n    project: game\n    environment: test\n    kind: server\n"
	if err := os.WriteFile(config, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	r := &relay{t: t, gate: clienttest.NewGate(t, ip)}
	r.args = []string{binary, "serve", "--config", config, "--state-dir", filepath.Join(dir, "state"), "--admin", "127.0.0.1:0",
		"--advertise", r.gate.Addr().String()}
	r.start(net.JoinHostPort(ip, "0"), "127.0.0.1:0")
	return r
}

func (r *relay) start(udp, http string) {
	r.t.Helper()
	r.Process = ferrytest.Start(r.t, exec.Command(r.args[0], append(slices.Clone(r.args[1:]), "--udp", udp, "--http", http)...))
	r.gate.SetRelay(r.UDP)
}

// restart starts the relay again that was killed, at the same addresses.
func (r *relay) restart() {
	r.t.Helper()
	r.start(r.UDP.String(), strings.TrimPrefix(r.API, "http://"))
}

// past leads a session in Go past the gate.
func (r *relay) past(cfg *client.Config) {
	cfg.Ticket.Server, cfg.Ticket.Alternatives, cfg.LocalAddr = r.UDP, nil, r.UDP.Addr()
}

func (r *relay) calls() *api.Client { return &api.Client{BaseURL: r.API, Token: token} }

// host runs a host in Go that sends back what it gets.
func (r *relay) host() *clienttest.HostSession {
	r.t.Helper()
	return clienttest.Host(r.t, r.calls(), 4, r.past)
}

func (r *relay) join(code string) *client.Peer {
	r.t.Helper()
	return clienttest.Join(r.t, r.calls(), code, r.past)
}

// play starts a game in Godot. who is "host", or a join code.
func play(t *testing.T, url, token, who string) *clienttest.Program {
	t.Helper()
	listener, err := net.Listen("tcp", "[::1]:0") // TestNewAddress changes IPv4.
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	cmd := godot(t, "play.gd", fmt.Sprintf("FERRY_PLAY=%s %s %s %d", url, token, who, listener.Addr().(*net.TCPAddr).Port))
	var log testkit.LogBuffer
	cmd.Stdout, cmd.Stderr = &log, &log
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	_ = listener.(*net.TCPListener).SetDeadline(time.Now().Add(clienttest.Within))
	conn, err := listener.Accept()
	if err != nil {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		t.Fatalf("%v\n%s", err, log.String())
	}
	g := clienttest.Attach(t, cmd, commands{conn.(*net.TCPConn)}, conn)
	t.Cleanup(func() {
		_ = g.Close()
		_ = conn.Close()
		if strings.Contains(log.String(), "SCRIPT ERROR") {
			t.Errorf("the client in GDScript is wrong:\n%s", log.String())
		}
	})
	return g
}

// commands are the direction of a connection to a game.
type commands struct{ *net.TCPConn }

// Close implements io.Closer. The game ends then, and closes the other direction.
func (c commands) Close() error { return c.CloseWrite() }

const (
	silent  = "silent nobody -3 the relay does not answer"
	resumed = "resumed nobody -1"
)

func (r *relay) player(code string) *clienttest.Program {
	r.t.Helper()
	g := play(r.t, r.API, token, code)
	g.Ignores = func(line string) bool { return (line == silent || line == resumed) && r.gate.WasSlow() }
	g.Expect("ticket")
	g.Expect("bound")
	g.Expect("connected peer")
	return g
}

func (r *relay) godotHost() (g *clienttest.Program, code string) {
	r.t.Helper()
	g = play(r.t, r.API, token, "host")
	g.Expect("ticket")
	g.Expect("bound")
	return g, g.Expect("code")
}
