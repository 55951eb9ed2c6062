//go:build lab && linux

package lab

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/ferryrelay/ferry/alloc"
	"github.com/ferryrelay/ferry/alloc/api"
	"github.com/ferryrelay/ferry/internal/server/players/identity"
	"github.com/ferryrelay/ferry/internal/test/testkit"
)

func newWorldGame(t *testing.T, r worldRow, flags ...string) *worldGame {
	testkit.Program(t, "nft", "nftables")
	testkit.Program(t, "ethtool", "ethtool")
	g := &worldGame{worldResult: worldResult{row: r, shares: [4]string{"-", "-", "-", "-"}}}
	g.lab = newLabIn(t, NewRoutedNetwork, func(c *RelayConfig) {
		if err := g.buildNetwork(c.Network); err != nil {
			t.Fatal(err)
		}
		g.configure(t, c)
		c.Flags = append(c.Flags, flags...)
	})
	if strings.HasPrefix(r.get(dimAddress), "proxy") {
		g.startProxy()
	}
	g.host = &worldClient{
		game: g, name: "host", families: r.get(dimHost), near: true, in: g.net.Peers,
		local: map[string]netip.Addr{"4": FirstPeer, "6": FirstPeer6},
	}
	first4 := FirstClient
	if strings.HasPrefix(r.get(dimAddress), "hairpin") {
		first4 = privateFirst
	}
	locals := []map[string]netip.Addr{{"4": first4, "6": FirstClient6}, {"4": first4.Next(), "6": FirstClient6.Next()}}
	for i, families := range r.players() {
		g.players = append(g.players, &worldClient{
			game: g, name: fmt.Sprint("player ", i+1), families: families, in: g.net.Clients, local: locals[i],
		})
	}
	return g
}

func (g *worldGame) buildNetwork(n *Network) error {
	r := g.row
	wire6, lan6 := "2001:db8:1::2", clientsLAN6
	errs := []error{
		n.Clients.IP("route add local " + privateRange + " dev lo"), n.Router.IP("route add " + privateRange + " via " + clientsLAN),
		n.Relay.IP("route add " + privateRange + " via " + clientsWire),
		n.Clients.IP("-6 route add local " + mobileRange6 + " dev lo"), n.Router.IP("-6 route add " + mobileRange6 + " via " + lan6),
		n.Relay.IP("-6 route add " + mobileRange6 + " via " + wire6),
		// Sockets of IPv4 set no DF, as on most systems but Linux.
		n.Clients.Set("net.ipv4.ip_no_pmtu_disc", "1"), n.Peers.Set("net.ipv4.ip_no_pmtu_disc", "1"),
		n.Relay.IP("addr add " + publicAddr.String() + "/32 dev lo"), n.Relay.IP("addr add " + publicAddr6.String() + "/128 dev lo nodad"),
		n.Relay.IP("addr add " + proxySource.String() + "/32 dev lo"),
	}
	mtu, how, _ := strings.Cut(r.get(dimPath), " ")
	if how != "up" {
		errs = append(errs, n.Router.IP("route replace "+clientsRange+" via "+clientsLAN+" mtu "+mtu),
			n.Router.IP("route replace "+privateRange+" via "+clientsLAN+" mtu "+mtu),
			n.Router.IP("-6 route replace "+clientsRange6+" via "+lan6+" mtu "+mtu),
			n.Router.IP("-6 route replace "+mobileRange6+" via "+lan6+" mtu "+mtu))
	}
	if how != "down" {
		errs = append(errs, n.Router.IP("route replace default via 198.51.100.1 mtu "+mtu),
			n.Router.IP("-6 route replace default via 2001:db8:1::1 mtu "+mtu))
	}
	if how == "silent" {
		errs = append(errs, n.Router.Filter(`table inet silent {
	chain out {
		type filter hook output priority 0
		icmpv6 type packet-too-big drop
		icmp type destination-unreachable icmp code 4 drop
	}
	chain forward {
		type filter hook forward priority 0
		tcp flags syn tcp option maxseg size set `+fmt.Sprint(atoi(mtu)-60)+`
	}
}`))
	}
	switch how := r.get(dimAddress); how {
	case "nat", "nat ports":
		flags := strings.TrimPrefix(strings.Replace(how, "nat ports", "nat random,fully-random", 1), "nat")
		errs = append(errs, n.Router.Filter(`table inet nat {
	chain post {
		type nat hook postrouting priority srcnat
		oifname "relay" ip saddr 198.18.0.0/17 masquerade`+flags+`
		oifname "relay" ip6 saddr `+clientsRange6+` masquerade`+flags+`
	}
}`))
	case "redirect":
		errs = append(errs, n.Relay.Filter(fmt.Sprintf(`table inet nat {
	chain pre {
		type nat hook prerouting priority dstnat
		udp dport %[1]d redirect to :%[2]d
		tcp dport %[1]d redirect to :%[2]d
	}
}`, publicPort, relayPort)))
	case "dnat":
		errs = append(errs, n.Relay.Filter(fmt.Sprintf(`table inet nat {
	chain pre {
		type nat hook prerouting priority dstnat
		ip daddr %s meta l4proto { tcp, udp } dnat ip to %s
		ip6 daddr %s meta l4proto { tcp, udp } dnat ip6 to %s
	}
}`, publicAddr, RelayAddr.Addr(), publicAddr6, RelayAddr6.Addr())))
	}
	if r.has(dimXDP, "tc") {
		errs = append(errs, forXDP(n.Router), forXDP(n.Peers))
	}
	return errors.Join(errs...)
}

func atoi(s string) (n int) {
	_, _ = fmt.Sscan(s, &n)
	return n
}

// trustDevelopment makes the relay accept tokens with this key.
func (c *RelayConfig) trustDevelopment(key []byte) {
	file := filepath.Join(c.Dir, "issuer-key")
	if err := os.WriteFile(file, key, 0o600); err != nil {
		panic(err)
	}
	c.YAML = fmt.Sprintf("issuers:\n  - preset: development\n    hs256_key_file: %q\n", file)
}

func (g *worldGame) configure(t *testing.T, c *RelayConfig) {
	r := g.row
	c.trustDevelopment(worldSecret)
	http := "0.0.0.0:7777"
	for _, family := range strings.Split(r.get(dimRelay), "+") {
		listen := g.relay0(family)
		if r.has(dimAddress, "redirect") { // It goes to an address of the interface.
			listen = netip.AddrPortFrom(netip.IPv4Unspecified(), relayPort)
		}
		if family == "6" {
			http = "[::]:7777"
			if r.has(dimAddress, "redirect") {
				listen = netip.AddrPortFrom(netip.IPv6Unspecified(), relayPort)
			}
		}
		c.Flags = append(c.Flags, "--udp", listen.String())
		switch r.get(dimAddress) {
		case "proxy", "proxy refused", "dnat":
			c.Flags = append(c.Flags, "--advertise", g.public(family).Addr().String())
		case "redirect":
			c.Flags = append(c.Flags, "--advertise", g.public(family).String())
		}
	}
	c.Flags = append(c.Flags, "--http", http, "--recover-for", "20s")
	if r.has(dimAddress, "proxy", "hairpin") {
		c.Flags = append(c.Flags, "--allow-private-sources")
	}
	if r.has(dimXDP, "tc") {
		c.Flags = append(c.Flags, "--xdp", "tc")
	}
	if r.migrates() {
		c.Flags = append(c.Flags, "--host-migration", "60s")
	}
	if g.plain() {
		return
	}
	cert, key := testkit.SelfSigned(t).WriteFiles(t, c.Dir)
	c.Flags = append(c.Flags, "--trusted-proxies", "192.0.2.1", "--tls-cert", cert, "--tls-key", key)
}

// plain reports whether the API has no TLS: ws is plain HTTP.
func (g *worldGame) plain() bool { return g.row.has(dimTransport, "ws") }

// relay0 returns the relay's own address of a family, public the one that players get.
func (g *worldGame) relay0(family string) netip.AddrPort {
	if family == "6" {
		return RelayAddr6
	}
	return RelayAddr
}

func (g *worldGame) public(family string) netip.AddrPort {
	at := g.relay0(family)
	switch g.row.get(dimAddress) {
	case "redirect":
		at = netip.AddrPortFrom(at.Addr(), publicPort)
	case "proxy", "proxy refused", "dnat":
		at = netip.AddrPortFrom(publicAddr, relayPort)
		if family == "6" {
			at = netip.AddrPortFrom(publicAddr6, relayPort)
		}
	}
	return at
}

// startProxy starts a proxy for UDP on the relay's machine, which has a private address.
func (g *worldGame) startProxy() {
	socket := func(at netip.AddrPort) func() (*net.UDPConn, error) {
		return func() (conn *net.UDPConn, err error) {
			err = g.net.Relay.Do(func() error {
				conn, err = net.ListenUDP("udp4", net.UDPAddrFromAddrPort(at))
				return err
			})
			return conn, err
		}
	}
	// Its sockets set no DF, and so do those of players: silent routers are about the relay.
	g.must(g.net.Relay.Set("net.ipv4.ip_no_pmtu_disc", "1"))
	listener, err := socket(g.public("4"))()
	if err != nil {
		g.Fatal(err)
	}
	p := &proxy{target: RelayAddr, listener: listener, dial: socket(netip.AddrPortFrom(proxySource, 0))}
	g.background(p.run)
}

// familyNamer adds the family of the player to the body of a call.
type familyNamer struct {
	http.RoundTripper
	name bool
}

func (f familyNamer) RoundTrip(req *http.Request) (*http.Response, error) {
	if !f.name || req.Body == nil {
		return f.RoundTripper.RoundTrip(req)
	}
	raw, err := io.ReadAll(req.Body)
	if err != nil {
		return nil, err
	}
	req = req.Clone(req.Context())
	raw = bytes.Replace(raw, []byte("{"), []byte(`{"family":6,`), 1)
	req.Body, req.ContentLength = io.NopCloser(bytes.NewReader(raw)), int64(len(raw))
	return f.RoundTripper.RoundTrip(req)
}

func (c *worldClient) api() (*api.Client, error) {
	g := c.game
	family, local := "4", c.local["4"]
	own := g.row.has(dimCall, "own")
	relay := g.row.get(dimRelay)
	if own && strings.Contains(c.families, "6") && strings.Contains(relay, "6") || !strings.Contains(relay, "4") {
		family, local = "6", c.local["6"]
	}
	token := fmt.Sprintf(tokenFormat, 0)
	if own {
		var err error
		token, err = identity.Mint(identity.MintRequest{Secret: worldSecret, Identity: identity.Identity{
			Tenant: alloc.Tenant{Project: "laboratory", Environment: "test"}, Player: c.name,
		}, Valid: time.Hour, Now: time.Now()})
		if err != nil {
			return nil, err
		}
	}
	scheme := "https"
	if g.plain() {
		scheme = "http"
	}
	transport := &http.Transport{
		DisableKeepAlives: true, TLSClientConfig: &tls.Config{InsecureSkipVerify: true}, // It is self-signed.
		DialContext: func(ctx context.Context, network, addr string) (conn net.Conn, err error) {
			err = c.in.Do(func() error {
				d := net.Dialer{LocalAddr: &net.TCPAddr{IP: local.AsSlice()}}
				conn, err = d.DialContext(ctx, network, addr)
				return err
			})
			return conn, err
		},
	}
	// A join over IPv6 says so itself; a host, a player that may be the next one, and a backend name the family.
	names := c.families == "6" && (!own || c.near || c.alloc.AllocationID != "")
	return &api.Client{
		BaseURL: scheme + "://" + g.relay0(family).String(), Token: token,
		HTTP: &http.Client{Transport: familyNamer{transport, names}, Timeout: api.DefaultTimeout},
	}, nil
}

// endpoint returns where the client connects to: as Unity's does, to the first endpoint
// of its type for udp and dtls, and to an address of the relay's name for the others.
func (c *worldClient) endpoint() (at netip.AddrPort, local netip.Addr, err error) {
	g := c.game
	families := c.families
	if c.near && families == "4+6" {
		families = "4"
	}
	if transport := g.row.get(dimTransport); transport == "udp" || transport == "dtls" {
		e, ok := c.alloc.Endpoint(transport)
		if !ok {
			return at, local, errors.New("no endpoint of " + transport)
		}
		ip, err := netip.ParseAddr(e.Host)
		if err != nil {
			return at, local, err
		}
		if at = netip.AddrPortFrom(ip, uint16(e.Port)); c.near && g.row.has(dimAddress, "redirect", "dnat") {
			at = g.relay0(map[bool]string{false: "4", true: "6"}[ip.Is6()]) // Of the relay's own network.
		}
	} else if family := "6"; strings.Contains(families, "6") && strings.Contains(g.row.get(dimRelay), "6") {
		at = g.public(family)
	} else {
		at = g.public("4")
	}
	family := "4"
	if at.Addr().Is6() {
		family = "6"
	}
	c.six = family == "6"
	if !strings.Contains(families, family) {
		return at, local, fmt.Errorf("it has no IPv%s, and its endpoint is %v", family, at)
	}
	return at, c.local[family], nil
}

func (c *worldClient) start(peers ...api.Allocation) error {
	at, local, err := c.endpoint()
	if err != nil {
		return err
	}
	g := c.game
	c.client = NewGameClient(GameClientConfig{
		Transport: g.row.get(dimTransport), Namespace: c.in, Local: local, Relay: at, Player: c.alloc, Peers: PeersOf(peers...),
		Rate: worldRate, Sizes: g.sizes(),
	})
	ctx, stop := context.WithCancel(g.Context())
	c.stop = stop
	g.background(func(background context.Context) {
		defer context.AfterFunc(background, stop)()
		c.client.Run(ctx)
	})
	return nil
}
