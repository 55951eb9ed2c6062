package godot

import (
	"bytes"
	"cmp"
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

	"github.com/ferryrelay/ferry/internal/test/clienttest"
	"github.com/ferryrelay/ferry/proto"
)

// TestVectors: each golden packet has the fields that its inputs say, is encoded to the same bytes, and is
// refused with a byte less or more.
func TestVectors(t *testing.T) {
	t.Parallel()
	var lines strings.Builder
	var names, want []string
	vectors, _ := clienttest.Vectors(t, "../../docs/vectors.json") // The client does not measure.
	for _, v := range vectors {
		fmt.Fprintln(&lines, v.Packet, v.Key)
		names = append(names, v.Name)
		want = append(want, strings.Join([]string{"vector", fmt.Sprint(v.Type), cmp.Or(v.ID, "-"), cmp.Or(v.To, "-"), v.Number, "0", v.Code,
			cmp.Or(v.Data, "-"), v.Again}, " "))
	}
	file := filepath.Join(t.TempDir(), "vectors")
	if err := os.WriteFile(file, []byte(lines.String()), 0o600); err != nil {
		t.Fatal(err)
	}
	out, err := godot(t, "vectors.gd", "FERRY_VECTORS="+file).CombinedOutput()
	if err != nil || bytes.Contains(out, []byte("SCRIPT ERROR")) {
		t.Fatalf("%v\n%s", err, out)
	}
	var got []string
	for line := range strings.Lines(string(out)) {
		if strings.HasPrefix(line, "vector ") {
			got = append(got, strings.TrimSpace(line))
		}
	}
	if len(got) != len(want) || len(got) == 0 {
		t.Fatalf("%d lines for %d vectors:\n%s", len(got), len(want), out)
	}
	for i := range want {
		if got[i] != want[i] {
			t.Errorf("%s:\n%s, want\n%s", names[i], got[i], want[i])
		}
	}
}

// TestMeet: a host and a joiner in Godot, over both families. The joiner moves to a new socket; then the host
// leaves.
func TestMeet(t *testing.T) {
	t.Parallel()
	for _, ip := range []string{"127.0.0.1", "::1"} {
		t.Run(ip, func(t *testing.T) {
			t.Parallel()
			r := serve(t, ip)
			host, code := r.godotHost()
			joiner := r.player(code)
			say := func(from, to *clienttest.Program, text string) {
				t.Helper()
				stop := from.Repeat("send " + text)
				defer stop()
				to.Expect("message "+text, "joined peer -1")
			}
			say(joiner, host, "hello")
			say(host, joiner, "good day, ä")
			joiner.Do("roam")
			say(host, joiner, "after the move")
			say(joiner, host, "indeed")
			joiner.Do("nonce")
			if n := joiner.Expect("nonce"); n == "0" {
				t.Error("it has bound again with the nonce of the first BIND")
			}
			host.Do("big 1401")
			host.Expect("big 31") // ERR_INVALID_PARAMETER
			host.Do("rtt")
			if rtt := host.Expect("rtt"); rtt == "0" {
				t.Error("it has no round trip")
			}
			host.Do("close")
			joiner.Expect("left peer")
			joiner.Do("send to nobody")
			joiner.Expect("not sent 33") // ERR_DOES_NOT_EXIST
		})
	}
}

// TestHost: a host in Godot, a player in Go.
func TestHost(t *testing.T) {
	t.Parallel()
	r := serve(t, "127.0.0.1")
	host, code := r.godotHost()
	peer := r.join(code)
	stop := clienttest.Say(peer, "hello")
	host.Expect("message hello", "joined peer -1")
	stop()
	stop = host.Repeat("send hello back")
	buf := make([]byte, 2000)
	_ = peer.SetReadDeadline(time.Now().Add(clienttest.Within))
	n, err := peer.Read(buf)
	stop()
	if err != nil || string(buf[:n]) != "hello back" {
		t.Fatalf("the player reads %q, %v", buf[:n], err)
	}
	host.Do("disconnect")
	for err == nil {
		_, err = peer.Read(buf)
	}
	if err != io.EOF {
		t.Errorf("the player reads %v", err)
	}
	host.Do("send again")
	host.Expect("not sent")
}

// TestPlayerLeaves: a host in Godot is told that its player has left; and if that is lost, that its messages
// meet no link.
func TestPlayerLeaves(t *testing.T) {
	t.Parallel()
	for _, lost := range []bool{false, true} {
		t.Run(fmt.Sprint("lost=", lost), func(t *testing.T) {
			t.Parallel()
			r := serve(t, "127.0.0.1")
			host, code := r.godotHost()
			peer := r.join(code)
			if _, err := peer.Write([]byte("hello")); err != nil {
				t.Fatal(err)
			}
			host.Expect("joined peer")
			if lost {
				r.gate.DropTypes(proto.TypeDisconnect)
			}
			if err := peer.Close(); err != nil {
				t.Fatal(err)
			}
			if !lost {
				host.Expect("left peer")
				return
			}
			stop := host.Repeat("send more")
			defer stop()
			host.Expect("nolink peer 5 there is no link to the peer (ERROR 5)")
		})
	}
}

// TestTwoSessions: of two players with one allocation one ends, with the reason, and the other plays on.
func TestTwoSessions(t *testing.T) {
	needLong(t)
	t.Parallel()
	r := serve(t, "127.0.0.1")
	front, code := clienttest.ShareAllocation(t, r.API), r.host().Code
	first := play(t, front, token, code)
	first.Expect("ticket")
	first.Expect("bound")
	first.Expect("connected peer")
	second := play(t, front, token, code)
	second.Await("bound")
	lives := clienttest.OneEnds(t, "ended nobody -5 another session uses this allocation", first, second)
	if lives == second {
		lives.Await("connected peer")
	}
	lives.Reach("hello", silent, resumed)
}

// TestNextEndpoint: endpoints that do not answer, of both families, cost seconds and not the match.
func TestNextEndpoint(t *testing.T) {
	t.Parallel()
	r := serve(t, "127.0.0.1")
	front, code := clienttest.PrependSilent(t, r.API), r.host().Code
	start := time.Now()
	g := play(t, front, token, code)
	g.Expect("ticket")
	g.Expect("bound")
	g.Expect("connected peer")
	if took := time.Since(start); took < 2*time.Second {
		t.Errorf("it took %v, so that the silent endpoints were not tried", took)
	}
	g.Reach("hello")
}

// TestAPI: what the game is told of calls that fail.
func TestAPI(t *testing.T) {
	t.Parallel()
	r := serve(t, "127.0.0.1")
	serving := func(h http.HandlerFunc) string {
		srv := httptest.NewServer(h)
		t.Cleanup(srv.Close)
		return srv.URL
	}
	tls := httptest.NewTLSServer(http.NotFoundHandler())
	t.Cleanup(tls.Close)
	deaf, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = deaf.Close() })
	gone := serving(nil)
	for _, c := range []struct{ name, url, token, code, want string }{
		{"no such code", r.API, token, "7BCDFG", "api 404 15009"},
		{"no token", r.API, "-", "7BCDFG", "api 401"},
		{"wrong token", r.API, "nobody-0123456789", "host", "api 401"},
		{"a trailing slash", r.API + "/", token, "7BCDFG", "api 404 15009"},
		{"a proxy's page", serving(func(w http.ResponseWriter, _ *http.Request) { http.Error(w, "<html>", http.StatusBadGateway) }), token,
			"host", "api 502 0 HTTP status 502"},
		{"an empty answer", serving(func(w http.ResponseWriter, _ *http.Request) {}), token, "host",
			"api 200 0 the answer has no allocation for UDP"},
		{"a wrong answer", serving(func(w http.ResponseWriter, _ *http.Request) {
			_, _ = w.Write([]byte(`{"data":{"allocation":{"allocationId":"a","allocationIdBytes":"","key":"","connectionData":"","serverEndpoints":[1,{"connectionType":"ws"}]}}}`))
		}), token, "host", "api 200 0 the answer has no allocation for UDP"},
		{"a refusal with details", serving(func(w http.ResponseWriter, _ *http.Request) {
			w.WriteHeader(http.StatusBadRequest)
			_, _ = w.Write([]byte(`{"code":15400,"detail":"invalid","details":[{"key":"region","value":"unknown"},1]}`))
		}), token, "host", "api 400 15400 invalid; region: unknown"},
		{"a list", serving(func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte(`{"data":[]}`)) }), token, "host",
			"api 200 0 the answer has no allocation for UDP"},
		{"a ticket of wrong sizes", serving(func(w http.ResponseWriter, _ *http.Request) {
			_, _ = w.Write([]byte(`{"data":{"allocation":{"allocationId":"a","allocationIdBytes":"AA==","key":"","connectionData":"","serverEndpoints":[{"connectionType":"udp","host":"127.0.0.1","port":9}]}}}`))
		}), token, "host", "ticket a"},
		{"a long answer", serving(func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write(make([]byte, 1<<20)) }), token, "host",
			"api 0 0 the answer is too long"},
		{"a hang-up", serving(func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) }), token, "host",
			"api 0 0 the server has closed the connection"},
		{"nobody there", gone[:strings.LastIndex(gone, ":")] + ":1", token, "host", "api 0 0 the server cannot be reached"},
		{"silence", "http://" + deaf.Addr().String(), token, "host", "api 0 0 the server does not answer"},
		{"a certificate that is not trusted", tls.URL, token, "host", "api 0 0 the TLS handshake has failed"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			g := play(t, c.url, c.token, c.code)
			t.Log(c.want, g.Expect(c.want))
		})
	}
}

// TestJoinCode: what a chat puts into a join code is not sent, and the server judges the rest.
func TestJoinCode(t *testing.T) {
	t.Parallel()
	url, codes := clienttest.JoinCodes(t)
	typed := strings.NewReplacer(" ", "%20", "\t", "%09").Replace(clienttest.TypedCode)
	play(t, url, token, typed).Expect("api 404 0")
	if code := <-codes; code != clienttest.SentCode {
		t.Errorf("it sends %q", code)
	}
}

func TestAddresses(t *testing.T) {
	t.Parallel()
	clienttest.TestAddresses(t, func(t *testing.T, url, token string) bool {
		answer := play(t, cmp.Or(url, "-"), token, "7BCDFG").Expect("api")
		return strings.TrimSpace(answer) != "0 0 error 31" // ERR_INVALID_PARAMETER
	})
}

// TestRules: the session's rules against a scripted relay and clock.
func TestRules(t *testing.T) {
	t.Parallel()
	script(t, "rules.gd", "rules ok")
}

// TestLink: packets of all modes over a network that loses 30 %, doubles and reorders.
func TestLink(t *testing.T) {
	t.Parallel()
	script(t, "link.gd", "link ok", fmt.Sprint("FERRY_SEED=", 1+time.Now().UnixNano()%1000))
}

// script runs a script that says at its end whether all was well.
func script(t *testing.T, name, ok string, env ...string) {
	t.Helper()
	out, err := godot(t, name, env...).CombinedOutput()
	if err != nil || !bytes.Contains(out, []byte("\n"+ok)) || bytes.Contains(out, []byte("SCRIPT ERROR")) {
		t.Fatalf("%q: %v\n%s", env, err, out)
	}
}

// TestReadme: its example and the one in a console are scripts that Godot accepts.
func TestReadme(t *testing.T) {
	t.Parallel()
	page, err := os.ReadFile("README.md")
	if err != nil {
		t.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(page), "\n```gdscript\n")
	readme, _, ok := strings.Cut(rest, "\n```\n")
	if !ok {
		t.Fatal("no example in README.md")
	}
	files := scripts(t)
	files["readme.gd"] = readme + "\n"
	dir := t.TempDir()
	for name, text := range files {
		if filepath.Dir(name) != "." {
			continue
		}
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for _, name := range []string{"readme.gd", "example.gd", "broken.gd"} {
		if err := os.WriteFile(filepath.Join(dir, "broken.gd"), []byte("extends Node\n\nfunc f():\n\treturn ?\n"), 0o600); err != nil {
			t.Fatal(err)
		}
		cmd := godot(t, "play.gd")
		cmd.Args = []string{cmd.Args[0], "--check-only", "-s", filepath.Join(dir, name)}
		out, err := cmd.CombinedOutput()
		if accepted := err == nil && !bytes.Contains(out, []byte("ERROR")); accepted != (name != "broken.gd") {
			t.Errorf("%s: %v\n%s", name, err, out)
		}
	}
}

// TestPort: port.sed leaves no name that Godot 4 does not know.
func TestPort(t *testing.T) {
	t.Parallel()
	scripts(t)
	for _, name := range []string{"message", "session", "api", "link"} {
		out, err := exec.Command("sed", "-f", "godot4/port.sed", "ferry_"+name+".gd").CombinedOutput()
		if err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
		for _, old := range []string{"Pool", "subarray", "OS.get_ticks", ".empty()", ".remove(", "find_last", "JSON.print", "JSON.parse(",
			"_tls, _tls", "to_utf8()", "Reference"} {
			if bytes.Contains(out, []byte(old)) {
				t.Errorf("ferry_%s.gd has %q after the port", name, old)
			}
		}
	}
}
