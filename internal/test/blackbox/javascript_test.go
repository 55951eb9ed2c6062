//go:build browser

package blackbox

import (
	"encoding/hex"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/ferryrelay/ferry/alloc/api"
	"github.com/ferryrelay/ferry/internal/test/clienttest"
	"github.com/ferryrelay/ferry/internal/test/testkit"
	"github.com/ferryrelay/ferry/proto"
)

// esbuild builds the esbuild of go.mod, once, and returns its path.
var esbuild = sync.OnceValues(func() (string, error) {
	program := filepath.Join(filepath.Dir(binary), "esbuild")
	if out, err := exec.Command("go", "build", "-o", program, "github.com/evanw/esbuild/cmd/esbuild").CombinedOutput(); err != nil {
		return "", fmt.Errorf("%w\n%s", err, out)
	}
	return program, nil
})

func bundle(t *testing.T, entry, out string, flags ...string) {
	t.Helper()
	program, err := esbuild()
	if err != nil {
		t.Fatal(err)
	}
	args := append([]string{entry, "--bundle", "--format=esm", "--target=es2022", "--log-level=warning", "--outfile=" + out}, flags...)
	if out, err := exec.Command(program, args...).CombinedOutput(); err != nil {
		t.Fatalf("esbuild: %v\n%s", err, out)
	}
}

// libraryPage serves a page with client/js and the functions of its tests, ready in a tab.
func libraryPage(t *testing.T, flags ...string) tab {
	t.Helper()
	testkit.Program(t, "chromium", "chromium")
	dir := t.TempDir()
	bundle(t, "../../../client/js/test/page.ts", filepath.Join(dir, "page.js"))
	html := `<!doctype html><meta charset="utf-8"><title>client/js</title><script type="module" src="page.js"></script>`
	if err := os.WriteFile(filepath.Join(dir, "index.html"), []byte(html), 0o600); err != nil {
		t.Fatal(err)
	}
	srv := httptest.NewServer(http.FileServer(http.Dir(dir)))
	t.Cleanup(srv.Close)
	return startChromium(t, flags...).open(srv.URL, "typeof ferry === 'object'")
}

type playerLog struct {
	Joined, Left, Peers []string
	Heard               map[string]int // texts by peer
	Ended               string
	Nonce               uint16
	Changes             []string // reconnecting, reconnected
}

func (p tab) player(name string) (got playerLog) {
	p.t.Helper()
	p.do(&got, "(name => ferry.player(name).log())", name)
	return got
}

// run evaluates an expression that must not throw.
func (p tab) run(expression string) {
	p.t.Helper()
	if err := p.evaluate(expression, nil); err != nil {
		p.t.Fatalf("%s: %v", expression, err)
	}
}

type refusal struct {
	Name, Message, Reason string
	Status, Code          int
	Title, Detail         string
}

func (p tab) fails(expression string) (got refusal) {
	p.t.Helper()
	if err := p.evaluate("ferry.failure(async () => "+expression+")", &got); err != nil {
		p.t.Fatal(err)
	}
	return got
}

func hasLeft(t *testing.T, h *clienttest.HostSession, id string) {
	t.Helper()
	select {
	case left := <-h.Left:
		if left.String() != id {
			t.Errorf("%s has left, want %s", left, id)
		}
	case <-time.After(testkit.WaitLimit):
		t.Errorf("%s does not leave", id)
	}
}

func TestJavaScriptAddresses(t *testing.T) {
	t.Parallel()
	p := libraryPage(t)
	clienttest.TestAddresses(t, func(t *testing.T, url, token string) bool {
		got := p.fails(fmt.Sprintf("new ferry.Allocations(%q, %q).join('7BCDFG')", url, token))
		return got.Name != "TypeError"
	})
}

// TestJavaScriptCodec: client/js decodes what package proto does, to the same fields, and
// encodes and signs the same bytes.
func TestJavaScriptCodec(t *testing.T) {
	t.Parallel()
	p := libraryPage(t)
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	random := rand.New(rand.NewPCG(seed, 0))

	var packets []string
	for range 400 {
		b := randomMessage(random).Append(nil)
		packets = append(packets, hex.EncodeToString(b))
		cut := b[:random.IntN(len(b))]
		long := append(slices.Clone(b), byte(random.Uint32()))
		b = slices.Clone(b)
		b[random.IntN(min(len(b), 40))] ^= 1 << random.IntN(8)
		packets = append(packets, hex.EncodeToString(cut), hex.EncodeToString(long), hex.EncodeToString(b))
	}
	var decoded []*struct {
		Fields map[string]any
		Again  string
	}
	p.do(&decoded, "ferry.decodeAll", packets)
	valid := 0
	for i, packet := range packets {
		b, _ := hex.DecodeString(packet)
		m, err := proto.Decode(b)
		got := decoded[i]
		if kind, err := proto.ParseType(b); err == nil && kind == proto.TypeRejected {
			if got == nil || got.Fields["type"] != "REJECTED" { // Of any size.
				t.Errorf("%s: %v, want REJECTED", packet, got)
			}
			continue
		}
		if err != nil {
			if got != nil {
				t.Errorf("%s: %v, want nothing: %v", packet, got.Fields, err)
			}
			continue
		}
		valid++
		if want := fields(m); got == nil || !reflect.DeepEqual(got.Fields, want) || got.Again != packet {
			t.Errorf("%s: %+v, want %v", packet, got, want)
		}
	}
	if valid < 300 {
		t.Errorf("only %d packets were valid", valid)
	}

	var binds [][]any
	var want []string
	for range 50 {
		var key proto.Key
		fill(random, key[:])
		bind := proto.Bind{Nonce: uint16(random.Uint32()), ConnectionData: randomBytes(random, random.IntN(256))}
		var s proto.Signer
		want = append(want, hex.EncodeToString(s.Append(nil, bind, &key)))
		binds = append(binds, []any{hex.EncodeToString(key[:]), bind.Nonce, hex.EncodeToString(bind.ConnectionData)})
	}
	var signed []string
	p.do(&signed, "ferry.signAll", binds)
	if !slices.Equal(signed, want) {
		t.Errorf("BINDs are signed as\n%s, want\n%s", strings.Join(signed, "\n"), strings.Join(want, "\n"))
	}

	const id = "10111213-1415-1617-1819-1a1b1c1d1e1f"
	for _, wrong := range []string{
		`ferry.encode({type: "CONNECT_REQUEST", id: "` + id + `", connectionData: new Uint8Array(256)})`,
		`ferry.encode({type: "RELAY", from: "` + id + `", to: "` + id + `", content: new Uint8Array(1435)})`,
		`ferry.encode({type: "CLOSE", id: "` + id[1:] + `"})`,
		`ferry.encode({type: "BIND", mode: 0, nonce: 65536, connectionData: new Uint8Array(1), mac: new Uint8Array(32)})`,
		`ferry.encode({type: "BIND", mode: 0, nonce: 1, connectionData: new Uint8Array(1), mac: new Uint8Array(31)})`,
		`ferry.importKey(new Uint8Array(63))`,
	} {
		if got := p.fails(wrong); got.Name != "RangeError" {
			t.Errorf("%s: %+v", wrong, got)
		}
	}
}

// fields returns the fields of a message as client/js names them, bytes in hex.
func fields(m proto.Message) map[string]any {
	number := func(n uint16) float64 { return float64(n) }
	switch m := m.(type) {
	case proto.Bind:
		return map[string]any{
			"type": "BIND", "mode": number(uint16(m.AcceptMode)), "nonce": number(m.Nonce),
			"connectionData": hex.EncodeToString(m.ConnectionData), "mac": hex.EncodeToString(m.MAC[:]),
		}
	case proto.BindReceived:
		return map[string]any{"type": "BIND_RECEIVED"}
	case proto.Ping:
		return map[string]any{"type": "PING", "id": m.ID.String(), "number": number(m.Number)}
	case proto.ConnectRequest:
		return map[string]any{"type": "CONNECT_REQUEST", "id": m.ID.String(), "connectionData": hex.EncodeToString(m.ConnectionData)}
	case proto.Accepted:
		return map[string]any{"type": "ACCEPTED", "from": m.From.String(), "to": m.To.String()}
	case proto.Disconnect:
		return map[string]any{"type": "DISCONNECT", "from": m.From.String(), "to": m.To.String()}
	case proto.Relay:
		return map[string]any{"type": "RELAY", "from": m.From.String(), "to": m.To.String(), "content": hex.EncodeToString(m.Payload)}
	case proto.Close:
		return map[string]any{"type": "CLOSE", "id": m.ID.String()}
	case proto.Error:
		return map[string]any{"type": "ERROR", "id": m.ID.String(), "code": number(uint16(m.Code))}
	}
	return nil
}

// randomMessage returns a message of any type, except REJECTED, with random fields.
func randomMessage(r *rand.Rand) proto.Message {
	var a, b proto.AllocationID
	fill(r, a[:])
	fill(r, b[:])
	n := uint16(r.Uint32())
	switch r.IntN(9) {
	case 0:
		m := proto.Bind{AcceptMode: uint8(n), Nonce: n, ConnectionData: randomBytes(r, r.IntN(256))}
		fill(r, m.MAC[:])
		return m
	case 1:
		return proto.BindReceived{}
	case 2:
		return proto.Ping{ID: a, Number: n}
	case 3:
		return proto.ConnectRequest{ID: a, ConnectionData: randomBytes(r, r.IntN(256))}
	case 4:
		return proto.Accepted{From: a, To: b}
	case 5:
		return proto.Disconnect{From: a, To: b}
	case 6:
		return proto.Relay{From: a, To: b, Payload: randomBytes(r, r.IntN(proto.MaxContent+1))}
	case 7:
		return proto.Close{ID: a}
	default:
		return proto.Error{ID: a, Code: proto.ErrorCode(n)}
	}
}

func fill(r *rand.Rand, b []byte) {
	for i := range b {
		b[i] = byte(r.Uint32())
	}
}

func randomBytes(r *rand.Rand, n int) []byte {
	b := make([]byte, n)
	fill(r, b)
	return b
}

// TestJavaScriptMatch: a page with client/js plays with a Go host, and hosts a match of its own
// with players of Go and of JavaScript, by ws and by wss.
func TestJavaScriptMatch(t *testing.T) {
	t.Parallel()
	testkit.Program(t, "chromium", "chromium")
	for _, kind := range []string{"ws", "wss"} {
		t.Run(kind, func(t *testing.T) { testJavaScriptMatch(t, kind) })
	}
}

func testJavaScriptMatch(t *testing.T, kind string) {
	id := newIdentity(t)
	flags := slices.Clone(unhurried)
	if kind == "wss" {
		flags = append(flags, "--tls-cert", id.cert, "--tls-key", id.key, "--advertise-name", testName)
	}
	f := newPlace(t).serve(flags...)
	defer f.Stop()
	f.http = id.browse("127.0.0.1")
	calls := &api.Client{BaseURL: f.api, Token: token, HTTP: f.http}
	p := libraryPage(t, "--host-resolver-rules=MAP "+testName+" 127.0.0.1", "--ignore-certificate-errors-spki-list="+id.pin)

	host := clienttest.Host(t, calls, 4, nil)
	var ana, ben string
	p.do(&ana, "ferry.join", "ana", f.api, token, host.Code)
	p.do(&ben, "ferry.join", "ben", f.api, token, host.Code)
	p.do(nil, "ferry.say", "ana", 0, texts)
	p.do(nil, "ferry.say", "ben", 0, texts)
	p.hears("ana", map[string]int{host.ID().String(): texts})
	p.hears("ben", map[string]int{host.ID().String(): texts})
	p.run("ferry.player('ana').connection.close()")
	hasLeft(t, host, ana)
	p.ends("ana", "closed")
	peer, _ := host.Peer(mustID(t, ben))
	if err := peer.Close(); err != nil {
		t.Fatal(err)
	}
	hasLeft(t, host, ben)
	p.eventually("the host's DISCONNECT is at the page", "ben",
		func(l playerLog) bool { return slices.Equal(l.Left, []string{host.ID().String()}) })
	if got := p.fails("ferry.say('ben', 0, 1)"); got.Reason != "not-connected" {
		t.Errorf("sending without a link: %+v", got)
	}
	p.run("ferry.player('ben').connection.connect()")
	p.do(nil, "ferry.say", "ben", texts, 2*texts)
	p.hears("ben", map[string]int{host.ID().String(): 2 * texts})
	p.run("ferry.player('ben').connection.disconnect(" + strconv.Quote(host.ID().String()) + ")")
	hasLeft(t, host, ben)
	p.run("ferry.player('ben').connection.connect()")
	p.do(nil, "ferry.say", "ben", 2*texts, 3*texts)
	p.hears("ben", map[string]int{host.ID().String(): 3 * texts})

	var code, cleo string
	p.do(&code, "ferry.host", "host", f.api, token, 4)
	p.do(&cleo, "ferry.join", "cleo", f.api, token, code)
	p.do(nil, "ferry.say", "cleo", 0, texts)
	udp, udpID := overUDP(t, calls, code)
	converse(t, udp, texts)
	p.hears("host", map[string]int{cleo: texts, udpID.String(): texts})
	p.run("ferry.player('cleo').connection.close()")
	_ = udp.Close()
	p.eventually("both players have left", "host", func(l playerLog) bool {
		return len(l.Left) == 2 && slices.Contains(l.Left, cleo) && slices.Contains(l.Left, udpID.String()) && len(l.Peers) == 0
	})
	if got := p.player("host"); len(got.Joined) != 2 || got.Ended != "" {
		t.Errorf("the host recorded %+v", got)
	}
	p.run("ferry.player('host').connection.close()")
	p.ends("host", "closed")
	testkit.Eventually(t, "the page's match has ended", func() bool { return f.metric(`ferry_allocations`) == 3 })
}

// TestJavaScriptSameAllocation: a page that opens an allocation while another connection of its origin has it is told
// so, until that has ended.
func TestJavaScriptSameAllocation(t *testing.T) {
	t.Parallel()
	f := dev(t)
	p := libraryPage(t)
	p.run(fmt.Sprintf(`(async () => {
		const a = await new ferry.Allocations(%q, "").allocate(2)
		globalThis.again = nonce => ferry.open("again", a, { nonce })
		await ferry.open("first", a)
	})()`, f.api))
	if got := p.fails("again(1)"); got.Reason != "in-use" || !strings.Contains(got.Message, "another session uses this allocation") {
		t.Errorf("a second connection: %+v", got)
	}
	if got := p.player("first"); got.Ended != "" || len(got.Changes) != 0 {
		t.Errorf("the first one has recorded %+v", got)
	}
	p.run("ferry.player('first').connection.close()")
	if got := p.fails("again(1)"); got.Reason != "not-found" { // It has ended the allocation.
		t.Errorf("a connection after the first one: %+v", got)
	}
}

func (p tab) eventually(what, name string, cond func(playerLog) bool) {
	p.t.Helper()
	var got playerLog
	if !testkit.Poll(testkit.WaitLimit, func() bool { got = p.player(name); return cond(got) }) {
		p.t.Fatalf("not within %v: %s; %s has recorded %+v", testkit.WaitLimit, what, name, got)
	}
}

// hears waits until a player has received that many different texts of each peer.
func (p tab) hears(name string, want map[string]int) {
	p.t.Helper()
	p.eventually(fmt.Sprintf("%s has received %v", name, want), name, func(l playerLog) bool { return reflect.DeepEqual(l.Heard, want) })
}

func (p tab) ends(name, reason string) {
	p.t.Helper()
	p.eventually(fmt.Sprintf("the connection of %s has ended", name), name, func(l playerLog) bool { return l.Ended != "" })
	if got := p.player(name); got.Ended != reason {
		p.t.Errorf("the connection of %s ended with %q, want %q", name, got.Ended, reason)
	}
}

func mustID(t *testing.T, text string) proto.AllocationID {
	t.Helper()
	id, err := proto.ParseAllocationID(text)
	if err != nil {
		t.Fatal(err)
	}
	return id
}

// nodeVersion returns the major version of Node, if it is one that client/js is for.
func nodeVersion(t *testing.T, node string) int {
	t.Helper()
	version, err := exec.Command(node, "-p", "process.versions.node.split('.')[0]").Output()
	if err != nil {
		t.Fatal(err)
	}
	major, err := strconv.Atoi(strings.TrimSpace(string(version)))
	if err != nil || major < 20 {
		testkit.Missing(t, fmt.Sprintf("Node 20 or later, which client/js needs, in place of %d", major), "nodejs of Debian 13")
	}
	return major
}

// TestJavaScriptNode: the same library plays in Node by its own WebSocket, from 22 on without a
// flag. TestJavaScriptPackage passes a constructor.
func TestJavaScriptNode(t *testing.T) {
	t.Parallel()
	node := testkit.Program(t, "node", "nodejs")
	flags := []string{"--input-type=module"}
	if nodeVersion(t, node) < 22 {
		flags = append(flags, "--experimental-websocket")
	}
	f := dev(t)
	host := clienttest.Host(t, &api.Client{BaseURL: f.api}, 4, nil)
	script := filepath.Join(t.TempDir(), "page.mjs")
	bundle(t, "../../../client/js/test/page.ts", script)
	cmd := exec.CommandContext(t.Context(), node, append(flags, "-")...)
	cmd.Stdin = strings.NewReader(fmt.Sprintf(`
		await import(%q)
		await ferry.join("ana", %q, "", %q)
		ferry.say("ana", 0, %d)
		while (ferry.player("ana").log().heard[%[5]q] !== %[4]d) await new Promise(resolve => setTimeout(resolve, 10))
		ferry.player("ana").connection.close()
		await ferry.player("ana").connection.ended
		console.log(JSON.stringify(ferry.player("ana").log()))
	`, script, f.api, host.Code, texts, host.ID().String()))
	cmd.Stderr = os.Stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatal(err)
	}
	var got playerLog
	if err := json.Unmarshal(out, &got); err != nil || got.Heard[host.ID().String()] != texts {
		t.Errorf("Node's player recorded %s", out)
	}
}
