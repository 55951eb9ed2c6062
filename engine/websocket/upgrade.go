package websocket

import (
	"bufio"
	"context"
	"net"
	"net/http"
	"net/netip"
	"strings"
	"sync"
	"time"

	ws "github.com/coder/websocket"
	"github.com/ferryrelay/ferry/engine"
	"github.com/ferryrelay/ferry/internal/net/evict"
	"github.com/ferryrelay/ferry/internal/net/forwarded"
)

// noUpgradeText answers a request without an upgrade: from a browser, or through
// a reverse proxy that does not forward the upgrade.
const noUpgradeText = `This is the WebSocket of a Ferry relay, for game clients (ws:// or wss://).
A reverse proxy in front of it must pass on the headers Upgrade and Connection.
`

// ServeHTTP upgrades the connection to WebSocket and serves it until it ends. It
// answers a request without an upgrade with 426 and an explanation.
func (t *Transport) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if !requestsWebSocket(r) {
		if r.ProtoMajor == 1 { // HTTP/2 forbids these.
			w.Header().Set("Connection", "Upgrade")
			w.Header().Set("Upgrade", "websocket")
		}
		t.refuse(w, refusedNoUpgrade, http.StatusUpgradeRequired, noUpgradeText)
		return
	}
	if page := r.Header.Get("Origin"); page != "" && !t.origins.Contains(page) {
		t.refuse(w, refusedOrigin, http.StatusForbidden, "This page's origin is not allowed here.\n")
		return
	}
	client := forwarded.Find(r, t.cfg.TrustedProxies)
	from, known := countedPrefix(client)
	if t.isBanned(client.Addr) {
		t.refuse(w, refusedBanned, http.StatusForbidden, "This address is banned.\n")
		return
	}
	p, victim, reason := t.admission.admit(from, known)
	if victim != nil {
		victim.end(endShed)
	}
	if p == nil {
		t.refuseAdmission(w, reason)
		return
	}
	defer t.admission.release(p)
	p.client = client.Addr
	if c := t.accept(w, r, p); c != nil {
		c.run()
	}
}

func (t *Transport) refuseAdmission(w http.ResponseWriter, reason refusal) {
	status, text := http.StatusServiceUnavailable, "This relay does not run now.\n"
	switch reason {
	case refusedTotal:
		text = "This relay has reached its limit of WebSockets.\n"
	case refusedAddress:
		status, text = http.StatusTooManyRequests, "There are too many WebSockets from your address.\n"
	}
	w.Header().Set("Retry-After", "5")
	t.refuse(w, reason, status, text)
}

func (t *Transport) refuse(w http.ResponseWriter, reason refusal, status int, text string) {
	t.counts.refused[reason].Add(1)
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	w.Header().Set("X-Content-Type-Options", "nosniff")
	w.WriteHeader(status)
	_, _ = w.Write([]byte(text)) // It fails only when the client is gone.
}

func requestsWebSocket(r *http.Request) bool {
	return hasToken(r.Header, "Upgrade", "websocket") && hasToken(r.Header, "Connection", "upgrade")
}

func hasToken(h http.Header, name, token string) bool {
	for _, value := range h.Values(name) {
		for t := range strings.SplitSeq(value, ",") {
			if strings.EqualFold(strings.TrimSpace(t), token) {
				return true
			}
		}
	}
	return false
}

// accept returns nil after an answer with the reason, if the handshake fails.
func (t *Transport) accept(w http.ResponseWriter, r *http.Request, p *place) *conn {
	clear(w.Header()) // Native clients have a small buffer for the answer.
	// The deadline below is for the handshake only: a refused connection is closed.
	w.Header().Set("Connection", "close")
	// A client that does not read the answer must not delay the return of Run.
	_ = http.NewResponseController(w).SetWriteDeadline(time.Now().Add(t.cfg.writeTimeout))
	limit := corkSize
	if r.TLS != nil && r.Header.Get("Origin") == "" { // Browsers send one.
		limit = recordSize
	}
	u := &hijacker{ResponseWriter: w, sock: &socket{timeout: t.cfg.writeTimeout, limit: limit, buffers: &t.buffers}}
	u.sock.overhead.Store(maxOverhead)
	conn, err := ws.Accept(u, r, &ws.AcceptOptions{
		InsecureSkipVerify: true, // ServeHTTP has checked the origin.
		CompressionMode:    ws.CompressionDisabled,
		Subprotocols:       subprotocols(r.Header),
		OnPingReceived:     func(context.Context, []byte) bool { return u.sock.takeControl() },
		OnPongReceived:     func(context.Context, []byte) { u.sock.takeControl() },
	})
	if err != nil {
		t.counts.refused[refusedHandshake].Add(1)
		return nil
	}
	u.sock.setSendBuffer(t.cfg.sendBuffer)
	conn.SetReadLimit(maxMessage)
	t.counts.opened.Add(1)
	return newConn(t, t.serial.Add(1), conn, u.sock, p)
}

// subprotocols returns the names of which the first one that the client offers is confirmed:
// the one that Emscripten asks for, then any. Browsers fail a connection whose server
// confirms none of the offered ones, and every client one with a name that it did not offer.
func subprotocols(h http.Header) []string {
	all := []string{"binary"}
	for _, value := range h.Values("Sec-WebSocket-Protocol") {
		for name := range strings.SplitSeq(value, ",") {
			all = append(all, strings.TrimSpace(name))
		}
	}
	return all
}

// hijacker gives the WebSocket library a [socket] for the server's connection.
type hijacker struct {
	http.ResponseWriter
	sock *socket
}

func (u *hijacker) Hijack() (net.Conn, *bufio.ReadWriter, error) {
	conn, rw, err := http.NewResponseController(u.ResponseWriter).Hijack()
	if err != nil {
		return nil, nil, err
	}
	u.sock.Conn = conn
	return u.sock, bufio.NewReadWriter(rw.Reader, bufio.NewWriterSize(u.sock, maxFrame)), nil
}

// admission limits connections, and rejects all while Run does not run.
type admission struct {
	maxTotal, maxPerAddress int

	mu         sync.Mutex // guards what follows
	intake     engine.Intake
	running    bool
	total      int
	perAddress map[netip.Prefix]int // of connections whose address is known
	// unbound has the connections that have not bound an allocation yet. At a limit one of
	// them ends for a newcomer.
	unbound evict.Networks[*place]
	conns   sync.WaitGroup // counts connections; Add only while running
}

// place is the place of a connection within the limits. The admission's lock guards it, except
// from, known and client, which never change.
type place struct {
	from    netip.Prefix
	known   bool       // from is the client's address
	client  netip.Addr // invalid: not known
	in      engine.Intake
	conn    *conn // nil: the handshake of WebSocket is not over
	unbound *evict.Conn[*place]
	ended   bool // the connection is not counted any more
}

// admit gives a connection of an address, if that is known, a place. At the limit of
// the address or of all connections, it takes the place of an unbound one, which the
// caller must end: the oldest of the address, or of the network with most. The place is
// nil if there is none.
func (a *admission) admit(from netip.Prefix, known bool) (p *place, victim *conn, reason refusal) {
	a.mu.Lock()
	defer a.mu.Unlock()
	switch {
	case !a.running:
		return nil, nil, refusedStopped
	case known && a.perAddress[from] >= a.maxPerAddress:
		it := a.unbound.FirstOf(from)
		if it == nil {
			return nil, nil, refusedAddress
		}
		victim = a.shed(it.Value)
	case a.total >= a.maxTotal:
		it := a.unbound.First()
		if it == nil {
			return nil, nil, refusedTotal
		}
		victim = a.shed(it.Value)
	}
	a.total++
	if known {
		a.perAddress[from]++
	}
	a.conns.Add(1)
	p = &place{from: from, known: known, in: a.intake}
	p.unbound = a.unbound.Add(from, p)
	return p, victim, 0
}

// shed takes the place of an unbound connection and returns the connection, nil if its
// handshake is not over: then noteOpen ends it.
func (a *admission) shed(p *place) *conn {
	a.free(p)
	return p.conn
}

func (a *admission) free(p *place) {
	if p.ended {
		return
	}
	p.ended = true
	if p.unbound != nil {
		a.unbound.Remove(p.unbound)
		p.unbound = nil
	}
	a.total--
	if p.known {
		if a.perAddress[p.from]--; a.perAddress[p.from] == 0 {
			delete(a.perAddress, p.from)
		}
	}
}

// noteOpen reports the reason for which the connection must end, if there is one.
func (a *admission) noteOpen(p *place, c *conn) end {
	a.mu.Lock()
	defer a.mu.Unlock()
	p.conn = c
	switch {
	case !a.running:
		return endStopped // Run may have closed the others already.
	case p.ended:
		return endShed
	}
	return endNone
}

func (a *admission) noteBound(p *place) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if p.unbound != nil {
		a.unbound.Remove(p.unbound)
		p.unbound = nil
	}
}

func (a *admission) release(p *place) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.free(p)
	a.conns.Done()
}

func (a *admission) start(in engine.Intake) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.intake, a.running = in, true
}

func (a *admission) stop() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.running = false
}

func (a *admission) count() int {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.total
}

// countedPrefix returns the prefix that the limit per address counts for a client. It
// reports false if a trusted proxy sent the request without X-Forwarded-For. A header
// that cannot be parsed counts for the proxy.
func countedPrefix(client forwarded.Client) (netip.Prefix, bool) {
	return client.Prefix, client.Known || client.Malformed
}
