// Package httpapi serves the Relay Allocations API over an [alloc.Service]: allocate,
// joincode, join and regions, and its OpenAPI description at /openapi.yaml. Paths, JSON
// members, statuses and codes are those that an unmodified Unity SDK expects. A service
// with host migration adds the calls migrate and leave.
//
//	handler, err := httpapi.New(httpapi.Config{
//		Service: service,
//		Tokens: []httpapi.Token{{
//			Secret: os.Getenv("RELAY_TOKEN"), Project: "game", Environment: "live",
//			Server: true,
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
// environment, and may name the player for which it joins. A player that is known as one
// has one place at a full host: its allocations replace each other there.
//
// With Config.Anonymous a caller without a valid token is a new player at every call, in project
// "dev", environment "dev", or the player NAME by the token "player:NAME". Any such caller that knows
// the id of an allocation gets its code, may end it by leave, and may migrate. Use it for development
// only.
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
//	120 per minute    tokens from one client address that Config.Authenticate rejects;
//	                  more are checked while all addresses have fewer than 1,000 a second
//	20                allocations of one player that are reserved and not bound
//	                  (alloc.ServiceConfig.MaxOutstanding)
//
// Each is a token bucket that holds one minute's worth; the 1,000 checks hold one second's.
// A client address is an IPv4 address or the /56 of an IPv6 address; that of a backend is not
// limited, because many players use it. Preflights and the description are not counted.
//
// The tables have a fixed size, below 20 MiB in all; in a full one a caller may regain some of its
// limit, and no caller loses any. Behind a reverse proxy, set Config.TrustedProxies and
// ConnLimits.TrustedProxies; otherwise all callers share the limits of the proxy's address.
//
// [LimitListener] bounds connections, 4,096 in all and 256 per address. At a limit a new connection
// takes the place of one that has brought no valid token. A player's token protects the connections
// of its last 8 calls, a backend's those of its last 64. [NewServer] bounds the time and the bytes of
// each: 5 s for headers of 8 KiB, 10 s for a body of 16 KiB, 10 s for the answer, 30 s idle. The idle
// connections of a reverse proxy must live longer than the proxy keeps them: set
// http.Server.IdleTimeout for these, and ConnLimits.IdleTimeout for others.
//
// # Limitations
//
// The program that listens sets up TLS; answers contain keys and must not be sent unencrypted. All
// limits are per process. With Config.SharedLimiter the limits of principals hold for all processes
// together, and for each alone when it fails. The results of Config.Authenticate are not cached. A
// flood from a client's own address can close that client's connection before it has sent its token.
package httpapi
