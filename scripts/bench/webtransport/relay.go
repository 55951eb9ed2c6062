package main

import (
	"bufio"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"io"
	"log"
	"math/big"
	"net"
	"net/http"
	"net/netip"
	"os"
	"time"

	"github.com/ferryrelay/ferry/alloc"
	"github.com/ferryrelay/ferry/engine"
	"github.com/ferryrelay/ferry/engine/websocket"
	"github.com/ferryrelay/ferry/proto"
)

// player is what a client must know.
type player struct {
	ID, Peer      proto.AllocationID
	Bind, Connect []byte // Connect: of a joiner
}

// match is what the relay's process prints first.
type match struct {
	Addr    netip.AddrPort
	Players []player // host, joiner, host, joiner …
}

// runRelay serves players of one kind until its input ends. Each line of it asks for figures,
// "memory" for those after a collection of garbage.
func runRelay(kind string, sessions int, trace bool) error {
	ctx, stop := context.WithCancel(context.Background())
	defer stop()
	cert, err := certificate()
	if err != nil {
		return err
	}
	const stay = time.Hour
	cfg := engine.Config{
		Listen: []netip.AddrPort{netip.MustParseAddrPort("127.0.0.1:0")}, Sockets: engine.Sockets{Workers: 1},
		MaxAllocations: max(1024, sessions), Unlimited: true,
		Timeouts: engine.Timeouts{Idle: stay, HostAlone: stay, Bind: stay, Receive: stay},
	}
	var counts *wireCounts
	if trace {
		counts = new(wireCounts)
	}
	var t *transport
	var addr netip.AddrPort
	switch kind {
	case "udp":
	case "wss":
		w, err := websocket.New(websocket.Config{MaxConns: sessions, MaxConnsPerAddress: websocket.NoLimit})
		if err != nil {
			return err
		}
		listener, err := net.Listen("tcp4", "127.0.0.1:0")
		if err != nil {
			return err
		}
		cfg.Transports = []engine.Transport{w}
		addr = listener.Addr().(*net.TCPAddr).AddrPort()
		quiet := log.New(io.Discard, "", 0)
		s := &http.Server{Handler: w, TLSConfig: &tls.Config{Certificates: []tls.Certificate{cert}}, ErrorLog: quiet}
		go func() { _ = s.ServeTLS(listener, "", "") }()
	default:
		if t, err = newTransport(kind, cert, counts); err != nil {
			return err
		}
		cfg.Transports = []engine.Transport{t}
		addr = t.addr()
	}
	srv, err := newServer(cfg)
	if err != nil {
		return err
	}
	ended := make(chan error, 1)
	go func() { ended <- srv.Run(ctx) }()
	select {
	case <-srv.Ready():
	case err := <-ended:
		return err
	}
	if kind == "udp" {
		addr = srv.Addr()
	}
	players, err := reserve(ctx, srv, sessions/2)
	if err != nil {
		return err
	}
	out := json.NewEncoder(os.Stdout)
	if err := out.Encode(match{Addr: addr, Players: players}); err != nil {
		return err
	}
	players = nil
	for in := bufio.NewScanner(os.Stdin); in.Scan(); {
		time.Sleep(5 * time.Millisecond) // Workers publish their counters once a millisecond.
		f := read(srv, t, counts)
		if in.Text() == "memory" {
			f.memory()
		}
		if err := out.Encode(f); err != nil {
			return err
		}
	}
	return nil
}

func newServer(cfg engine.Config) (*engine.Server, error) {
	id, err := engine.NewIdentity()
	if err != nil {
		return nil, err
	}
	return engine.New(cfg, id)
}

// reserve reserves pairs of a host and a joiner.
func reserve(ctx context.Context, srv *engine.Server, pairs int) (all []player, err error) {
	var signer proto.Signer
	tenant := alloc.Tenant{Project: "webtransport", Environment: "prototype"}
	bind := func(r alloc.Reservation) []byte {
		return signer.Append(nil, proto.Bind{Nonce: 1, ConnectionData: r.ConnectionData[:]}, &r.Key)
	}
	for range pairs {
		h, err := srv.ReserveHost(ctx, alloc.HostRequest{Tenant: tenant, MaxConnections: 1})
		if err != nil {
			return nil, err
		}
		j, err := srv.ReserveJoiner(ctx, alloc.JoinerRequest{Tenant: tenant, Host: h.ID})
		if err != nil {
			return nil, err
		}
		all = append(all, player{ID: h.ID, Peer: j.ID, Bind: bind(h)}, player{
			ID: j.ID, Peer: h.ID, Bind: bind(j),
			Connect: proto.ConnectRequest{ID: j.ID, ConnectionData: j.HostConnectionData[:]}.Append(nil),
		})
	}
	return all, nil
}

func read(srv *engine.Server, t *transport, c *wireCounts) (f figures) {
	f.CPU = processorTime()
	f.Relayed = srv.Stats().Outcomes["relayed"]
	if t != nil {
		n := &t.counts
		f.Received, f.Busy, f.Oldest = n.received.Load(), n.busy.Load(), n.oldest.Load()
		f.Handed, f.Refused, f.Longest = n.handed.Load(), n.refused.Load(), n.longestNs.Load()
		if t.feed != nil {
			f.Feed = t.feed.full.Load()
		}
	}
	if c != nil {
		f.Frames, f.Queue, f.Packets = c.frames.Load(), c.queue.Load(), c.packets.Load()
		f.In, f.Out = c.in.Load(), c.out.Load()
	}
	return f
}

// certificate returns a certificate that signs itself, as serverCertificateHashes take it: P-256,
// valid for less than 14 days.
func certificate() (cert tls.Certificate, err error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return cert, err
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), DNSNames: []string{"localhost"}, IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(13 * 24 * time.Hour),
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		return cert, err
	}
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}, nil
}
