package main

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os/exec"
	"slices"
	"strconv"
	"strings"

	"github.com/ferryrelay/ferry/bench"
)

// errEnded is returned for a relay whose process has ended by itself.
var errEnded = errors.New("the process has ended")

// Credentials of the TURN servers.
const (
	turnUser     = "u"
	turnPassword = "p"
	turnRealm    = "bench"
)

// peer is a relay under comparison.
type peer struct {
	name  string // on the command line and in JSON
	title string // in tables, before its version
	// start runs the relay and waits until it is ready. star selects the rule
	// by which relays without a table compute the destination.
	start func(ctx context.Context, o options, star bool) (*server, error)
}

// peers are the relays in the order of the first round. The first is compared
// with the others. Only some scenarios use variants.
var (
	peers = []peer{
		{"ferry", "ferry", startFerry},
		{"null", "null relay", startNull}, // Ferry's socket loop, swap by arithmetic
		{"c", "C loop", startSwap()},      // recvmmsg and sendmmsg in C, batch 64, swap by arithmetic
		{"coturn", "coturn", startCoturn()},
		{"pion", "pion/turn", startPion},
	}
	variants = []peer{
		{"c-merge", "C loop, merging", startSwap("--merge")}, // one message (UDP_SEGMENT) for what goes to one destination
		// One relayed port for all, so that each peer has one client.
		{multiplexed, "coturn, multiplexed", startCoturn("--multiplex-peer", "--udp-gso")},
	}
	// secured use DTLS with their clients.
	secured = []peer{
		{"ferry-dtls", "ferry, DTLS", startFerryDTLS},
		{"coturn-dtls", "coturn, DTLS", startCoturnDTLS},
	}
)

func peerNames() (list []string) {
	for _, p := range peers {
		list = append(list, p.name)
	}
	return list
}

// base returns the peer of a variant.
func (p peer) base() string { return strings.SplitN(p.name, "-", 2)[0] }

// title returns a peer's name for tables.
func title(name string) string {
	for _, list := range [][]peer{peers, variants, secured} {
		for _, p := range list {
			if v := versions[p.base()]; p.name == name && v != "" {
				base, rest, _ := strings.Cut(p.title, ",")
				return strings.TrimSuffix(base+" "+v+","+rest, ",")
			} else if p.name == name {
				return p.title
			}
		}
	}
	return name
}

// swapDialect reads the address that the process prints first.
func swapDialect(ctx context.Context, s *server, label string) (*server, error) {
	addr, err := s.address(ctx)
	if err != nil {
		s.stop()
		return nil, fmt.Errorf("%s: %w", label, err)
	}
	s.dialect, err = bench.NewDialect(bench.DialectConfig{Name: "swap", Relay: addr})
	return s, err
}

func startNull(ctx context.Context, o options, star bool) (*server, error) {
	argv := []string{o.bin("ferry"), "bench", "null", "--udp", o.net().listen()}
	if star {
		argv = append(argv, "--star")
	}
	s, err := start(o, o.out, argv...)
	if err != nil {
		return nil, err
	}
	return swapDialect(ctx, s, "null")
}

func startSwap(flags ...string) func(context.Context, options, bool) (*server, error) {
	return func(ctx context.Context, o options, star bool) (*server, error) {
		mode := "pairs"
		if star {
			mode = "star"
		}
		s, err := start(o, o.out, append([]string{o.bin("swap"), "--addr", o.net().relay.String(), "--port", "0", "--mode", mode}, flags...)...)
		if err != nil {
			return nil, err
		}
		return swapDialect(ctx, s, "c")
	}
}

// startFerryDTLS is startFerry with all datagrams over DTLS.
func startFerryDTLS(ctx context.Context, o options, star bool) (*server, error) {
	s, err := startFerry(ctx, o, star)
	if err == nil {
		s.transport = "dtls"
	}
	return s, err
}

func startFerry(ctx context.Context, o options, _ bool) (*server, error) {
	local := o.net().listen()
	argv := []string{o.bin("ferry"), "dev", "--workers", "1", "--udp", local, "--http", local, "--admin", "127.0.0.1:0",
		"--log-level", "error"}
	s, err := start(o, o.out, argv...)
	if err != nil {
		return nil, err
	}
	cfg := bench.DialectConfig{AllowRemote: o.remote()}
	err = s.line(ctx, func(l string) bool {
		_, rest, ok := strings.Cut(l, "ready ")
		for _, word := range strings.Fields(rest) {
			if u, found := strings.CutPrefix(word, "http="); found {
				cfg.BaseURL = u
			}
		}
		return ok
	})
	if err == nil {
		s.dialect, err = bench.NewDialect(cfg)
	}
	if err != nil {
		s.stop()
		return nil, fmt.Errorf("ferry: %w", err)
	}
	return s, nil
}

// multiplexed is coturn with one socket for the peers of all clients, where it has that option.
const multiplexed = "coturn-multiplexed"

func startCoturn(flags ...string) func(context.Context, options, bool) (*server, error) {
	return func(ctx context.Context, o options, _ bool) (*server, error) {
		port, err := freePort()
		if err != nil {
			return nil, err
		}
		name, more := "coturn", append([]string{"--no-tls", "--no-dtls"}, flags...)
		if len(flags) > 0 {
			name = multiplexed
			shared, err := freePort()
			if err != nil {
				return nil, err
			}
			more = append(more, "--multiplex-peer-port="+strconv.Itoa(shared))
		}
		s, err := start(o, o.bin(""), coturn(o, name, port, more...)...)
		if err != nil {
			return nil, err
		}
		addr := o.net().at(port)
		return turnDialect(s, addr, name, s.untilBinding(ctx, addr))
	}
}

// coturn returns the command line, of the options that this version has. Files that two instances
// must not share have the name in them.
func coturn(o options, name string, port int, more ...string) []string {
	help := o.coturnHelp()
	argv := []string{
		o.turnserver(), "-n", "--listening-ip=" + o.net().relay.String(), "--relay-ip=" + o.net().relay.String(),
		"-p", strconv.Itoa(port), "--no-cli", "--lt-cred-mech", "--realm=" + turnRealm,
		"-u", turnUser + ":" + turnPassword, "--allow-loopback-peers", "-m", "1",
		"--no-stdout-log", "--log-file=/dev/null", "--simple-log",
		"--pidfile=" + o.bin(name+".pid"), "--userdb=" + o.bin(name+".db"),
	}
	return slices.DeleteFunc(append(argv, more...), func(arg string) bool {
		option, _, _ := strings.Cut(arg, "=")
		return strings.HasPrefix(option, "--") && !strings.Contains(help, option)
	})
}

// startCoturnDTLS is startCoturn with clients over DTLS on a port of its own,
// with the same cipher as Ferry's.
func startCoturnDTLS(ctx context.Context, o options, _ bool) (*server, error) {
	plain, err := freePort()
	if err != nil {
		return nil, err
	}
	port, err := freePort()
	if err != nil {
		return nil, err
	}
	cert, key := o.bin("coturn.crt"), o.bin("coturn.key")
	request := "req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -batch -subj /CN=localhost -keyout " + key + " -out " + cert
	if out, err := exec.CommandContext(ctx, "openssl", strings.Fields(request)...).CombinedOutput(); err != nil {
		return nil, fmt.Errorf("openssl: %w: %s", err, out)
	}
	s, err := start(o, o.bin(""), coturn(o, "coturn-dtls", plain, "--no-tls",
		"--tls-listening-port="+strconv.Itoa(port), "--cert="+cert, "--pkey="+key, "--cipher-list=ECDHE-ECDSA-AES128-GCM-SHA256")...)
	if err != nil {
		return nil, err
	}
	s, err = turnDialect(s, o.net().at(port), "coturn, DTLS", s.untilBinding(ctx, o.net().at(plain)))
	if err == nil {
		s.transport = "dtls"
	}
	return s, err
}

func startPion(ctx context.Context, o options, _ bool) (*server, error) {
	s, err := start(o, o.out, o.bin("pionserver"), "-listen", o.net().listen(), "-realm", turnRealm,
		"-user", turnUser, "-password", turnPassword)
	if err != nil {
		return nil, err
	}
	addr, err := s.address(ctx)
	return turnDialect(s, addr, "pion", err)
}

func turnDialect(s *server, addr netip.AddrPort, label string, err error) (*server, error) {
	if err != nil {
		s.stop()
		return nil, fmt.Errorf("%s: %w", label, err)
	}
	s.dialect, err = bench.NewDialect(bench.DialectConfig{Name: "turn", Relay: addr, User: turnUser, Password: turnPassword})
	return s, err
}
