package websocket

import (
	"bufio"
	"net"
	"net/http"
	"strings"
	"time"

	ws "github.com/coder/websocket"
	"github.com/ferryrelay/ferry/engine"
)

// plainText is for a person who opens the address in a browser, or runs a proxy
// that does not pass the upgrade on.
const plainText = `This is the WebSocket of a Ferry relay, for game clients (ws:// or wss://).
A reverse proxy in front of it must pass on the headers Upgrade and Connection.
`

// ServeHTTP makes a WebSocket of the connection and serves it until it ends.
// Any other request is answered with 426, and with what this is.
func (t *Transport) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if !asksForWebSocket(r) {
		if r.ProtoMajor == 1 { // HTTP/2 forbids these.
			w.Header().Set("Connection", "Upgrade")
			w.Header().Set("Upgrade", "websocket")
		}
		t.refuse(w, RefusedPlain, http.StatusUpgradeRequired, plainText)
		return
	}
	if !t.cfg.allows(r.Header.Get("Origin")) {
		t.refuse(w, RefusedOrigin, http.StatusForbidden, "This page's origin is not allowed here.\n")
		return
	}
	from, known := caller(r, t.cfg.TrustedProxies)
	in, why, ok := t.door.enter(from, known)
	if !ok {
		t.turnAway(w, why)
		return
	}
	defer t.door.leave(from, known)
	if c := t.accept(w, r, in); c != nil {
		c.run()
	}
}

// turnAway answers a caller for whom there is no room.
func (t *Transport) turnAway(w http.ResponseWriter, why Refusal) {
	status, text := http.StatusServiceUnavailable, "This relay does not run now.\n"
	switch why {
	case RefusedTotal:
		text = "This relay has no room for further WebSockets.\n"
	case RefusedAddress:
		status, text = http.StatusTooManyRequests, "There are too many WebSockets from your address.\n"
	}
	w.Header().Set("Retry-After", "5")
	t.refuse(w, why, status, text)
}

func (t *Transport) refuse(w http.ResponseWriter, why Refusal, status int, text string) {
	t.counts.refused[why].Add(1)
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	w.Header().Set("X-Content-Type-Options", "nosniff")
	w.WriteHeader(status)
	_, _ = w.Write([]byte(text)) // The caller has gone if this fails.
}

func asksForWebSocket(r *http.Request) bool {
	return hasToken(r.Header, "Upgrade", "websocket") && hasToken(r.Header, "Connection", "upgrade")
}

// hasToken reports whether a header is a list with that token.
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

// accept answers the handshake. It returns nil if that fails, and the caller has
// been told why.
func (t *Transport) accept(w http.ResponseWriter, r *http.Request, in engine.Intake) *conn {
	clear(w.Header())                     // Native clients have a small buffer for the answer.
	w.Header().Set("Connection", "close") // If it is refused, because of the deadline.
	// A caller that reads no answers must not hold up Run.
	_ = http.NewResponseController(w).SetWriteDeadline(time.Now().Add(t.cfg.WriteTimeout))
	limit := holdSize
	if r.TLS != nil {
		limit = recordSize
	}
	u := &upgrade{ResponseWriter: w, sock: &socket{timeout: t.cfg.WriteTimeout, limit: limit, holds: &t.holds}}
	conn, err := ws.Accept(u, r, &ws.AcceptOptions{
		InsecureSkipVerify: true, // Origins were checked.
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

// upgrade hands a socket of ours to the WebSocket library in place of the
// server's.
type upgrade struct {
	http.ResponseWriter
	sock *socket
}

// Hijack implements [http.Hijacker].
func (u *upgrade) Hijack() (net.Conn, *bufio.ReadWriter, error) {
	conn, rw, err := http.NewResponseController(u.ResponseWriter).Hijack()
	if err != nil {
		return nil, nil, err
	}
	u.sock.Conn = conn
	return u.sock, bufio.NewReadWriter(rw.Reader, bufio.NewWriterSize(u.sock, frameRoom)), nil
}
