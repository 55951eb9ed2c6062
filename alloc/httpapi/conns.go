package httpapi

import (
	"context"
	"log/slog"
	"net"
	"net/netip"
	"time"

	"github.com/ferryrelay/ferry/internal/base/hook"
	"github.com/ferryrelay/ferry/internal/net/connlimit"
)

// The connections that one token protects: those of its last calls.
const (
	playerConnections = 8
	serverConnections = 64
)

type ConnLimits struct {
	// Total limits the open connections. Zero: 4096.
	Total int
	// PerAddress limits the open connections from one address, or from the /56 of an
	// IPv6 address. Zero: 256.
	PerAddress int
	// TrustedProxies are networks whose connections count for Total only and are never
	// closed for a newcomer, because each serves many callers. Nil: none.
	TrustedProxies []netip.Prefix
	// IdleTimeout limits the wait for the next request, and every other read, on
	// connections that are not those of trusted proxies. Zero: no limit besides that of
	// the server.
	IdleTimeout time.Duration
	// OnReject is called before a connection is closed for a limit: "total" for a new one, which is closed
	// unread, "evicted_total" and "evicted_address" for one in whose place a new one came, and
	// "evicted_protected" for such a one with a valid token. It is called concurrently and must not
	// block. Nil is allowed.
	OnReject func(reason string)
}

// LimitListener returns a listener that accepts connections of l within the limits. At a
// limit, another connection is closed for the new one: one that is not protected, from the
// network with most of these, the longest without progress. A protected one is closed only
// while the others have at most a sixteenth of the limit. A connection is protected by a
// call of a [Handler] with a valid token. A new connection is closed if no other may be, and
// always if Total is negative.
func LimitListener(l net.Listener, c ConnLimits) net.Listener {
	limits := connlimit.Limits{Total: c.Total, PerAddress: c.PerAddress, TrustedProxies: c.TrustedProxies, IdleTimeout: c.IdleTimeout}
	if c.OnReject != nil {
		onReject := &hook.Reporter{Name: "OnReject", Slow: slowHook, Effect: "new connections wait for it"}
		limits.OnReject = func(why connlimit.Rejection) {
			guard(slog.Default(), onReject, func() { c.OnReject(string(why)) })
		}
	}
	return connlimit.Listen(l, limits)
}

type connKey struct{}

func withConn(ctx context.Context, conn net.Conn) context.Context {
	return context.WithValue(ctx, connKey{}, conn)
}

func protectConn(ctx context.Context, p principal) {
	conn, ok := ctx.Value(connKey{}).(net.Conn)
	if !ok || p.anonymous {
		return
	}
	most := playerConnections
	if p.server {
		most = serverConnections
	}
	connlimit.Protect(conn, p.name, most)
}
