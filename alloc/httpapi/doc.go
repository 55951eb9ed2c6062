// Package httpapi serves the Relay Allocations API over an [alloc.Service]: allocate,
// joincode, join and regions, and its OpenAPI description at /openapi.yaml. Paths, JSON
// members, statuses and codes are those that an unmodified Unity SDK expects. A service
// with host migration adds the calls migrate and leave.
//
//	handler, err := httpapi.New(httpapi.Config{
//		Service: service,
//		Tokens: []httpapi.Token{{
//			Secret: os.Getenv("RELAY_TOKEN"), Project: "game", Environment: "live",
//			Kind: httpapi.KindServer,
//		}},
//	})
//	listener = httpapi.LimitListener(listener, httpapi.ConnLimits{})
//	err = httpapi.NewServer(handler).ServeTLS(listener, "cert.pem", "key.pem")
//
// # Order of checks
//
// Path (404), preflight (204), method (405), bearer token (401), rate limits (429), body
// (413, 400), service. Each step costs less than the next one, and the body is not read
// before the caller is authenticated and within its rate limits. Every error is a
// problem document, and every answer has an X-Request-Id header. Lines of the
// log have its value, and the trace id of the caller's traceparent header.
//
// # Authentication
//
// A token is one of Config.Tokens, or Config.Authenticate accepts it, such as a JSON Web
// Token. Tokens of either kind that name the same player are one principal. A token of
// kind player owns the allocations that it reserves, and gets join codes for those only.
// A token of kind server is a backend's: it owns every allocation of its project and
// environment. It may name the player for which it joins.
//
// Config.Identify identifies callers without a bearer token by the whole request, such as by a
// cookie.
//
// A caller that Config.Authenticate or Config.Identify accepts, and a player that a backend names, is
// one player, whose allocations replace each other at a full host. The holders of a static
// token may be many.
//
// With Config.Anonymous a caller without a valid token is a new player at every call, in
// project "dev", environment "dev", but for the token "player:NAME", by which it is the
// player NAME. Such a caller cannot be recognized again, so
// joincode treats it as a server: any caller that knows the id of an allocation of
// dev/dev gets its code. So do leave, and migrate with a ticket. Use it for development only.
//
// # Limits
//
// The limits and their defaults; above one the answer is 429 with Retry-After, and no
// other caller is affected:
//
//	60 per minute     requests of one player and call; 6000 of a backend
//	120 per minute    requests from one client address without a valid token
//	10 per minute     joins and migrations of one player with a code that does not exist;
//	                  600 of a backend
//	40 per minute     the same for all players of one tenant at one client address
//	120 per minute    tokens from one client address that Config.Authenticate rejects.
//	                  Further tokens from there are checked if they were accepted before,
//	                  or if fewer than 1,000 such checks a second are made in all
//	20                allocations of one player that are reserved and not bound; the
//	                  service counts them (alloc.ServiceConfig.MaxOutstanding). In a fleet
//	                  each counts for the whole bind timeout (10 s)
//
// Each is a token bucket that holds one minute's worth; the 1,000 checks hold one second's.
// A client address is an IPv4
// address or the /56 of an IPv6 address; that of a backend is not limited, because many
// players use it. All tokens of one player are one principal; the principal of an
// anonymous caller is its address. Preflights and the description are not counted.
//
// The rate of failed joins of a tenant refuses nothing, otherwise one player could lock
// out the others. It makes new join codes longer
// (alloc.ServiceConfig.FailuresPerSecond).
//
// The tables have a fixed size, below 20 MiB in all. When too many callers share a part
// of a table, the bucket closest to full is replaced; the caller it belonged to regains
// some of its limit, and no other caller loses any.
//
// [LimitListener] bounds connections, 4,096 in all and 256 per address. At a limit a new
// connection takes the place of one that has brought no valid token: of the address, the /24
// (/48) or the /16 (/32) with most of these, the one without progress for longest. A player's
// token protects the connections of its last 8 calls, a backend's those of its last 64. If
// nearly all connections are protected, one of them ends. [NewServer] bounds the time and the
// bytes of each: 5 s for headers of 8 KiB, 10 s for a body of 16 KiB, 10 s for the answer,
// 30 s idle. The idle connections of a reverse proxy must live longer than the proxy keeps
// them: set http.Server.IdleTimeout for these, and ConnLimits.IdleTimeout for others.
//
// # Behind a reverse proxy
//
// Set Config.TrustedProxies and ConnLimits.TrustedProxies to the proxy's networks.
// Otherwise all callers have the proxy's address and share the limits of one address. So
// do those whose X-Forwarded-For cannot be parsed; an address with a port is understood.
// If a trusted proxy sends no such header, the failed joins of its players count by
// player only.
//
// # Limitations
//
// The program that listens sets up TLS; answers contain keys and must not be sent
// unencrypted. All limits are per process: two processes that serve one tenant permit
// twice as much. With Config.SharedLimiter the limits of principals hold for all
// processes together, and for each alone when it fails; a guesser may still make one more
// failed join at each. The results of Config.Authenticate are not cached. A flood
// from a client's own address that opens as many connections as the limit of an address
// before the client has sent its token closes that client's connection.
package httpapi
