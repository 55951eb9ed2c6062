package httpapi

import (
	"context"
	"net"
	"net/netip"
	"time"

	"github.com/ferryrelay/ferry/internal/net/connlimit"
)

// The connections that one token protects: those of its last calls.
const (
	playerConnections = 8
	serverConnections = 64
)

type ConnLimits struct {
	// TrustedProxies are networks whose connections count for no address and are never
	// closed for a newcomer, because each serves many callers. Nil: none.
	TrustedProxies []netip.Prefix
	// IdleTimeout limits the wait for the next request, and every other read, on
	// connections that are not those of trusted proxies. Zero: no limit besides that of
	// the server.
	IdleTimeout time.Duration
}

// LimitListener returns a listener that accepts connections of l within the limits. At a
// limit, another connection is closed for the new one: one that is not protected, from the
// network with most of these, the longest without progress. A protected one is closed only
// while the others have at most a sixteenth of the limit. A connection is protected by a
// call of a [Handler] with a valid token. A new connection is closed if no other may be.
// There are 4,096, and 256 of one address or of the /56 of an IPv6 address.
func LimitListener(l net.Listener, c ConnLimits) net.Listener {
	return connlimit.Listen(l, connlimit.Limits{TrustedProxies: c.TrustedProxies, IdleTimeout: c.IdleTimeout})
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
