package csharp

import (
	"bytes"
	"context"
	"encoding/hex"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/ferryrelay/ferry/alloc/api"
	"github.com/ferryrelay/ferry/alloc/httpapi"
	"github.com/ferryrelay/ferry/internal/test/clienttest"
	"github.com/ferryrelay/ferry/internal/test/testkit"
	"github.com/ferryrelay/ferry/proto"
	"github.com/ferryrelay/ferry/relay/relaytest"
)

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

// programs are what the tests have compiled: mcs takes two seconds for each.
var programs struct {
	sync.Mutex
	dir   string            // TestMain makes and removes it
	files map[string]string // by sources
}

// compile makes a program of those sources and the package, once, and returns the command that runs it.
func compile(t *testing.T, source ...string) func(args ...string) *exec.Cmd {
	t.Helper()
	testkit.Program(t, "mono", "mono-runtime")
	programs.Lock()
	defer programs.Unlock()
	key := strings.Join(source, " ")
	file := programs.files[key]
	if file == "" {
		file = filepath.Join(programs.dir, fmt.Sprintf("%d.exe", len(programs.files)))
		build(t, file, source...)
		programs.files[key] = file
	}
	return func(args ...string) *exec.Cmd {
		ctx, cancel := context.WithTimeout(t.Context(), clienttest.Within)
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

// TestHost: a host in C#, a player in Go.
func TestHost(t *testing.T) {
	t.Parallel()
	run := compile(t, "Echo.cs")
	url, _, player := service(t)
	p := clienttest.Start(t, run("host", url, hostToken))
	peer := clienttest.Join(t, player, p.Expect("code"), nil)
	ctx, cancel := context.WithTimeout(t.Context(), clienttest.Within)
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
	p.Expect("left")
	if err := p.Close(); err != nil {
		t.Error(err)
	}
}

// TestNextEndpoint: endpoints that do not answer, of both families, cost seconds and not the match.
func TestNextEndpoint(t *testing.T) {
	t.Parallel()
	run := compile(t, "Echo.cs")
	url, caller, _ := service(t)
	front, code := clienttest.PrependSilent(t, url), clienttest.Host(t, caller, 4, nil).Code
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
	cmd := run("join", url, clienttest.Host(t, caller, 4, nil).Code, playerToken)
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

func TestAddresses(t *testing.T) {
	t.Parallel()
	run := compile(t, "Echo.cs")
	clienttest.TestAddresses(t, func(t *testing.T, url, token string) bool {
		cmd := run("join", url, "7BCDFG", token)
		var out bytes.Buffer
		cmd.Stderr = &out
		if err := cmd.Run(); err == nil {
			t.Error("it joins")
		}
		return !strings.Contains(out.String(), "is no address of a server")
	})
}

// TestMisuse: what a game reads of a call that it got wrong, and of a host that is not bound.
func TestMisuse(t *testing.T) {
	t.Parallel()
	run := compile(t, "Misuse.cs")
	url, caller, _ := service(t)
	host, err := caller.Allocate(t.Context(), api.AllocateRequest{MaxConnections: 1})
	if err != nil {
		t.Fatal(err)
	}
	code, err := caller.JoinCode(t.Context(), host.AllocationID)
	if err != nil {
		t.Fatal(err)
	}
	out, err := run(url, code, playerToken).Output()
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("%s", out)
	for _, want := range []string{
		"Join(null): ArgumentNullException: ", "Allocate(0): RelayApiException: ", "; maxConnections: ",
		"refused: RelayApiException: http://127.0.0.1:1: ", "Connect: TimeoutException: the host of this match is not bound to the relay",
		"Bind: ObjectDisposedException: ", "Connect: ObjectDisposedException: ",
	} {
		if !strings.Contains(string(out), want) {
			t.Errorf("it lacks %q", want)
		}
	}
}

// TestJoinCode: what a chat puts into a join code is not sent, and the server judges the rest.
func TestJoinCode(t *testing.T) {
	t.Parallel()
	run := compile(t, "Echo.cs")
	url, codes := clienttest.JoinCodes(t)
	cmd := run("join", url, clienttest.TypedCode)
	cmd.Stderr = nil
	if err := cmd.Run(); err == nil {
		t.Error("it joins")
	}
	select {
	case code := <-codes:
		if code != clienttest.SentCode {
			t.Errorf("it sends %q", code)
		}
	default:
		t.Error("it sends nothing")
	}
}
