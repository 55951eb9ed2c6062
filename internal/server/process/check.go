package process

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"github.com/ferryrelay/ferry/alloc"
	"github.com/ferryrelay/ferry/alloc/httpapi"
	"github.com/ferryrelay/ferry/engine/websocket"
	"github.com/ferryrelay/ferry/internal/base/origin"
	"github.com/ferryrelay/ferry/internal/fleet/placement"
	"github.com/ferryrelay/ferry/internal/fleet/rpc"
	"github.com/ferryrelay/ferry/internal/server/config"
	"github.com/ferryrelay/ferry/internal/server/operator/admin"
)

// Mode is the role of the process.
type Mode uint8

const (
	// Serve is a single public relay with its API. Callers need tokens, and all limits
	// apply.
	Serve Mode = iota
	// Dev is for a developer's machine: calls need no token, and the limits of the API
	// and the budgets of ERROR replies are off.
	Dev
	// Relay is a public relay of a fleet, without an API.
	Relay
	// API is a public API process of a fleet, without a relay.
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

// hasRelay, hasAPI and isFleetMember report the parts of a process in this mode.
func (m Mode) hasRelay() bool      { return m != API }
func (m Mode) hasAPI() bool        { return m != Relay }
func (m Mode) isFleetMember() bool { return m == Relay || m == API }

// The settings that have an effect in some modes only.
var (
	ofCalls, ofRelay      = config.Keys("of", "calls"), config.Keys("of", "relay")
	ofFleet, ofFleetRelay = config.Keys("of", "fleet"), config.Keys("of", "fleet relay")
)

// offInDev are limits, and what a restart needs, which dev does not have.
var offInDev = config.Keys("dev", "off")

// Unused returns a sentence about each setting that is set and has no effect in that
// mode. They are no errors, since several machines may share a file.
func Unused(l config.Loaded, mode Mode) (all []string) {
	for _, key := range idleIn(mode) {
		if l.IsSet(key) {
			all = append(all, fmt.Sprintf("%s (%s) has no effect in ferry %s", key, l.Source(key), mode))
		}
	}
	slices.Sort(all)
	return all
}

// Inapplicable returns the settings that the help of a mode does not show: those without
// effect, and for dev also those of public access.
func Inapplicable(mode Mode) []string {
	idle := idleIn(mode)
	if mode == Dev {
		idle = slices.Concat(idle, offInDev, forPublicAccess)
	}
	return idle
}

// forPublicAccess are settings that work in dev, where no one on loopback needs them.
var forPublicAccess = config.Keys("dev", "hidden")

func idleIn(mode Mode) (idle []string) {
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
	return idle
}

// ErrNoToken is returned for serve without a token. Its text helps the operator of a new
// installation.
var ErrNoToken = errors.New(`no token is configured, and serve does not run an open relay. A file that is enough:

    # ferry.yaml
    advertise: 203.0.113.7            # the public address of this machine
    acme: true                        # a certificate for it; or tls_cert, or trusted_proxies: [127.0.0.1]
    tokens:
      - secret_file: /etc/ferry/token # one line of 16 characters or more: openssl rand -hex 24
        project: my-game
        environment: production
        kind: server                  # a backend that acts for many players

    ferry serve --config ferry.yaml

On your own machine, ferry dev needs none of this`)

// ErrProxyProtocol is returned for proxy_protocol without trusted_proxies.
var ErrProxyProtocol = errors.New("proxy_protocol: trusted_proxies is empty, and headers of other addresses are not accepted")

// Check returns all errors of a configuration that New would return before it opens
// anything. It reads the files that the settings name and the machine's addresses.
func Check(c config.Config, mode Mode) error {
	_, err := adminToken(&c)
	errs := []error{err, admin.AddrAllowed(c.Admin.AddrPort, c.AdminPublic, c.AdminToken != "", hasTLS(&c))}
	_, err = adminOIDC(&c)
	errs = append(errs, err)
	_, err = newCertificates(&c, mode, nil)
	errs = append(errs, err)
	_, err = newPlayers(&c, mode, nil)
	errs = append(errs, err, checkFleet(&c, mode))
	if _, err := origin.NewList(c.AllowOrigins); err != nil {
		errs = append(errs, fmt.Errorf("allow_origins: %w", err))
		c.AllowOrigins = nil // or the API and WebSocket would say so, too
	}
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

func checkRelay(c *config.Config, mode Mode) error {
	_, err := advertise(listen(c), c.Advertise, ownAddresses(mode))
	errs := []error{err, checkWorkerCPUs(c)}
	if c.WebSocket {
		_, err = websocket.New(websocketConfig(c, mode))
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

// checkWorkerCPUs checks the settings about the CPUs of workers. Whether the process may
// run there is known at the start only.
func checkWorkerCPUs(c *config.Config) error {
	n := len(c.WorkerCPUs.List())
	switch {
	case n > maxWorkers:
		return fmt.Errorf("worker_cpus: %d CPUs are more than the %d workers of an address", n, maxWorkers)
	case n > 0 && c.Workers != 0 && c.Workers != n:
		return fmt.Errorf("workers is %d, and worker_cpus has %d CPUs", c.Workers, n)
	}
	return nil
}

func checkCalls(c *config.Config, mode Mode) error {
	var errs []error
	if mode != Dev {
		errs = append(errs, checkPublic(c))
	}
	if len(c.Tokens) > 0 {
		// The handler is discarded: New checks the tokens. Its service gets no call.
		service, err := alloc.NewService(alloc.ServiceConfig{
			Relay: new(placement.Fleet), Store: alloc.NewMemoryStore(), Regions: []alloc.Region{{ID: "default"}},
		})
		if err == nil {
			_, err = newAPI(withReadSecrets(c), mode, httpapi.Config{Service: service}, nil)
		}
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

// withReadSecrets returns the settings without the errors of tokens whose file config.Load could not
// read, which it has reported.
func withReadSecrets(c *config.Config) *config.Config {
	read := *c
	read.Tokens = slices.Clone(c.Tokens)
	for i := range read.Tokens {
		if t := &read.Tokens[i]; t.Secret == "" && t.SecretFile != "" {
			t.Secret = config.Secret(fmt.Sprintf("unreadable-secret-%d", i))
		}
	}
	return &read
}

// ModeOf returns the mode for which settings are, and why: Serve without a store, else the role of
// the certificate, else by settings that only one mode of a fleet uses.
func ModeOf(l config.Loaded) (mode Mode, because string) {
	if !l.IsSet("store") && !l.IsSet("cluster_cert") {
		return Serve, "there is no store"
	}
	switch role, _ := rpc.CertificateRole(l.ClusterCert); role { // Check returns the error.
	case rpc.RoleRelay:
		return Relay, "cluster_cert is of a relay"
	case rpc.RoleAPI:
		return API, "cluster_cert is of an API process"
	}
	first := func(keys []string) string {
		if i := slices.IndexFunc(keys, l.IsSet); i >= 0 {
			return keys[i]
		}
		return ""
	}
	switch key := first(ofCalls); {
	case l.IsSet("cluster"):
		return Relay, "cluster is set"
	case key != "":
		return API, key + " is set"
	}
	if key := first(slices.Concat(ofFleetRelay, ofRelay)); key != "" {
		return Relay, key + " is set"
	}
	return API, "there is a store, and no setting of a relay"
}

// Warnings returns sentences about valid settings that are probably not intended, and
// about certificates that clients refuse.
func Warnings(c config.Config, mode Mode) (all []string) {
	return append(settingWarnings(c, mode), certificateWarnings(&c)...)
}

func settingWarnings(c config.Config, mode Mode) (all []string) {
	if slices.ContainsFunc(c.TrustedProxies, func(n config.Network) bool { return n.Bits() == 0 }) {
		all = append(all, "trusted_proxies has all addresses: any client that reaches the port may name any address as its own, and take all connections (max_http_connections)")
	}
	if mode.hasAPI() {
		all = append(all, issuerWarnings(&c)...)
	}
	warnRegions := func(of string, regions []string) {
		if !mode.isFleetMember() && len(regions) > 0 && !slices.Contains(regions, c.Region) {
			all = append(all, fmt.Sprintf("%s may have no host here: the region of this relay is %q, and its regions are %q", of, c.Region, regions))
		}
	}
	for i, q := range c.Quotas {
		warnRegions(fmt.Sprintf("quotas[%d]: project %q", i, q.Project), q.Regions)
	}
	for i, t := range c.Tokens {
		warnRegions(fmt.Sprintf("tokens[%d]: its holder", i), t.Regions)
	}
	if !mode.hasRelay() {
		return all
	}
	advertised, err := advertise(listen(&c), c.Advertise, ownAddresses(mode))
	if err != nil {
		return all // Check returns the error.
	}
	if _, why := webEndpoints(&c, advertised, c.HTTP.AddrPort); why != "" {
		all = append(all, why)
	}
	if c.AdvertiseName.Host != "" && (!c.WebSocket || !hasTLS(&c) && !isBehindProxy(&c)) {
		all = append(all, "advertise_name has no effect: it is for wss, which there is not")
	}
	return all
}

// limitedPaths is what an operator can do whose players have limited paths.
const limitedPaths = "let the relay see the players' own addresses (the host's network in place of a published port, externalTrafficPolicy: Local for a NodePort), or play over DTLS"

// Advice returns sentences about what callers of the API, and the network before the relay, should
// do with valid settings.
func Advice(c config.Config, mode Mode) (all []string) {
	if mode == Dev {
		return nil
	}
	// An API process of a fleet has other settings than its relays.
	if mode.hasRelay() && c.AllowPrivateSources && (mode == Relay || len(c.TrustedProxies) > 0) {
		all = append(all, "allow_private_sources: a player whose datagrams come from a private address, as through a NodePort or a container's proxy, and whose calls come from its own (trusted_proxies), gets over UDP three bytes for each one that it sends, and 256 kB/s besides: "+limitedPaths)
	}
	if !mode.hasAPI() {
		return all
	}
	backend := slices.ContainsFunc(c.Tokens, func(t config.Token) bool { return t.Kind == "server" }) ||
		slices.ContainsFunc(c.Issuers, func(i config.Issuer) bool { return i.Kind == "server" })
	if backend {
		all = append(all, "tokens of kind server: a backend should name its player's address (playerAddress) in each allocate and join; without it the relay accepts the first message from any address as the player's, which may be forged (SECURITY.md)")
	}
	return all
}

func checkPublic(c *config.Config) error {
	var errs []error
	if len(c.Tokens) == 0 && len(c.Issuers) == 0 {
		errs = append(errs, ErrNoToken)
	}
	if !hasTLS(c) {
		errs = append(errs, plainHTTPAllowed(c.HTTP.AddrPort, isBehindProxy(c)))
	}
	return errors.Join(errs...)
}

// isBehindProxy reports whether a reverse proxy terminates TLS. Without its address, all players would
// count as one, and any connection could be the proxy's.
func isBehindProxy(c *config.Config) bool { return len(c.TrustedProxies) > 0 && !hasTLS(c) }

// ErrPlainHTTP is returned for an address on which answers, which contain keys, would be
// sent unencrypted.
var ErrPlainHTTP = errors.New("plain HTTP is refused on an address that others can reach: use TLS (acme, or tls_cert), or set trusted_proxies to the addresses from which a reverse proxy connects, such as [127.0.0.1] for one on this machine")

// plainHTTPAllowed returns nil if the API may be served at addr without TLS: on
// loopback, or behind a reverse proxy that terminates TLS. Otherwise it returns
// ErrPlainHTTP. Wildcard and private addresses count as public.
func plainHTTPAllowed(addr netip.AddrPort, behindProxy bool) error {
	if behindProxy || addr.Addr().Unmap().IsLoopback() {
		return nil
	}
	return fmt.Errorf("%w (%s)", ErrPlainHTTP, addr)
}
