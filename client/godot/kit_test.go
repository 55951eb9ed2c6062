// Package godot holds the client in GDScript, and its tests, which run it with Godot 3.2 without a screen against
// the program ferry.
package godot

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/ferryrelay/ferry/alloc/api"
	"github.com/ferryrelay/ferry/client"
	"github.com/ferryrelay/ferry/internal/test/testkit"
	"github.com/ferryrelay/ferry/proto"
)

// within bounds a wait for what a program prints. A session that gives up does so after 64 s.
const within = 2 * time.Minute

const token = "backend-0123456789"

// binaryVariable names ferry for a test that runs in a namespace.
const binaryVariable = "GODOT_TEST_RELAY"

var (
	buildOnce sync.Once
	buildErr  error
	buildDir  string
)

func TestMain(m *testing.M) {
	testkit.DefaultParallel(6)
	code := m.Run()
	if buildDir != "" {
		_ = os.RemoveAll(buildDir)
	}
	os.Exit(code)
}

// godot returns a command that runs that script, as Godot without a screen.
func godot(t *testing.T, script string, env ...string) *exec.Cmd {
	t.Helper()
	program := testkit.Program(t, "godot3-server", "godot3-server")
	file, err := filepath.Abs(filepath.Join("testdata", script))
	if err != nil {
		t.Fatal(err)
	}
	scripts(t)
	ctx, cancel := context.WithTimeout(context.Background(), 3*within)
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
	buildOnce.Do(func() {
		if os.Getenv(binaryVariable) != "" {
			return
		}
		if buildDir, buildErr = os.MkdirTemp("", "ferry"); buildErr != nil {
			return
		}
		file := filepath.Join(buildDir, "ferry")
		if out, err := exec.Command("go", "build", "-o", file, "github.com/ferryrelay/ferry/cmd/ferry").CombinedOutput(); err != nil {
			buildErr = fmt.Errorf("%w\n%s", err, out)
			return
		}
		buildErr = os.Setenv(binaryVariable, file)
	})
	if buildErr != nil {
		t.Fatal(buildErr)
	}
	return os.Getenv(binaryVariable)
}

// relay is a running `ferry serve`, behind a gate.
type relay struct {
	t    *testing.T
	args []string
	cmd  *exec.Cmd
	log  testkit.LogBuffer

	url  string
	udp  netip.AddrPort
	gate *gate
}

// serve starts a relay at an IP address of loopback.
func serve(t *testing.T, ip string) *relay {
	t.Helper()
	binary, dir := build(t), t.TempDir()
	config := filepath.Join(dir, "ferry.yaml")
	text := "tokens:\n  - secret: " + token + "\n    project: game\n    environment: test\n    kind: server\n"
	if err := os.WriteFile(config, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	r := &relay{t: t, gate: newGate(t, ip)}
	r.args = []string{binary, "serve", "--config", config, "--state-dir", filepath.Join(dir, "state"), "--admin", "127.0.0.1:0",
		"--advertise", r.gate.addr().String()}
	r.start(net.JoinHostPort(ip, "0"), "127.0.0.1:0")
	t.Cleanup(func() { _ = r.cmd.Process.Kill(); _ = r.cmd.Wait() })
	return r
}

func (r *relay) start(udp, http string) {
	r.t.Helper()
	r.cmd = exec.Command(r.args[0], append(slices.Clone(r.args[1:]), "--udp", udp, "--http", http)...)
	r.cmd.Stderr = &r.log
	// It refuses those that it does not know.
	r.cmd.Env = slices.DeleteFunc(os.Environ(), func(v string) bool { return strings.HasPrefix(v, "FERRY_") })
	out, err := r.cmd.StdoutPipe()
	if err != nil {
		r.t.Fatal(err)
	}
	if err := r.cmd.Start(); err != nil {
		r.t.Fatal(err)
	}
	lines := bufio.NewScanner(out)
	for lines.Scan() {
		words := strings.Fields(lines.Text())
		if len(words) == 0 || words[0] != "ready" {
			continue
		}
		for _, w := range words {
			if v, ok := strings.CutPrefix(w, "udp="); ok {
				r.udp = netip.MustParseAddrPort(v)
			}
			if v, ok := strings.CutPrefix(w, "http="); ok {
				r.url = v
			}
		}
		r.gate.lead(r.udp)
		return
	}
	r.t.Fatal("the relay is not ready:\n", r.log.String())
}

// restart starts the relay again that was killed, at the same addresses.
func (r *relay) restart() {
	r.t.Helper()
	r.start(r.udp.String(), strings.TrimPrefix(r.url, "http://"))
}

func (r *relay) kill() {
	r.t.Helper()
	if err := r.cmd.Process.Kill(); err != nil {
		r.t.Fatal(err)
	}
	_ = r.cmd.Wait()
}

// session runs a session in Go, bound, past the gate.
func (r *relay) session(ticket client.Ticket) *client.Session {
	r.t.Helper()
	ticket.Server, ticket.Alternatives = r.udp, nil
	s, err := client.New(client.Config{Ticket: ticket, LocalAddr: r.udp.Addr()})
	if err != nil {
		r.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() { defer close(done); _ = s.Run(ctx) }()
	r.t.Cleanup(func() { cancel(); <-done })
	bounded, stop := context.WithTimeout(ctx, within)
	defer stop()
	if err := s.Bind(bounded); err != nil {
		r.t.Fatal(err)
	}
	return s
}

func (r *relay) api() *api.Client { return &api.Client{BaseURL: r.url, Token: token} }

// host runs a host in Go that sends back what it gets, and returns its join code and its peers.
func (r *relay) host() (s *client.Session, code string, peers chan *client.Peer) {
	r.t.Helper()
	ticket, err := client.Reserve(r.t.Context(), r.api(), 4, "")
	if err != nil {
		r.t.Fatal(err)
	}
	s = r.session(ticket)
	if code, err = r.api().JoinCode(r.t.Context(), ticket.ID.String()); err != nil {
		r.t.Fatal(err)
	}
	peers = make(chan *client.Peer, 10)
	go func() { // until the session ends
		for {
			peer, err := s.Accept(context.Background())
			if err != nil {
				return
			}
			peers <- peer
			go func() {
				buffer := make([]byte, 2000)
				for {
					n, err := peer.Read(buffer)
					if err != nil {
						return
					}
					_, _ = peer.Write(buffer[:n])
				}
			}()
		}
	}()
	return s, code, peers
}

// join runs a player in Go, and returns its link to the host.
func (r *relay) join(code string) *client.Peer {
	r.t.Helper()
	ticket, err := client.Redeem(r.t.Context(), r.api(), code)
	if err != nil {
		r.t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(r.t.Context(), within)
	defer cancel()
	peer, err := r.session(ticket).Connect(ctx)
	if err != nil {
		r.t.Fatal(err)
	}
	return peer
}

// game is a run of testdata/play.gd.
type game struct {
	t     *testing.T
	cmd   *exec.Cmd
	conn  net.Conn
	lines chan string
	gate  *gate // of a player
}

// play starts a game in Godot. who is "host", or a join code.
func play(t *testing.T, url, token, who string) *game {
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
	g := &game{t: t, cmd: cmd, lines: make(chan string, 1000)}
	_ = listener.(*net.TCPListener).SetDeadline(time.Now().Add(within))
	if g.conn, err = listener.Accept(); err != nil {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		t.Fatalf("%v\n%s", err, log.String())
	}
	go func() {
		defer close(g.lines)
		for s := bufio.NewScanner(g.conn); s.Scan(); {
			g.lines <- s.Text()
		}
	}()
	t.Cleanup(func() {
		_ = g.conn.(*net.TCPConn).CloseWrite()
		for range g.lines {
		}
		_ = cmd.Wait()
		_ = g.conn.Close()
		if strings.Contains(log.String(), "SCRIPT ERROR") {
			t.Errorf("the client in GDScript is wrong:\n%s", log.String())
		}
	})
	return g
}

// player starts a joiner that is connected.
func (r *relay) player(code string) *game {
	r.t.Helper()
	g := play(r.t, r.url, token, code)
	g.gate = r.gate
	g.expect("ticket")
	g.expect("bound")
	g.expect("connected peer")
	return g
}

// godotHost starts a host in Godot, and returns its join code.
func (r *relay) godotHost() (g *game, code string) {
	r.t.Helper()
	g = play(r.t, r.url, token, "host")
	g.expect("ticket")
	g.expect("bound")
	return g, g.expect("code")
}

func (g *game) do(command string) {
	g.t.Helper()
	if _, err := io.WriteString(g.conn, command+"\n"); err != nil {
		g.t.Fatal(err)
	}
}

// next waits for a line that begins with these words, or that is neither a message nor one of those besides.
func (g *game) next(want string, besides ...string) string {
	g.t.Helper()
	late := time.After(within)
	for {
		select {
		case line, ok := <-g.lines:
			if !ok {
				g.t.Fatalf("it ends, and does not print %q", want)
			}
			if strings.HasPrefix(line, want) || !g.ignores(line, besides) {
				return line
			}
		case <-late:
			g.t.Fatalf("it never prints %q", want)
		}
	}
}

const (
	silent  = "silent nobody -3 the relay does not answer"
	resumed = "resumed nobody -1"
)

// ignores reports whether a line says nothing to a test. The relay is silent on a machine that is slow.
func (g *game) ignores(line string, besides []string) bool {
	return strings.HasPrefix(line, "message ") || slices.Contains(besides, line) ||
		(line == silent || line == resumed) && g.gate != nil && g.gate.wasSlow()
}

// expect is next, and fails at another line.
func (g *game) expect(want string, besides ...string) (rest string) {
	g.t.Helper()
	line := g.next(want, besides...)
	rest, ok := strings.CutPrefix(line, want)
	if !ok || rest != "" && rest[0] != ' ' {
		g.t.Fatalf("it prints %q, want %q", line, want)
	}
	return strings.TrimSpace(rest)
}

// reach sends a text until it is answered, since datagrams may be lost. Those lines may come meanwhile.
func (g *game) reach(text string, besides ...string) {
	g.t.Helper()
	for late := time.After(within); ; {
		g.do("send " + text)
		again := time.After(200 * time.Millisecond)
		for waiting := true; waiting; {
			select {
			case line, ok := <-g.lines:
				if line == "message "+text {
					return
				}
				if !ok || !g.ignores(line, besides) {
					g.t.Fatalf("it prints %q instead of an answer", line)
				}
			case <-again:
				waiting = false
			case <-late:
				g.t.Fatal("no answer")
			}
		}
	}
}

// talk gives a command again and again until stop is called.
func (g *game) talk(command string) (stop func()) {
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		for ctx.Err() == nil {
			_, _ = io.WriteString(g.conn, command+"\n")
			time.Sleep(50 * time.Millisecond)
		}
	}()
	return func() { cancel(); <-done }
}

// gate carries datagrams between players and the relay, one address at the relay for each of a player's.
type gate struct {
	conn *net.UDPConn

	mu    sync.Mutex
	relay *net.UDPAddr
	paths map[netip.AddrPort]*net.UDPConn
	drop  func(from netip.AddrPort, kind proto.Type) bool // to or from that player
	asked int                                             // CONNECT_REQUESTs
	id    proto.AllocationID                              // of the player
	since time.Time                                       // that something waits for an answer
	worst time.Duration                                   // such a wait
}

func newGate(t *testing.T, ip string) *gate {
	t.Helper()
	conn, err := net.ListenUDP("udp", &net.UDPAddr{IP: net.ParseIP(ip)})
	if err != nil {
		t.Fatal(err)
	}
	g := &gate{conn: conn, paths: map[netip.AddrPort]*net.UDPConn{}, drop: func(netip.AddrPort, proto.Type) bool { return false }}
	t.Cleanup(func() { _ = conn.Close(); g.moveAll() })
	go g.carry()
	return g
}

func (g *gate) addr() netip.AddrPort { return g.conn.LocalAddr().(*net.UDPAddr).AddrPort() }

// lead is where the relay is.
func (g *gate) lead(to netip.AddrPort) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.relay = net.UDPAddrFromAddrPort(to)
}

func (g *gate) carry() {
	buf := make([]byte, 2048)
	for {
		n, from, err := g.conn.ReadFromUDPAddrPort(buf)
		if err != nil {
			return
		}
		if path := g.path(from, buf[:n]); path != nil {
			_, _ = path.Write(buf[:n])
		}
	}
}

// path returns the way to the relay of a datagram, nil if it is dropped.
func (g *gate) path(from netip.AddrPort, pkt []byte) *net.UDPConn {
	g.mu.Lock()
	defer g.mu.Unlock()
	kind, err := proto.ParseType(pkt)
	if err != nil {
		return nil
	}
	if kind == proto.TypeConnectRequest {
		g.asked++
	}
	if m, err := proto.ParseConnectRequest(pkt); err == nil {
		g.id = m.ID
	}
	if g.drop(from, kind) {
		return nil
	}
	if g.since.IsZero() {
		g.since = time.Now()
	}
	if p := g.paths[from]; p != nil {
		return p
	}
	p, err := net.DialUDP("udp", &net.UDPAddr{IP: g.relay.IP}, g.relay)
	if err != nil {
		return nil
	}
	g.paths[from] = p
	go func() {
		buf := make([]byte, 2048)
		for {
			n, err := p.Read(buf)
			if err != nil && (g.current(from) != p || n > 0) {
				return
			}
			if err != nil {
				continue // ICMP: the relay is not there.
			}
			kind, err := proto.ParseType(buf[:n])
			g.mu.Lock()
			dropped := err != nil || g.drop(from, kind)
			if !dropped {
				if !g.since.IsZero() {
					g.worst = max(g.worst, time.Since(g.since))
				}
				g.since = time.Time{}
			}
			g.mu.Unlock()
			if !dropped {
				_, _ = g.conn.WriteToUDPAddrPort(buf[:n], from)
			}
		}
	}()
	return p
}

func (g *gate) current(from netip.AddrPort) *net.UDPConn {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.paths[from]
}

// wasSlow reports whether an answer took a second, without which a player has no reason to find the relay silent.
func (g *gate) wasSlow() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.worst > time.Second || !g.since.IsZero() && time.Since(g.since) > time.Second
}

// set drops from now on what the function says, and forgets what was asked.
func (g *gate) set(drop func(netip.AddrPort, proto.Type) bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.drop, g.asked = drop, 0
}

func (g *gate) requests() int {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.asked
}

// moveAll gives each player another address at the relay, and returns the old ones.
func (g *gate) moveAll() map[netip.AddrPort]*net.UDPConn {
	g.mu.Lock()
	defer g.mu.Unlock()
	old := g.paths
	g.paths = map[netip.AddrPort]*net.UDPConn{}
	for _, p := range old {
		_ = p.Close()
	}
	return old
}

// endAllocation ends the player's allocation without its knowledge.
func (g *gate) endAllocation() {
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, p := range g.paths {
		_, _ = p.Write(proto.Close{ID: g.id}.Append(nil))
	}
}

var disconnects = []proto.Type{proto.TypeDisconnect}

// dropping drops messages of these types, both ways.
func dropping(kinds []proto.Type) func(netip.AddrPort, proto.Type) bool {
	return func(_ netip.AddrPort, kind proto.Type) bool { return slices.Contains(kinds, kind) }
}
