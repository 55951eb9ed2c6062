//go:build browser

package blackbox

import (
	"encoding/hex"
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"

	"github.com/ferryrelay/ferry/alloc/api"
	"github.com/ferryrelay/ferry/internal/test/testkit"
	"github.com/ferryrelay/ferry/internal/test/wiretest"
	"github.com/ferryrelay/ferry/proto"
)

const tallyReady = "typeof tally === 'function'"

const texts = 200

type tally struct {
	Heard   map[string]int // texts by sender
	Largest int            // bytes of a message
	Last    string         // message in hex
	Closed  *struct {
		Code  int
		Clean bool
	}
}

func (p tab) tally() (got tally) {
	p.t.Helper()
	p.do(&got, "tally")
	return got
}

// pages serves the page from an origin of its own, so that the API is another one.
func pages(t *testing.T) string {
	t.Helper()
	srv := httptest.NewServer(http.FileServer(http.Dir("testdata")))
	t.Cleanup(srv.Close)
	return srv.URL + "/player.html"
}

// TestBrowser: a real browser is host and player of a match, by ws and by wss, with
// a player over UDP and one over DTLS. Everything arrives, but what is too large
// for a browser's client.
func TestBrowser(t *testing.T) {
	t.Parallel()
	testkit.Program(t, "chromium", "chromium")
	for _, kind := range []string{"ws", "wss"} {
		t.Run(kind, func(t *testing.T) { testBrowser(t, kind) })
	}
}

func testBrowser(t *testing.T, kind string) {
	id := newIdentity(t)
	flags := slices.Clone(unhurried)
	if kind == "wss" {
		flags = append(flags, "--tls-cert", id.cert, "--tls-key", id.key, "--advertise-name", testName)
	}
	f := newPlace(t).serve(flags...)
	defer f.Stop()
	f.http = id.browse("127.0.0.1")
	calls := &api.Client{BaseURL: f.api, Token: token, HTTP: f.http}
	browser := startChromium(t, "--host-resolver-rules=MAP "+testName+" 127.0.0.1", "--ignore-certificate-errors-spki-list="+id.pin)
	page := pages(t)
	host, player := browser.open(page, tallyReady), browser.open(page, tallyReady)

	var code, joined string
	host.do(&code, "host", f.api, token, kind, 8)
	player.do(&joined, "join", f.api, token, code, kind)
	var received int
	if player.do(&received, "talk", texts); received != texts {
		t.Errorf("the page's player received %d of %d", received, texts)
	}
	udp, udpID := overUDP(t, calls, code)
	dtls := f.join(code)

	converse(t, udp, texts)
	converseDTLS(t, dtls, texts)
	got := host.tally()
	for _, who := range []string{joined, hex.EncodeToString(udpID[:]), hex.EncodeToString(dtls.AllocationIDBytes)} {
		if got.Heard[who] != texts {
			t.Errorf("of %s the page's host received %d of %d", who, got.Heard[who], texts)
		}
	}
	if len(got.Heard) != 3 {
		t.Errorf("the page's host received %v", got.Heard)
	}

	if !echoed(t, udp, []byte(strings.Repeat("m", 1386-38))) {
		t.Error("the largest message did not come back")
	}
	if _, err := udp.Write([]byte(strings.Repeat("l", 1400))); err != nil {
		t.Fatal(err)
	}
	testkit.Eventually(t, "a larger one is dropped and counted", func() bool {
		return f.metric(`ferry_drops_total{reason="receiver_size"}`) == 1
	})
	if got := host.tally(); got.Largest != 1386 || got.Closed != nil {
		t.Errorf("the largest message at the page had %d bytes, closed %v", got.Largest, got.Closed)
	}

	host.do(nil, "leave")
	testkit.Eventually(t, "the match has ended", func() bool { return f.metric("ferry_allocations") == 3 })
	player.do(nil, "again")
	player.endsWith("04")
}

// endsWith waits until the page's connection has ended, and wants ERROR with that
// code as its last message, and a close frame.
func (p tab) endsWith(code string) {
	p.t.Helper()
	testkit.Eventually(p.t, "the page's connection ends", func() bool { return p.tally().Closed != nil })
	got := p.tally()
	if !strings.HasPrefix(got.Last, "da72000c") || !strings.HasSuffix(got.Last, code) || len(got.Last) != 42 {
		p.t.Errorf("the last message was %s", got.Last)
	}
	if got.Closed.Code != 1000 || !got.Closed.Clean {
		p.t.Errorf("closed with %+v", *got.Closed)
	}
}

// TestBrowserExpires: a page whose allocation ends by silence gets ERROR 1, and
// then a close frame. One of another origin than those allowed gets nothing.
func TestBrowserExpires(t *testing.T) {
	t.Parallel()
	testkit.Program(t, "chromium", "chromium")
	page := pages(t)
	f := dev(t, "--host-alone-timeout", "4s") // The page has to say something before.
	strict := dev(t, "--allow-origins", "https://game.example.org")
	p := startChromium(t).open(page, tallyReady)
	var code string
	p.do(&code, "host", f.api, "", "ws", 4)
	p.do(nil, "ping")
	p.endsWith("01")

	err := p.evaluate(expression(t, "host", strict.api, "", "ws", 4), nil)
	if err == nil || !strings.Contains(err.Error(), "Failed to fetch") {
		t.Errorf("the API of another origin: %v", err)
	}
	var closed int
	p.do(&closed, "(async url => { const w = new WebSocket(url); return new Promise(ok => w.onclose = c => ok(c.code)); })",
		"ws"+strings.TrimPrefix(strict.api, "http"))
	if n := strict.metric(`ferry_websocket_refused_total{reason="origin"}`); closed != 1006 || n != 1 {
		t.Errorf("the WebSocket of another origin: closed with %d, %v refused", closed, n)
	}
}

func converseDTLS(t *testing.T, a allocation, n int) {
	t.Helper()
	s := a.secure(t, newSocket(t, "127.0.0.1:0"))
	s.Bind(a.credentials(t), 0)
	id := proto.AllocationID(a.AllocationIDBytes)
	var host proto.AllocationID
	s.Ask(proto.ConnectRequest{ID: id, ConnectionData: a.HostConnectionData}.Append(nil), func(m []byte) bool {
		accepted, err := proto.ParseAccepted(m)
		host = accepted.From
		return err == nil
	})
	for i := range n {
		text := []byte(fmt.Sprint("text ", i))
		echo := proto.Relay{From: host, To: id, Payload: text}.Append(nil)
		s.Ask(proto.Relay{From: id, To: host, Payload: text}.Append(nil), wiretest.Equals(echo))
	}
}
