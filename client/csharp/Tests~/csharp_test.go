package csharp

import (
	"bufio"
	"bytes"
	"context"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/ferryrelay/ferry/alloc/api"
	"github.com/ferryrelay/ferry/alloc/httpapi"
	"github.com/ferryrelay/ferry/client"
	"github.com/ferryrelay/ferry/internal/test/testkit"
	"github.com/ferryrelay/ferry/proto"
	"github.com/ferryrelay/ferry/relay/relaytest"
)

// within bounds each test: it waits for what the programs print.
const within = 2 * time.Minute

// sourceFiles are those of the package.
var sourceFiles = []string{"../Runtime/FerryRelay.cs", "../Runtime/FerryHostMigration.cs"}

// build compiles the package and those sources with Mono's compiler, which knows C# up to 6 in that mode: each is C# 8, too.
func build(t *testing.T, file string, args ...string) {
	t.Helper()
	testkit.Program(t, "mcs", "mono-mcs")
	testkit.Input(t, sourceFiles...)
	for _, arg := range args {
		if strings.HasSuffix(arg, ".cs") {
			testkit.Input(t, arg)
		}
	}
	args = append(args, "-nologo", "-langversion:6", "-warn:4", "-warnaserror+", "-r:System.Core.dll", "-out:"+file)
	if out, err := exec.Command("mcs", append(args, sourceFiles...)...).CombinedOutput(); err != nil {
		t.Fatalf("mcs: %v\n%s", err, out)
	}
}

// compile makes a program of those sources and the package, and returns the command that runs it.
func compile(t *testing.T, source ...string) func(args ...string) *exec.Cmd {
	t.Helper()
	testkit.Program(t, "mono", "mono-runtime")
	file := filepath.Join(t.TempDir(), "a.exe")
	build(t, file, source...)
	return func(args ...string) *exec.Cmd {
		ctx, cancel := context.WithTimeout(t.Context(), within)
		t.Cleanup(cancel)
		cmd := exec.CommandContext(ctx, "mono", append([]string{file}, args...)...)
		cmd.Stderr = os.Stderr
		return cmd
	}
}

// TestBytes: each message has the bytes that package proto makes.
func TestBytes(t *testing.T) {
	t.Parallel()
	out, err := compile(t, "Play.cs")("bytes").Output()
	if err != nil {
		t.Fatal(err)
	}
	counting := func(from, n int) (all []byte) {
		for i := range n {
			all = append(all, byte(from+i))
		}
		return all
	}
	id, to, key, data := proto.AllocationID(counting(1, 16)), proto.AllocationID(counting(101, 16)),
		proto.Key(counting(1, 64)), counting(1, 255)
	var signer proto.Signer
	want := [][]byte{
		signer.Append(nil, proto.Bind{Nonce: 0x1234, ConnectionData: data}, &key),
		proto.Ping{ID: id, Number: 0x1234}.Append(nil),
		proto.ConnectRequest{ID: id, ConnectionData: data}.Append(nil),
		proto.Relay{From: id, To: to, Payload: data[10:]}.Append(nil),
		proto.Disconnect{From: id, To: to}.Append(nil),
		proto.Close{ID: id}.Append(nil),
	}
	got := strings.Fields(string(out))
	if len(got) != len(want) {
		t.Fatalf("%d messages, want %d", len(got), len(want))
	}
	for i := range want {
		if got[i] != hex.EncodeToString(want[i]) {
			t.Errorf("message %d:\n%s, want\n%x", i, got[i], want[i])
		}
	}
}

var allocate = api.AllocateRequest{MaxConnections: 4}

const hostToken, playerToken = "alice-0123456789", "bob-0123456789abc"

func tokens() []httpapi.Token {
	return []httpapi.Token{
		{Secret: hostToken, Project: "game", Environment: "live", Player: "alice"},
		{Secret: playerToken, Project: "game", Environment: "live", Player: "bob"},
	}
}

func service(t *testing.T) (url string, host, player *api.Client) {
	t.Helper()
	url, stop := relaytest.StartService(tokens()...)
	t.Cleanup(stop)
	return url, &api.Client{BaseURL: url, Token: hostToken}, &api.Client{BaseURL: url, Token: playerToken}
}

// session runs a session in Go, bound.
func session(t *testing.T, ticket client.Ticket) *client.Session {
	t.Helper()
	s, err := client.New(client.Config{Ticket: ticket})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() { defer close(done); _ = s.Run(ctx) }()
	t.Cleanup(func() { cancel(); <-done })
	bounded, stop := context.WithTimeout(t.Context(), within)
	defer stop()
	if err := s.Bind(bounded); err != nil {
		t.Fatal(err)
	}
	return s
}

// TestHost: a host in C#, a player in Go.
func TestHost(t *testing.T) {
	t.Parallel()
	run := compile(t, "Echo.cs")
	url, _, player := service(t)
	cmd := run("host", url, hostToken)
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	lines := bufio.NewScanner(out)
	if !lines.Scan() {
		t.Fatal("it prints nothing: ", cmd.Wait())
	}
	code, ok := strings.CutPrefix(lines.Text(), "code ")
	if !ok {
		t.Fatalf("it prints %q", lines.Text())
	}
	peer := join(t, player, code)
	ctx, cancel := context.WithTimeout(t.Context(), within)
	defer cancel()
	content := bytes.Repeat([]byte("hello "), 100)
	buffer := make([]byte, 2000)
	for {
		if _, err := peer.Write(content); err != nil {
			t.Fatal(err)
		}
		_ = peer.SetReadDeadline(time.Now().Add(200 * time.Millisecond)) // then it is repeated: datagrams may be lost
		if n, err := peer.Read(buffer); err == nil && bytes.Equal(buffer[:n], content) {
			break
		}
		if ctx.Err() != nil {
			t.Fatal("no answer")
		}
	}
	if err := peer.Close(); err != nil {
		t.Error(err)
	}
	if !lines.Scan() || lines.Text() != "left" {
		t.Errorf("after the player has left it prints %q", lines.Text())
	}
	if err := cmd.Wait(); err != nil {
		t.Error(err)
	}
}

// rewrite serves the API at url with answers that are rewritten.
func rewrite(t *testing.T, url string, answer func([]byte) []byte) string {
	t.Helper()
	front := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		r2, err := http.NewRequestWithContext(r.Context(), r.Method, url+r.URL.Path, r.Body)
		if err != nil {
			t.Error(err)
			return
		}
		r2.Header = r.Header
		res, err := http.DefaultClient.Do(r2)
		if err != nil {
			t.Error(err)
			return
		}
		defer res.Body.Close()
		body, err := io.ReadAll(res.Body)
		if err != nil {
			t.Error(err)
		}
		w.WriteHeader(res.StatusCode)
		_, _ = w.Write(answer(body))
	}))
	t.Cleanup(front.Close)
	return front.URL
}

// TestNextEndpoint: endpoints that do not answer, of both families, cost seconds and not the match.
func TestNextEndpoint(t *testing.T) {
	t.Parallel()
	run := compile(t, "Echo.cs")
	url, caller, _ := service(t)
	var silent []string
	for _, ip := range []string{"127.0.0.1", "::1"} {
		conn, err := net.ListenUDP("udp", &net.UDPAddr{IP: net.ParseIP(ip)})
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		silent = append(silent, fmt.Sprintf(`{"connectionType":"udp","network":"udp","host":%q,"port":%d}`, ip,
			conn.LocalAddr().(*net.UDPAddr).Port))
	}
	front := rewrite(t, url, func(body []byte) []byte {
		return bytes.Replace(body, []byte(`"serverEndpoints":[`), []byte(`"serverEndpoints":[`+strings.Join(silent, ",")+","), 1)
	})
	ticket, err := client.Reserve(t.Context(), caller, 4, "")
	if err != nil {
		t.Fatal(err)
	}
	session(t, ticket)
	code, err := caller.JoinCode(t.Context(), ticket.ID.String())
	if err != nil {
		t.Fatal(err)
	}
	start := time.Now()
	if out, err := run("join", front, code, playerToken).Output(); err != nil || string(out) != "connected\n" {
		t.Errorf("%v, it prints %q", err, out)
	}
	if took := time.Since(start); took < 2*time.Second {
		t.Errorf("it took %v, so that the silent endpoints were not tried", took)
	}
}

// TestPlayer: a player in C#, a host in Go; and a code that leads nowhere.
func TestPlayer(t *testing.T) {
	t.Parallel()
	run := compile(t, "Echo.cs")
	url, caller, _ := service(t)
	ticket, err := client.Reserve(t.Context(), caller, 4, "")
	if err != nil {
		t.Fatal(err)
	}
	host := session(t, ticket)
	code, err := caller.JoinCode(t.Context(), ticket.ID.String())
	if err != nil {
		t.Fatal(err)
	}
	go func() { // until the session ends
		for {
			peer, err := host.Accept(t.Context())
			if err != nil {
				return
			}
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
	cmd := run("join", url, code, playerToken)
	cmd.Stdin = strings.NewReader("one\ntwo, with an ä\n\n")
	out, err := cmd.Output()
	if want := "connected\nback one\nback two, with an ä\nback \n"; err != nil || string(out) != want {
		t.Errorf("%v, it prints\n%q, want\n%q", err, out, want)
	}
	cmd = run("join", url, "7BCDFG", playerToken)
	var refused bytes.Buffer
	cmd.Stderr = &refused
	if err := cmd.Run(); err == nil || !strings.HasPrefix(refused.String(), "refused: 404 15009: ") {
		t.Errorf("a code that leads nowhere: %v, %s", err, &refused)
	}
}

// TestJoinCode: what a chat puts into a join code is not sent, and the server judges the rest.
func TestJoinCode(t *testing.T) {
	t.Parallel()
	run := compile(t, "Echo.cs")
	sent := make(chan string, 1)
	api := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var body struct{ JoinCode string }
		if err := json.NewDecoder(r.Body).Decode(&body); err != nil {
			t.Error(err)
		}
		sent <- body.JoinCode
		w.WriteHeader(http.StatusNotFound)
	}))
	defer api.Close()
	cmd := run("join", api.URL, " 7B\u00a0C\u200b-O\u2013\u22120\ufeff\tg\u3000\u2028")
	cmd.Stderr = nil
	if err := cmd.Run(); err == nil {
		t.Error("it joins")
	}
	select {
	case code := <-sent:
		if code != "7BCO0g" {
			t.Errorf("it sends %q", code)
		}
	default:
		t.Error("it sends nothing")
	}
}
