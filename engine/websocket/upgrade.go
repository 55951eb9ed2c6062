package websocket

import (
	"bufio"
	"net"
	"net/http"
	"net/netip"
	"strings"
	"sync"
	"time"

	ws "github.com/coder/websocket"
	"github.com/ferryrelay/ferry/engine"
	"github.com/ferryrelay/ferry/internal/forwarded"
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
		t.refuse(w, RefusedNoUpgrade, http.StatusUpgradeRequired, noUpgradeText)
		return
	}
	if !t.cfg.allows(r.Header.Get("Origin")) {
		t.refuse(w, RefusedOrigin, http.StatusForbidden, "This page's origin is not allowed here.\n")
		return
	}
	from, known := clientPrefix(r, t.cfg.TrustedProxies)
	in, reason, ok := t.admission.admit(from, known)
	if !ok {
		t.refuseAdmission(w, reason)
		return
	}
	defer t.admission.release(from, known)
	if c := t.accept(w, r, in); c != nil {
		c.run()
	}
}

// refuseAdmission answers a request that admission rejected.
func (t *Transport) refuseAdmission(w http.ResponseWriter, reason Refusal) {
	status, text := http.StatusServiceUnavailable, "This relay does not run now.\n"
	switch reason {
	case RefusedTotal:
		text = "This relay has reached its limit of WebSockets.\n"
	case RefusedAddress:
		status, text = http.StatusTooManyRequests, "There are too many WebSockets from your address.\n"
	}
	w.Header().Set("Retry-After", "5")
	t.refuse(w, reason, status, text)
}

func (t *Transport) refuse(w http.ResponseWriter, reason Refusal, status int, text string) {
	t.counts.refused[reason].Add(1)
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	w.Header().Set("X-Content-Type-Options", "nosniff")
	w.WriteHeader(status)
	_, _ = w.Write([]byte(text)) // It fails only when the client is gone.
}

func requestsWebSocket(r *http.Request) bool {
	return hasToken(r.Header, "Upgrade", "websocket") && hasToken(r.Header, "Connection", "upgrade")
}

// hasToken reports whether a header is a comma-separated list with that token.
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

// accept answers the handshake. It returns nil if that fails, after an answer with
// the reason.
func (t *Transport) accept(w http.ResponseWriter, r *http.Request, in engine.Intake) *conn {
	clear(w.Header()) // Native clients have a small buffer for the answer.
	// The deadline below is for the handshake only: a refused connection is closed.
	w.Header().Set("Connection", "close")
	// A client that does not read the answer must not delay the return of Run.
	_ = http.NewResponseController(w).SetWriteDeadline(time.Now().Add(t.cfg.WriteTimeout))
	limit := corkSize
	if r.TLS != nil {
		limit = recordSize
	}
	u := &hijacker{ResponseWriter: w, sock: &socket{timeout: t.cfg.WriteTimeout, limit: limit, buffers: &t.buffers}}
	conn, err := ws.Accept(u, r, &ws.AcceptOptions{
		InsecureSkipVerify: true, // ServeHTTP has checked the origin.
		CompressionMode:    ws.CompressionDisabled,
	})
	if err != nil {
		t.counts.refused[RefusedHandshake].Add(1)
		return nil
	}
	u.sock.setSendBuffer(t.cfg.SendBuffer)
	conn.SetReadLimit(MaxMessage)
	t.counts.opened.Add(1)
	return newConn(t, t.serial.Add(1), conn, u.sock, in)
}

// hijacker gives the WebSocket library a [socket] in place of the server's
// connection.
type hijacker struct {
	http.ResponseWriter
	sock *socket
}

// Hijack implements [http.Hijacker].
func (u *hijacker) Hijack() (net.Conn, *bufio.ReadWriter, error) {
	conn, rw, err := http.NewResponseController(u.ResponseWriter).Hijack()
	if err != nil {
		return nil, nil, err
	}
	u.sock.Conn = conn
	return u.sock, bufio.NewReadWriter(rw.Reader, bufio.NewWriterSize(u.sock, maxFrame)), nil
}

// admission limits the number of connections and rejects all while Run does not
// run. Any goroutine may call its methods.
type admission struct {
	maxTotal, maxPerAddress int

	mu         sync.Mutex // guards what follows
	intake     engine.Intake
	running    bool
	total      int
	perAddress map[netip.Prefix]int // of connections whose address is known
	conns      sync.WaitGroup       // counts connections; Add only while running
}

// admit counts a connection of a prefix, if that is known, and returns the intake
// for its messages.
func (a *admission) admit(from netip.Prefix, known bool) (in engine.Intake, reason Refusal, ok bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	switch {
	case !a.running:
		return nil, RefusedStopped, false
	case a.total >= a.maxTotal:
		return nil, RefusedTotal, false
	case known && a.perAddress[from] >= a.maxPerAddress:
		return nil, RefusedAddress, false
	}
	a.total++
	if known {
		a.perAddress[from]++
	}
	a.conns.Add(1)
	return a.intake, 0, true
}

// release uncounts a connection. It takes the arguments of admit.
func (a *admission) release(from netip.Prefix, known bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.total--
	if known {
		if a.perAddress[from]--; a.perAddress[from] == 0 {
			delete(a.perAddress, from)
		}
	}
	a.conns.Done()
}

// start makes admit accept connections, whose messages go to in.
func (a *admission) start(in engine.Intake) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.intake, a.running = in, true
}

// stop makes admit reject all connections.
func (a *admission) stop() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.running = false
}

func (a *admission) isRunning() bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.running
}

// count returns the number of admitted connections.
func (a *admission) count() int {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.total
}

// clientPrefix returns the prefix that the limit per address counts for a request. It
// reports false if a trusted proxy sent the request without X-Forwarded-For. A header
// that cannot be parsed counts for the proxy.
func clientPrefix(r *http.Request, proxies []netip.Prefix) (netip.Prefix, bool) {
	client := forwarded.Find(r, proxies)
	return client.Prefix, client.Known || client.Malformed
}
