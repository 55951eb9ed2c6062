package godot

import (
	"bytes"
	"encoding/base64"
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
)

// TestVectors: each golden packet has the fields that its inputs say, is encoded to the same bytes, and is
// refused with a byte less or more.
func TestVectors(t *testing.T) {
	t.Parallel()
	raw, err := os.ReadFile("../../docs/vectors.json")
	if err != nil {
		t.Fatal(err)
	}
	var golden struct {
		Inputs  map[string]struct{ Hex, Base64 string }
		Vectors []struct {
			ID, Message, Hex string
			Inputs           map[string]any
		}
	}
	if err := json.Unmarshal(raw, &golden); err != nil {
		t.Fatal(err)
	}
	input := func(v any) string { // in hex
		in := golden.Inputs[fmt.Sprint(v)]
		if in.Base64 == "" {
			return in.Hex
		}
		data, err := base64.StdEncoding.DecodeString(in.Base64)
		if err != nil {
			t.Fatal(err)
		}
		return hex.EncodeToString(data)
	}
	or := func(v any, otherwise string) string {
		if v == nil {
			return otherwise
		}
		return fmt.Sprint(v)
	}
	var lines strings.Builder
	var names, want []string
	for _, v := range golden.Vectors {
		if strings.HasPrefix(v.ID, "qos-") {
			continue // The client does not measure.
		}
		in := v.Inputs
		fmt.Fprintln(&lines, v.Hex, input(or(in["key"], "K1")))
		id, to, number, data, again := "-", "-", "0", "-", v.Hex
		for _, k := range []string{"from", "allocation_id"} {
			if in[k] != nil {
				id = input(in[k])
			}
		}
		if in["to"] != nil {
			to = input(in["to"])
		}
		for _, k := range []string{"nonce", "number"} {
			number = or(in[k], number)
		}
		for _, k := range []string{"connection_data", "to_connection_data"} {
			if in[k] != nil {
				data = input(in[k])
			}
		}
		data = or(in["content"], data)
		kind, err := hex.DecodeString(v.Hex[6:8])
		if err != nil {
			t.Fatal(err)
		}
		if kind[0] == 12 && id == "-" {
			id = strings.Repeat("0", 32)
		}
		switch v.ID {
		case "bind-bad-mac": // the same message with the right MAC
			good := golden.Vectors[0]
			data, again = input(good.Inputs["connection_data"]), good.Hex
		case "relay-utp2-connreq": // content of the layer above
			data = v.Hex[2*38:]
		}
		if data == "" {
			data = "-"
		}
		names = append(names, v.ID)
		want = append(want, strings.Join([]string{"vector", fmt.Sprint(kind[0]), id, to, number, "0", or(in["code"], "0"), data, again}, " "))
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
			say := func(from, to *game, text string) {
				t.Helper()
				stop := from.talk("send " + text)
				defer stop()
				for line := range to.lines {
					if line == "message "+text {
						return
					}
					if !strings.HasPrefix(line, "message ") && line != "joined peer -1" {
						t.Fatalf("it prints %q, want %q", line, text)
					}
				}
				t.Fatal("no answer")
			}
			say(joiner, host, "hello")
			say(host, joiner, "good day, ä")
			joiner.do("roam")
			say(host, joiner, "after the move")
			say(joiner, host, "indeed")
			joiner.do("nonce")
			if n := joiner.expect("nonce"); n == "0" {
				t.Error("it has bound again with the nonce of the first BIND")
			}
			host.do("big 1401")
			host.expect("big 31") // ERR_INVALID_PARAMETER
			host.do("rtt")
			if rtt := host.expect("rtt"); rtt == "0" {
				t.Error("it has no round trip")
			}
			host.do("close")
			joiner.expect("left peer")
			joiner.do("send to nobody")
			joiner.expect("not sent 33") // ERR_DOES_NOT_EXIST
		})
	}
}

// TestHost: a host in Godot, a player in Go.
func TestHost(t *testing.T) {
	t.Parallel()
	r := serve(t, "127.0.0.1")
	host, code := r.godotHost()
	peer := r.join(code)
	say := func(text string) {
		t.Helper()
		for late := time.Now().Add(within); time.Now().Before(late); time.Sleep(50 * time.Millisecond) {
			if _, err := peer.Write([]byte(text)); err != nil {
				t.Fatal(err)
			}
			select {
			case line := <-host.lines:
				if line == "message "+text {
					return
				}
				if line != "joined peer -1" && !strings.HasPrefix(line, "message ") {
					t.Fatalf("it prints %q", line)
				}
			default:
			}
		}
		t.Fatal("no message")
	}
	say("hello")
	stop := host.talk("send hello back")
	buf := make([]byte, 2000)
	_ = peer.SetReadDeadline(time.Now().Add(within))
	n, err := peer.Read(buf)
	stop()
	if err != nil || string(buf[:n]) != "hello back" {
		t.Fatalf("the player reads %q, %v", buf[:n], err)
	}
	host.do("disconnect")
	for err == nil {
		_, err = peer.Read(buf)
	}
	if err != io.EOF {
		t.Errorf("the player reads %v", err)
	}
	host.do("send again")
	host.expect("not sent")
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
			host.expect("joined peer")
			if lost {
				r.gate.set(dropping(disconnects))
			}
			if err := peer.Close(); err != nil {
				t.Fatal(err)
			}
			if !lost {
				host.expect("left peer")
				return
			}
			stop := host.talk("send more")
			defer stop()
			host.expect("nolink peer 5 there is no link to the peer (ERROR 5)")
		})
	}
}

// TestNextEndpoint: endpoints that do not answer, of both families, cost seconds and not the match.
func TestNextEndpoint(t *testing.T) {
	t.Parallel()
	r := serve(t, "127.0.0.1")
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
	front := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, q *http.Request) {
		to, err := http.NewRequestWithContext(q.Context(), q.Method, r.url+q.URL.Path, q.Body)
		if err != nil {
			t.Error(err)
			return
		}
		to.Header = q.Header
		res, err := http.DefaultClient.Do(to)
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
		_, _ = w.Write(bytes.Replace(body, []byte(`"serverEndpoints":[`), []byte(`"serverEndpoints":[`+strings.Join(silent, ",")+","), 1))
	}))
	defer front.Close()
	_, code, _ := r.host()
	start := time.Now()
	g := play(t, front.URL, token, code)
	g.expect("ticket")
	g.expect("bound")
	g.expect("connected peer")
	if took := time.Since(start); took < 2*time.Second {
		t.Errorf("it took %v, so that the silent endpoints were not tried", took)
	}
	g.reach("hello")
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
		{"no such code", r.url, token, "7BCDFG", "api 404 15009 "},
		{"no token", r.url, "-", "7BCDFG", "api 401 "},
		{"wrong token", r.url, "nobody-0123456789", "host", "api 401 "},
		{"a trailing slash", r.url + "/", token, "7BCDFG", "api 404 15009 "},
		{"a proxy's page", serving(func(w http.ResponseWriter, _ *http.Request) { http.Error(w, "<html>", http.StatusBadGateway) }), token,
			"host", "api 502 0 HTTP status 502"},
		{"an empty answer", serving(func(w http.ResponseWriter, _ *http.Request) {}), token, "host",
			"api 200 0 the answer has no allocation for UDP"},
		{"a wrong answer", serving(func(w http.ResponseWriter, _ *http.Request) {
			_, _ = w.Write([]byte(`{"data":{"allocation":{"allocationId":"a","allocationIdBytes":"","key":"","connectionData":"","serverEndpoints":[1,{"connectionType":"ws"}]}}}`))
		}), token, "host", "api 200 0 the answer has no allocation for UDP"},
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
			if line := g.next(c.want); !strings.HasPrefix(line, c.want) {
				t.Errorf("it prints %q, want %q", line, c.want)
			} else {
				t.Log(line)
			}
		})
	}
}

// TestJoinCode: what a chat puts into a join code is not sent, and the server judges the rest.
func TestJoinCode(t *testing.T) {
	t.Parallel()
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
	typed := strings.NewReplacer(" ", "%20", "\t", "%09").Replace(" 7B\u00a0C\u200b-O\u2013\u22120\ufeff\tg\u3000\u2028")
	play(t, api.URL, token, typed).expect("api 404 0")
	if code := <-sent; code != "7BCO0g" {
		t.Errorf("it sends %q", code)
	}
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
