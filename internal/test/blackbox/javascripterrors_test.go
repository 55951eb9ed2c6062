//go:build browser

package blackbox

import (
	"bytes"
	"context"
	"encoding/hex"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	ws "github.com/coder/websocket"

	"github.com/ferryrelay/ferry/alloc/api"
	"github.com/ferryrelay/ferry/internal/test/clienttest"
	"github.com/ferryrelay/ferry/internal/test/testkit"
	"github.com/ferryrelay/ferry/proto"
)

// TestJavaScriptAPIErrors: each refusal of the API, and each answer that is not one of the API,
// is an ApiError with status, code and detail.
func TestJavaScriptAPIErrors(t *testing.T) {
	t.Parallel()
	p := libraryPage(t)
	f := newPlace(t).serve("--allow-origins", "*")
	defer f.Stop()
	strict := dev(t, "--allow-origins", "https://game.example.org")
	broken := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Access-Control-Allow-Origin", "*")
		w.Header().Set("Access-Control-Allow-Headers", "Authorization, Content-Type, Accept")
		switch {
		case r.Method == http.MethodOptions:
		case strings.HasPrefix(r.URL.Path, "/proxy/"):
			http.Error(w, "<html>Bad Gateway</html>", http.StatusBadGateway)
		case strings.HasPrefix(r.URL.Path, "/moved/"):
			http.Redirect(w, r, f.api+strings.TrimPrefix(r.URL.Path, "/moved"), http.StatusTemporaryRedirect)
		case strings.HasPrefix(r.URL.Path, "/short/"):
			w.WriteHeader(http.StatusCreated)
			fmt.Fprint(w, `{"data":{"joinCode":"","allocation":{"allocationIdBytes":"EBESExQVFhcYGRobHB0eHw==","key":"AAEC","connectionData":null,"serverEndpoints":[{"connectionType":"ws","host":"127.0.0.1","port":1}]}}}`)
		default:
			w.WriteHeader(http.StatusCreated)
			fmt.Fprint(w, "not JSON")
		}
	}))
	defer broken.Close()
	calls := func(base, token, call string) string {
		return fmt.Sprintf("new ferry.Allocations(%q, %q).%s", base, token, call)
	}
	for _, test := range []struct {
		expression   string
		status, code int
		title, text  string // text: a part of the message
	}{
		{calls(f.api, token, `join("6789BC")`), 404, 15009, "Not Found", "join code not found"},
		{calls(f.api+"/", token, `join("not a code")`), 404, 15009, "Not Found", "join code not found"},
		{calls(f.api, token, `allocate(4, "nowhere")`), 400, 15007, "Bad Request", "region not found"},
		{calls(f.api, token, `allocate(0)`), 400, 15001, "Bad Request", "invalid request; maxConnections: "},
		{calls(f.api, "wrong", `allocate(4)`), 401, 15401, "Unauthorized", ""},
		{calls(f.api, "", `allocate(4)`), 401, 15401, "Unauthorized", ""},
		{calls(f.api, token, `joinCode({id: "10111213-1415-1617-1819-1a1b1c1d1e1f"})`), 404, 15008, "Not Found", "allocation"},
		{calls("http://127.0.0.1:"+testkit.FreePort(t), "", `allocate(4)`), 0, 15998, "No answer", "fetch"},
		{calls(strict.api, "", `allocate(4)`), 0, 15998, "No answer", "fetch"},
		{calls(broken.URL+"/proxy", "", `allocate(4)`), 502, 15502, "Bad Gateway", "not a problem document"},
		{calls(broken.URL+"/moved", token, `allocate(4)`), 0, 15998, "No answer", "fetch"},
		{calls(broken.URL+"/text", "", `allocate(4)`), 201, 15999, "Invalid answer", "data"},
		{calls(broken.URL+"/short", "", `allocate(4)`), 200, 15999, "Invalid answer", "key"},
		{calls(broken.URL+"/short", "", `joinCode({id: ""})`), 200, 15999, "Invalid answer", "joinCode"},
	} {
		got := p.fails(test.expression)
		if got.Name != "ApiError" || got.Status != test.status || got.Code != test.code || got.Title != test.title ||
			!strings.Contains(got.Message, test.text) {
			t.Errorf("%s: %+v, want %d, %d, %q, %q", test.expression, got, test.status, test.code, test.title, test.text)
		}
	}
}

// TestJavaScriptNextEndpoint: endpoints that refuse, or take the connection and are silent, cost a
// second and not the match.
func TestJavaScriptNextEndpoint(t *testing.T) {
	t.Parallel()
	p := libraryPage(t)
	f := dev(t)
	host := clienttest.Host(t, &api.Client{BaseURL: f.api}, 4, nil)
	silent, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer silent.Close()
	for name, first := range map[string]string{"silent": silent.Addr().String(), "refusing": "127.0.0.1:" + testkit.FreePort(t)} {
		_, port, _ := net.SplitHostPort(first)
		p.run(fmt.Sprintf(`(async () => {
			const a = await new ferry.Allocations(%q).join(%q), first = { connectionType: "ws", host: "127.0.0.1", port: %s }
			a.endpoints.unshift(first)
			await (await ferry.open(%q, a)).connection.connect()
		})()`, f.api, host.Code, port, name))
		p.do(nil, "ferry.say", name, 0, 3)
		p.hears(name, map[string]int{host.ID().String(): 3})
		p.run(fmt.Sprintf(`(async () => {
			const a = await new ferry.Allocations(%q).join(%q)
			a.endpoints = [{ connectionType: "ws", host: "127.0.0.1", port: %s }]
			const e = await ferry.failure(() => ferry.Connection.open(a, { bindTimeout: 1500 }))
			if (e.reason !== (%q === "silent" ? "bind-timeout" : "unreachable")) throw new Error(JSON.stringify(e))
		})()`, f.api, host.Code, port, name))
	}
}

// TestJavaScriptRefusals: each refusal of the relay is a RelayError with its reason.
func TestJavaScriptRefusals(t *testing.T) {
	t.Parallel()
	p := libraryPage(t)
	f := dev(t, "--idle-timeout", "3s")
	calls := &api.Client{BaseURL: f.api}
	host, other := clienttest.Host(t, calls, 1, nil), clienttest.Host(t, calls, 4, nil)
	refused := func(expression, reason string) {
		t.Helper()
		if got := p.fails(expression); got.Name != "RelayError" || got.Reason != reason {
			t.Errorf("%s: %+v, want %s", expression, got, reason)
		}
	}
	p.run(fmt.Sprintf("globalThis.api = new ferry.Allocations(%q); globalThis.code = %q; globalThis.other = %q", f.api, host.Code, other.Code))

	refused(`(async () => { const a = await api.allocate(1); a.key[0] ^= 1; await ferry.Connection.open(a, {bindTimeout: 1000}) })()`, "bind-timeout")
	if f.metric(`ferry_drops_total{reason="mac"}`) == 0 {
		t.Error("the relay has seen no wrong MAC")
	}
	refused(`(async () => { const a = await api.allocate(1), c = await api.joinCode(a); await ferry.join("early", `+fmt.Sprintf("%q", f.api)+
		`, "", c, {connectTimeout: 500}) })()`, "connect-timeout")
	refused(`(async () => { const a = await api.join(code); a.hostConnectionData = a.connectionData; await (await ferry.Connection.open(a)).connect() })()`, "self-connect")
	refused(`(async () => { const a = await api.join(code); a.hostConnectionData = (await api.join(other)).hostConnectionData; await (await ferry.Connection.open(a)).connect() })()`, "unauthorized")

	var first, second string
	p.do(&first, "ferry.join", "first", f.api, "", host.Code)
	refused(fmt.Sprintf(`ferry.join("second", %q, "", code)`, f.api), "rejected")
	p.do(nil, "ferry.say", "first", 0, 3)
	p.hears("first", map[string]int{host.ID().String(): 3})
	if got := p.fails(`ferry.player("first").connection.send(new Uint8Array(1349))`); got.Name != "RangeError" {
		t.Errorf("1,349 bytes: %+v", got)
	}
	if got := p.fails(`ferry.player("first").connection.send("text")`); got.Name != "TypeError" {
		t.Errorf("a text: %+v", got)
	}
	if err := host.Close(); err != nil { // It ends its link, then its allocation.
		t.Fatal(err)
	}
	p.eventually("the page learns that its host has left", "first", func(l playerLog) bool { return len(l.Left) == 1 && len(l.Peers) == 0 })
	refused(`ferry.player("first").connection.connect()`, "not-found")
	refused(`ferry.player("first").connection.send(new Uint8Array(1))`, "not-connected")
	// The relay ends the WebSocket after that, and the player's own allocation goes on.
	p.eventually("the page is bound again, and was told nothing", "first", func(l playerLog) bool {
		return l.Nonce == 1 && l.Ended == "" &&
			len(l.Changes) == 0
	})
	p.run(`ferry.player("first").connection.close()`)
	var sent bool
	p.do(&sent, `(() => ferry.player("first").connection.send(new Uint8Array(1)))`)
	if sent {
		t.Error("it sends after the end")
	}

	// A host that ends without a DISCONNECT: ERROR 5 tells its player.
	var code string
	p.do(&code, "ferry.host", "host", f.api, "", 1)
	p.do(&second, "ferry.join", "second", f.api, "", code)
	p.do(nil, "ferry.say", "second", 0, 1)
	p.eventually("the page's host has heard its player", "host", func(l playerLog) bool { return l.Heard[second] == 1 })
	f.end(p.player("second").Peers[0])
	p.do(nil, "ferry.say", "second", 1, 2)
	p.eventually("ERROR 5 is at the page", "second", func(l playerLog) bool { return len(l.Left) == 1 && l.Ended == "" })
	p.run(`ferry.player("second").connection.close()`)

	// The relay's pings of WebSocket keep a page, but not before the limit of a lone host.
	alone := dev(t, "--host-alone-timeout", "2s")
	p.run(fmt.Sprintf(`(async () => {
		await ferry.open("silent", await new ferry.Allocations(%q).allocate(1), { pingPeriod: %d })
	})()`, alone.api, time.Hour.Milliseconds()))
	p.ends("silent", "idle-timeout")
}

func (f *ferry) end(id string) {
	f.t.Helper()
	if status, body := f.ask("DELETE", f.admin+"/allocations/"+id, ""); status/100 != 2 {
		f.t.Fatalf("DELETE: %d %s", status, body)
	}
}

// TestJavaScriptRestart: after a crash of the relay the page's connection opens again by itself,
// and plays the same match.
func TestJavaScriptRestart(t *testing.T) {
	t.Parallel()
	p := libraryPage(t)
	place := newPlace(t)
	flags := append(slices.Clone(unhurried), "--http", "127.0.0.1:"+testkit.FreePort(t), "--udp", "127.0.0.1:"+testkit.FreePort(t),
		"--advertise", "127.0.0.1")
	f := place.serve(flags...)
	host := clienttest.Host(t, &api.Client{BaseURL: f.api, Token: token}, 4, nil)
	p.do(nil, "ferry.join", "ana", f.api, token, host.Code)
	p.do(nil, "ferry.say", "ana", 0, 10)
	p.hears("ana", map[string]int{host.ID().String(): 10})
	f.Crash()
	p.eventually("the page is told", "ana", func(l playerLog) bool { return slices.Equal(l.Changes, []string{"reconnecting"}) })
	f = place.serve(flags...)
	defer f.Stop()
	p.do(nil, "ferry.say", "ana", 10, 20)
	p.hears("ana", map[string]int{host.ID().String(): 20})
	if got := p.player("ana"); !slices.Equal(got.Changes, []string{"reconnecting", "reconnected"}) || len(got.Left) > 0 {
		t.Errorf("the page was told %+v", got)
	}
}

type fakeRelay struct {
	t        *testing.T
	url      string
	accepted chan *ws.Conn
	id       proto.AllocationID
	key      proto.Key
	data     []byte
}

func newFakeRelay(t *testing.T) *fakeRelay {
	r := &fakeRelay{t: t, accepted: make(chan *ws.Conn, 10), data: bytes.Repeat([]byte{7}, 255)}
	for i := range r.key {
		r.key[i] = byte(i)
	}
	r.id = proto.AllocationID{1, 2, 3}
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, q *http.Request) {
		conn, err := ws.Accept(w, q, &ws.AcceptOptions{InsecureSkipVerify: true}) // Of any origin.
		if err != nil {
			return
		}
		r.accepted <- conn
	}))
	t.Cleanup(srv.Close)
	r.url = "ws" + strings.TrimPrefix(srv.URL, "http")
	return r
}

// opens makes the page open a host's connection with that name, without waiting for it, and
// returns the other end. The connection does not open again when it is lost: the next one that
// is accepted is that of the next call.
func (r *fakeRelay) opens(p tab, name, options string) *ws.Conn {
	r.t.Helper()
	p.run(fmt.Sprintf(`void (globalThis.opened = ferry.open(%q, {
		id: %q, key: ferry.bytes("%x"), connectionData: ferry.bytes("%x"), region: "", endpoints: [{connectionType: "ws", host: "127.0.0.1", port: 1}],
	}, {url: %q, reconnectTimeout: 0, %s})).catch(() => {})`, name, r.id, r.key[:], r.data, r.url, options))
	select {
	case conn := <-r.accepted:
		r.t.Cleanup(func() { _ = conn.CloseNow() })
		return conn
	case <-time.After(testkit.WaitLimit):
		r.t.Fatal("the page opens no WebSocket")
	}
	return nil
}

func (r *fakeRelay) send(conn *ws.Conn, messages ...[]byte) {
	r.t.Helper()
	for _, m := range messages {
		if err := conn.Write(r.t.Context(), ws.MessageBinary, m); err != nil {
			r.t.Fatal(err)
		}
	}
}

// next returns the next message of the page of some type, and answers PINGs before it.
func (r *fakeRelay) next(conn *ws.Conn, want proto.Type) []byte {
	r.t.Helper()
	ctx, cancel := context.WithTimeout(r.t.Context(), testkit.WaitLimit)
	defer cancel()
	for {
		_, m, err := conn.Read(ctx)
		if err != nil {
			r.t.Fatalf("waiting for %v: %v", want, err)
		}
		if kind, err := proto.ParseType(m); err != nil {
			r.t.Fatalf("the page sent %x: %v", m, err)
		} else if kind == want {
			return m
		} else if kind == proto.TypePing {
			r.send(conn, m)
		}
	}
}

// nextBind demands an authentic BIND with that nonce as the next one.
func (r *fakeRelay) nextBind(conn *ws.Conn, nonce uint16) {
	r.t.Helper()
	m := r.next(conn, proto.TypeBind)
	bind, err := proto.ParseBind(m)
	var s proto.Signer
	if err != nil || bind.Nonce != nonce || !bytes.Equal(bind.ConnectionData, r.data) || !s.Verify(m, &r.key) {
		r.t.Fatalf("%v, %v, authentic %v; want nonce %d", bind, err, s.Verify(m, &r.key), nonce)
	}
}

// TestJavaScriptMalformed: the page repeats requests, ignores all that is malformed or for
// another player, and notices a relay that is silent or gone.
func TestJavaScriptMalformed(t *testing.T) {
	t.Parallel()
	p := libraryPage(t)
	r := newFakeRelay(t)
	peer, stranger := proto.AllocationID{9}, proto.AllocationID{8}
	bound := proto.BindReceived{}.Append(nil)

	conn := r.opens(p, "host", "retryPeriod: 50, pingPeriod: 5000")
	for range 3 {
		r.nextBind(conn, 0)
	}
	valid := []proto.Message{
		proto.BindReceived{}, proto.Ping{ID: r.id}, proto.Accepted{From: peer, To: r.id}, proto.Disconnect{From: peer, To: r.id},
		proto.Relay{From: peer, To: r.id, Payload: []byte("text")}, proto.Error{ID: r.id, Code: proto.ErrorNotFound},
		proto.Error{ID: r.id, Code: proto.ErrorTimeout},
	}
	malformed := [][]byte{{}, bytes.Repeat([]byte{0xda}, 2000)}
	for _, m := range valid {
		b := m.Append(nil)
		for n := range b {
			malformed = append(malformed, b[:n])
		}
		malformed = append(malformed, append(b, 0))
		for i := range proto.HeaderLen {
			wrong := m.Append(nil)
			wrong[i] ^= 0x40 // another signature, version or type
			malformed = append(malformed, wrong)
		}
	}
	malformed = append(malformed,
		proto.Relay{From: peer, To: stranger, Payload: []byte("for another player")}.Append(nil),
		proto.Disconnect{From: peer, To: stranger}.Append(nil),
		proto.Error{ID: stranger, Code: proto.ErrorNotFound}.Append(nil),
		proto.Error{Code: proto.ErrorVersion}.Append(nil),
		proto.Error{ID: r.id, Code: 77}.Append(nil),
		proto.Error{ID: r.id, Code: proto.ErrorNotConnected}.Append(nil),
		proto.Rejected{From: peer, To: r.id}.Append(nil), proto.Accepted{From: peer, To: r.id}.Append(nil), // It asked for no link.
		proto.Close{ID: r.id}.Append(nil),
	)
	r.send(conn, malformed...)
	if err := conn.Write(t.Context(), ws.MessageText, []byte("text")); err != nil {
		t.Fatal(err)
	}
	r.nextBind(conn, 0)
	r.send(conn, bound)
	p.run("opened")
	if got := p.player("host"); len(got.Joined)+len(got.Left)+len(got.Heard)+len(got.Peers) > 0 || got.Ended != "" {
		t.Fatalf("after malformed messages: %+v", got)
	}

	said := proto.Relay{From: peer, To: r.id, Payload: []byte("hello")}
	r.send(conn, said.Append(nil))
	if got, want := r.next(conn, proto.TypeRelay),
		(proto.Relay{From: r.id, To: peer, Payload: said.Payload}).Append(nil); !bytes.Equal(got, want) {
		t.Errorf("the page answers %x, want %x", got, want)
	}
	r.send(conn, malformed...)
	mismatch := proto.Error{ID: r.id, Code: proto.ErrorMismatch}.Append(nil)
	r.send(conn, mismatch, mismatch)
	r.nextBind(conn, 1)
	r.nextBind(conn, 1)
	r.send(conn, bound, proto.Disconnect{From: peer, To: r.id}.Append(nil), proto.Disconnect{From: peer, To: r.id}.Append(nil))
	p.eventually("the peer has left", "host", func(l playerLog) bool { return len(l.Left) == 1 && len(l.Joined) == 1 && l.Nonce >= 1 })
	if ping, err := proto.ParsePing(r.next(conn, proto.TypePing)); err != nil || ping.ID != r.id {
		t.Errorf("%v, %v", ping, err)
	}
	p.run(`ferry.player("host").connection.close()`)
	if m, err := proto.ParseClose(r.next(conn, proto.TypeClose)); err != nil || m.ID != r.id {
		t.Errorf("%v, %v", m, err)
	}
	if _, _, err := conn.Read(t.Context()); ws.CloseStatus(err) != ws.StatusNormalClosure {
		t.Errorf("the page ends with %v", err)
	}
	p.ends("host", "closed")

	// A DISCONNECT is repeated until it comes back; messages on their way bring no peer back.
	conn = r.opens(p, "leaver", "pingPeriod: 2000")
	r.send(conn, bound, said.Append(nil))
	r.next(conn, proto.TypeRelay)
	p.run(fmt.Sprintf("ferry.player('leaver').connection.disconnect(%q)", peer))
	disconnect := proto.Disconnect{From: r.id, To: peer}.Append(nil)
	for range 3 {
		if got := r.next(conn, proto.TypeDisconnect); !bytes.Equal(got, disconnect) {
			t.Errorf("%x, want %x", got, disconnect)
		}
	}
	r.send(conn, said.Append(nil), disconnect, said.Append(nil))
	p.eventually("the peer is new after the echo", "leaver", func(l playerLog) bool { return len(l.Joined) == 2 && len(l.Left) == 0 })
	p.run("ferry.player('leaver').connection.close()") // A page uses an allocation once at a time.

	// The queue of events is bounded.
	conn = r.opens(p, "unread", "pingPeriod: 20000")
	r.send(conn, bound)
	p.run("opened")
	_ = conn.CloseNow()
	p.ends("unread", "lost")
	p.run(fmt.Sprintf(`void (globalThis.queue = ferry.Connection.open(ferry.player("unread").allocation, {url: %q, maxEvents: 5, reconnectTimeout: 0, pingPeriod: 20000}))`, r.url))
	conn = <-r.accepted
	r.send(conn, bound)
	for i := range 8 {
		r.send(conn, proto.Relay{From: peer, To: r.id, Payload: []byte{byte(i)}}.Append(nil))
	}
	testkit.Eventually(t, "four messages are dropped", func() bool {
		var dropped int
		return p.evaluate("queue.then(c => c.dropped)", &dropped) == nil && dropped == 4
	})
	_ = conn.Close(ws.StatusGoingAway, "")
	var events []string
	p.do(&events, `(async () => {
		const events = []
		try { for await (const e of await queue) events.push(e.type + (e.content ?? "")) } catch (e) { events.push(e.reason) }
		return events
	})`)
	if got := strings.Join(events, " "); got != "join message0 message1 message2 message3 lost" {
		t.Errorf("the page reads %s", got)
	}

	// Too much waits to be sent.
	conn = r.opens(p, "sender", "maxBuffered: 100000, pingPeriod: 20000")
	r.send(conn, bound, said.Append(nil))
	r.next(conn, proto.TypeRelay)
	var sent int
	p.do(&sent, `(peer => { let n = 0; while (n < 1e6 && ferry.player("sender").connection.send(new Uint8Array(1348), peer)) n++; return n })`, peer.String())
	if sent < 69 || sent == 1e6 {
		t.Errorf("the page sent %d messages before it dropped one", sent)
	}
	if got := p.fails(fmt.Sprintf(`ferry.player("sender").connection.send(new Uint8Array(1), %q)`, stranger)); got.Reason != "not-connected" {
		t.Errorf("to another player: %+v", got)
	}
	p.run("ferry.player('sender').connection.close()")

	// The timers of a hidden page do not run; it sends PINGs when messages arrive.
	p.run("globalThis.realInterval = setInterval; globalThis.setInterval = () => 0")
	conn = r.opens(p, "hidden", "pingPeriod: 0")
	p.run("globalThis.setInterval = realInterval")
	r.nextBind(conn, 0)
	r.send(conn, bound, said.Append(nil))
	for range 3 {
		r.send(conn, r.next(conn, proto.TypePing))
	}
	p.run("ferry.player('hidden').connection.close()")

	for reason, answer := range map[string][]byte{"bind-timeout": nil, "lost": bound} {
		conn = r.opens(p, reason, "pingPeriod: 30, bindTimeout: 3000")
		r.nextBind(conn, 0)
		if answer != nil {
			r.send(conn, answer)
		}
		closed := make(chan error, 1)
		go func() {
			for {
				if _, _, err := conn.Read(t.Context()); err != nil {
					closed <- err
					return
				}
			}
		}()
		if err := <-closed; ws.CloseStatus(err) != ws.StatusNormalClosure {
			t.Errorf("%s: the page ends with %v", reason, err)
		}
		if answer != nil {
			p.ends(reason, "lost")
		} else if got := p.fails("opened"); got.Reason != reason {
			t.Errorf("%+v, want %s", got, reason)
		}
	}
	if got := p.fails(fmt.Sprintf(`ferry.Connection.open({...ferry.player("lost").allocation, key: ferry.bytes(%q)})`,
		hex.EncodeToString(r.key[1:]))); got.Name != "RangeError" {
		t.Errorf("a key of 63 bytes: %+v", got)
	}
	if got := p.fails(`ferry.Connection.open({...ferry.player("lost").allocation, endpoints: []})`); got.Name != "TypeError" {
		t.Errorf("no endpoint: %+v", got)
	}
}
