package app

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/ferryrelay/ferry/alloc"
	"github.com/ferryrelay/ferry/alloc/httpapi"
	"github.com/ferryrelay/ferry/engine/websocket"
	"github.com/ferryrelay/ferry/internal/admin"
	"github.com/ferryrelay/ferry/internal/config"
)

// Mode says what the process is, and for whom it is there.
type Mode uint8

const (
	// Serve is for the public, alone: a relay and its API. Callers need tokens,
	// and all limits hold.
	Serve Mode = iota
	// Dev is for a developer's machine: anybody may call, and the limits of the
	// API and the budgets of ERROR replies are off.
	Dev
	// Relay is for the public, one of a fleet: it relays, and has no API.
	Relay
	// API is for the public, one of a fleet: it answers calls for all relays, and
	// relays nothing.
	API
)

// String returns the name of the command that runs in this mode.
func (m Mode) String() string {
	switch m {
	case Dev:
		return "dev"
	case Relay:
		return "relay"
	case API:
		return "api"
	}
	return "serve"
}

// relays and answers report what the process does, and member whether it does so
// in a fleet.
func (m Mode) hasRelay() bool      { return m != API }
func (m Mode) hasAPI() bool        { return m != Relay }
func (m Mode) isFleetMember() bool { return m == Relay || m == API }

// What settings are about: to answer calls, to relay, to be one of a fleet, and
// to be the relay or the API in it.
var (
	ofCalls = []string{
		"tokens", "issuers", "quotas", "player_per_minute", "server_per_minute", "address_per_minute",
		"failed_joins_per_minute", "server_failed_joins_per_minute", "max_outstanding",
		"admission_url", "admission_secret_file", "admission_timeout", "admission_fail_open",
	}
	ofRelay = []string{
		"udp", "advertise", "advertise_name", "dtls", "websocket", "allow_private_sources", "siblings",
		"state_dir", "region", "max_allocations", "max_seats", "max_content", "idle_timeout", "host_alone_timeout",
		"hear_timeout", "recover_for", "drain_timeout", "drain_threshold", "workers", "batch", "merge", "receive_delay",
		"joiner_datagrams", "joiner_bytes", "host_datagrams", "host_bytes", "unproven_bytes",
		"max_websockets", "max_address_websockets", "websocket_queue", "websocket_max_message", "dtls_max_message",
		"max_dtls_sessions",
		"overcommit",
	}
	ofFleet = []string{
		"store", "store_password_file", "store_ca", "store_prefix", "cluster_ca", "cluster_cert", "cluster_key",
	}
	ofFleetRelay = []string{"cluster", "cluster_advertise", "region_description"}
	ofFleetAPI   = []string{"region_defaults", "region_hints"}
)

// Unused returns a sentence about each setting that somebody has set and that has
// no effect in that mode. It is none of its errors: machines may share a file.
func Unused(l config.Loaded, mode Mode) (all []string) {
	var idle []string
	if !mode.hasAPI() {
		idle = append(idle, ofCalls...)
	}
	if !mode.hasRelay() {
		idle = append(idle, ofRelay...)
	}
	if !mode.isFleetMember() {
		idle = append(idle, ofFleet...)
	}
	if mode != Relay {
		idle = append(idle, ofFleetRelay...)
	}
	if mode != API {
		idle = append(idle, ofFleetAPI...)
	}
	for _, key := range idle {
		if l.IsSet(key) {
			all = append(all, fmt.Sprintf("%s (%s) has no effect in ferry %s", key, l.Source(key), mode))
		}
	}
	slices.Sort(all)
	return all
}

// ErrNoToken is returned for serve without a token. Its text is for the user of
// a fresh installation.
var ErrNoToken = errors.New(`app: no token is configured, and serve does not run an open relay. A file that is enough:

    # ferry.yaml
    advertise: 203.0.113.7            # the public address of this machine
    advertise_name: relay.example.org # its name in the certificate, for wss
    tls_cert: /etc/ferry/cert.pem     # or behind_proxy: true
    tls_key: /etc/ferry/key.pem
    tokens:
      - secret_file: /etc/ferry/token # one line of 16 characters or more: openssl rand -hex 24
        project: my-game
        environment: production
        kind: server                  # a backend that acts for many players

    ferry serve --config ferry.yaml

On your own machine, ferry dev needs none of this`)

// ErrProxyProtocol is returned for proxy_protocol without trusted_proxies.
var ErrProxyProtocol = errors.New("app: proxy_protocol: trusted_proxies names nobody, and a header of anybody else would not be believed")

// Check reports everything that New would refuse about a configuration before
// it opens anything. It reads files that the settings name and looks at the
// machine's addresses.
func Check(c config.Config, mode Mode) error {
	_, err := adminToken(&c)
	errs := []error{err, admin.AddrAllowed(c.Admin.AddrPort, c.AdminPublic, c.AdminToken != "", hasTLS(&c))}
	_, err = loadCertificate(&c, nil)
	errs = append(errs, err)
	_, err = newACME(&c, nil)
	errs = append(errs, err)
	_, err = newPlayers(&c, mode, nil)
	errs = append(errs, err, checkFleet(&c, mode))
	if c.ProxyProtocol && len(c.TrustedProxies) == 0 {
		errs = append(errs, ErrProxyProtocol)
	}
	if mode.hasRelay() {
		errs = append(errs, checkRelay(&c, mode))
	}
	if mode.hasAPI() {
		errs = append(errs, checkCalls(&c, mode))
	}
	return errors.Join(errs...)
}

// checkRelay is Check for what the relay needs.
func checkRelay(c *config.Config, mode Mode) error {
	_, err := advertise(listen(c), c.Advertise, ownAddresses(mode))
	errs := []error{err, checkName(c)}
	if c.WebSocket {
		_, err = websocket.New(websocketConfig(c, mode))
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

// checkCalls is Check for what the API needs.
func checkCalls(c *config.Config, mode Mode) error {
	var errs []error
	if mode != Dev {
		errs = append(errs, checkPublic(c))
	}
	if len(c.Tokens) > 0 {
		// The handler is thrown away: it is asked about the tokens only.
		_, err := newAPI(c, mode, httpapi.Config{Service: new(alloc.Service)})
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

// Warnings returns what a configuration may well be, but hardly was meant to be.
func Warnings(c config.Config, mode Mode) (all []string) {
	if mode != Dev && c.BehindProxy && len(c.TrustedProxies) == 0 {
		all = append(all, "behind_proxy without trusted_proxies: all players have the proxy's address, and share its limits of requests and failed joins")
	}
	if mode.hasAPI() {
		all = append(all, issuerWarnings(&c)...)
	}
	if !mode.hasRelay() {
		return all
	}
	told, err := advertise(listen(&c), c.Advertise, ownAddresses(mode))
	if err != nil {
		return all // Check says so.
	}
	if _, why := webEndpoints(&c, told, c.HTTP.AddrPort); why != "" {
		all = append(all, why)
	}
	if c.AdvertiseName.Host != "" && (!c.WebSocket || !hasTLS(&c) && !c.BehindProxy) {
		all = append(all, "advertise_name has no effect: it is for wss, which there is not")
	}
	return all
}

// checkName refuses a name told to players for which no certificate is fetched.
func checkName(c *config.Config) error {
	name := c.AdvertiseName.Host
	if len(c.ACMEDomains) == 0 || name == "" {
		return nil
	}
	for _, n := range c.ACMEDomains {
		if strings.EqualFold(n.Host, name) {
			return nil
		}
	}
	return fmt.Errorf("app: advertise_name: %s is not among acme_domains, so that its certificate would not bear it", name)
}

// checkPublic refuses what must not stand on the Internet.
func checkPublic(c *config.Config) error {
	var errs []error
	if len(c.Tokens) == 0 && len(c.Issuers) == 0 {
		errs = append(errs, ErrNoToken)
	}
	if !hasTLS(c) {
		errs = append(errs, plainHTTPAllowed(c.HTTP.AddrPort, c.BehindProxy))
	}
	return errors.Join(errs...)
}

// ErrPlainHTTP is returned for an address on which answers, which contain keys, would be
// sent unencrypted.
var ErrPlainHTTP = errors.New("app: plain HTTP is refused on an address that others can reach: use TLS, or declare a reverse proxy")

// plainHTTPAllowed returns nil if the API may be served at addr without TLS: on
// loopback, or behind a reverse proxy that terminates TLS. Otherwise it returns
// ErrPlainHTTP. Wildcard and private addresses count as public.
func plainHTTPAllowed(addr netip.AddrPort, behindProxy bool) error {
	if behindProxy || addr.Addr().Unmap().IsLoopback() {
		return nil
	}
	return fmt.Errorf("%w (%s)", ErrPlainHTTP, addr)
}
