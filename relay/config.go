package relay

import (
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"slices"
	"strconv"

	"github.com/ferryrelay/ferry/alloc"
	"github.com/ferryrelay/ferry/alloc/httpapi"
	"github.com/ferryrelay/ferry/engine"
	"github.com/ferryrelay/ferry/engine/dtls"
	"github.com/ferryrelay/ferry/engine/websocket"
)

// ErrConfig is wrapped by the errors of [New] about a field of [Config].
var ErrConfig = errors.New("relay: invalid configuration")

// Config configures a [Relay]. Only API needs a value: how callers identify themselves. The
// zero value of every other field means its default.
type Config struct {
	// Dir is the directory of what the next run must know: the relay's id and key, its
	// allocations, join codes and DTLS sessions. With it matches go on after a restart or a
	// crash. New creates it, and one process at a time has it. Empty: clients of an earlier run
	// get ERROR 4, and their matches end.
	Dir string
	// Identity replaces the id and key in Dir, for a program that stores them elsewhere. Nil: it
	// does not.
	Identity *engine.Identity

	// Listener accepts the connections of the API, of WebSockets and of Pages. Run serves and
	// closes it. Nil: the program mounts [Relay.Handler] on a server of its own.
	Listener net.Listener
	// TLS makes Listener serve HTTPS. Answers of the API contain keys: they must not cross the
	// internet in plain text. Nil: plain HTTP, behind a proxy or in a private network.
	TLS *tls.Config
	// URL is where players reach Listener or Handler, such as "https://relay.example.org". Its
	// path is empty. Default: the address of Listener, unless that is a wildcard.
	URL string
	// Pages serves all paths that are not the relay's. Nil: they are answered with 404.
	Pages http.Handler

	// API configures the HTTP handlers. New sets Service. Tokens, Authenticate, Identify or
	// Anonymous is required.
	API httpapi.Config
	// Service configures regions, limits and admission. New sets Relay, and if they are zero
	// Store, KeepCode, MaxConnections and BindTimeout. Without Regions there is one, with the
	// id Engine.Region.
	Service alloc.ServiceConfig
	// Place returns the Relay that the service uses in place of this one alone, such as an
	// alloc.NewPlacer of this one and of [Relay.Reserver] of others. New calls it once, and refuses a
	// nil Relay. Without Place it is this one.
	Place func(own alloc.Relay) alloc.Relay
	// Engine configures the data plane. New sets Records, adds WebSocket to Transports, and if
	// they are zero sets StateFile and Region. Advertise needs the UDP addresses only, and may be
	// empty if Listen has no wildcard.
	Engine engine.Config
	// DTLS offers encryption on the UDP port. New sets, with Dir, Sessions if it is
	// nil. Nil: no DTLS.
	DTLS *dtls.Config
	// WebSocket offers WebSockets at the root of URL, as browsers need. Nil: none.
	WebSocket *websocket.Config
}

func configError(format string, args ...any) error {
	return fmt.Errorf("%w: %w", ErrConfig, fmt.Errorf(format, args...))
}

func (c *Config) base() (*url.URL, error) {
	if c.URL != "" {
		u, err := url.Parse(c.URL)
		switch {
		case err != nil:
			return nil, configError("URL: %w", err)
		case u.Scheme != "http" && u.Scheme != "https" || u.Hostname() == "":
			return nil, configError("URL %q is not http://host or https://host", c.URL)
		case u.Path != "" && u.Path != "/" || u.RawQuery != "" || u.Fragment != "":
			return nil, configError("URL %q has a path: clients of Unity Transport connect to the root", c.URL)
		}
		return u, nil
	}
	if c.Listener == nil {
		return nil, nil
	}
	addr, ok := c.Listener.Addr().(*net.TCPAddr)
	if !ok || addr.IP.IsUnspecified() {
		return nil, nil
	}
	scheme := "http"
	if c.TLS != nil {
		scheme = "https"
	}
	return &url.URL{Scheme: scheme, Host: addr.String()}, nil
}

func (c *Config) endpoints(listen []netip.AddrPort, base *url.URL) ([]alloc.ServerEndpoint, error) {
	all := c.Engine.Advertise
	if len(all) == 0 {
		for _, addr := range listen {
			if addr.Addr().IsUnspecified() {
				return nil, configError("Engine.Listen has %v: set Engine.Advertise to the addresses that players reach", addr)
			}
			all = append(all, engine.UDPServerEndpoint(addr))
		}
	}
	all = slices.Clone(all)
	for i := range all {
		if all[i].Port == 0 && len(listen) > 0 { // as in engine.Config
			all[i].Port = listen[0].Port()
		}
	}
	if c.DTLS != nil && !hasType(all, "dtls") {
		for _, e := range all {
			if e.ConnectionType == "udp" {
				e.ConnectionType, e.Secure = "dtls", true
				all = append(all, e)
			}
		}
	}
	if c.WebSocket != nil && !hasType(all, "ws") && !hasType(all, "wss") {
		if base == nil {
			return nil, configError("WebSocket needs URL: where players reach the listener")
		}
		e, err := webSocketEndpoint(base)
		if err != nil {
			return nil, err
		}
		all = append(all, e)
	}
	return all, nil
}

func hasType(all []alloc.ServerEndpoint, connectionType string) bool {
	for _, e := range all {
		if e.ConnectionType == connectionType {
			return true
		}
	}
	return false
}

func webSocketEndpoint(base *url.URL) (alloc.ServerEndpoint, error) {
	e := alloc.ServerEndpoint{ConnectionType: "ws", Network: "tcp", Host: base.Hostname(), Port: 80, Reliable: true}
	if base.Scheme == "https" {
		e.ConnectionType, e.Port, e.Secure = "wss", 443, true
	}
	if text := base.Port(); text != "" {
		port, err := strconv.ParseUint(text, 10, 16)
		if err != nil || port == 0 {
			return e, configError("URL %v has no valid port", base)
		}
		e.Port = uint16(port)
	}
	return e, nil
}
