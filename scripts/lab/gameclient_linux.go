package lab

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/binary"
	"fmt"
	"maps"
	"net"
	"net/http"
	"net/netip"
	"sync"
	"time"

	ws "github.com/coder/websocket"
	"github.com/ferryrelay/ferry/alloc/api"
	"github.com/ferryrelay/ferry/internal/test/wiretest"
	"github.com/ferryrelay/ferry/proto"
	pion "github.com/pion/dtls/v3"
)

// Intervals of a [GameClient].
const (
	// gameClientPing is the time between PINGs, as in Netcode for GameObjects.
	gameClientPing = 500 * time.Millisecond
	// gameClientRetry is the time between BINDs and between CONNECT_REQUESTs.
	gameClientRetry = time.Second
	// gameClientSilenceLimit is how long the relay may be silent before the client
	// reconnects, as Unity Transport does before it starts a new DTLS session.
	gameClientSilenceLimit = 2 * time.Second
	// silentPeriods is after how many silent PING periods it binds again.
	silentPeriods = 3
)

// GameClientConfig configures a GameClient.
type GameClientConfig struct {
	Transport string // "udp", "dtls", "ws" or "wss"
	Namespace Namespace
	Local     netip.Addr // the client's own address
	Relay     netip.AddrPort
	Player    api.Allocation
	Peers     []proto.AllocationID // the host of the player, or the players of the host
	Rate      int                  // datagrams per second to each peer
	Sizes     []int                // of their contents, in turn, 16 bytes at least; nil: 64
	// KeepsConnection makes the client keep its first connection, as Unity's
	// client before 2.7 does over DTLS: after three silent PING periods it
	// sends BIND.
	KeepsConnection bool
}

// GameClient is one player on a connection of its own, over UDP, DTLS or
// WebSocket. When the relay was silent for 2 s, it reconnects: over DTLS by a
// new handshake from the same port, over WebSocket by a new connection.
// (Unity's client keeps the old DTLS session during the new handshake, and ends
// the game when its WebSocket breaks.) It then sends PING, and answers ERROR 3
// with a BIND with the next nonce. Its methods may be called by any goroutine
// while Run runs.
type GameClient struct {
	cfg GameClientConfig

	mu           sync.Mutex // guards what follows
	localAddr    netip.AddrPort
	state        gameClientState
	counts       GameClientCounts
	in           map[proto.AllocationID]*flow // by peer
	sequence     uint64                       // of its datagrams to each peer
	tally        map[Stream]Tally             // since the last call of Mark
	paused       bool
	asleep       bool      // it neither sends nor reads
	moved        bool      // its address has changed since its last connection
	leaves       bool      // it sends CLOSE
	mark         uint64    // number of calls of Mark
	firstArrival time.Time // when the first datagram with this mark arrived
	captured     [][]byte  // the first datagrams sent over DTLS
}

// gameClientState is the protocol state of a client.
type gameClientState struct {
	nonce  uint16
	bound  bool
	linked bool // it may send to its peer
	binds  int  // BINDs sent since it was last bound
}

// PeersOf returns the ids of allocations, for GameClientConfig.Peers.
func PeersOf(all ...api.Allocation) (ids []proto.AllocationID) {
	for _, a := range all {
		ids = append(ids, proto.AllocationID(a.AllocationIDBytes))
	}
	return ids
}

// GameClientCounts are the counters of a client.
type GameClientCounts struct {
	Sent, Received, Duplicates uint64
	Connections                int // connections made
	Fatal                      int // ERRORs with code 1 or 4
}

// Stream is the game datagrams of one size to or from a peer.
type Stream struct {
	Peer proto.AllocationID
	Size int
}

// Tally is how many datagrams of a Stream were sent and received.
type Tally struct{ Sent, Received int }

// NewGameClient returns a client. Run opens its connection.
func NewGameClient(cfg GameClientConfig) *GameClient {
	if cfg.Sizes == nil {
		cfg.Sizes = []int{64}
	}
	v := &GameClient{cfg: cfg, in: make(map[proto.AllocationID]*flow), tally: make(map[Stream]Tally)}
	for _, peer := range cfg.Peers {
		v.in[peer] = new(flow)
	}
	return v
}

func (v *GameClient) host() bool { return len(v.cfg.Player.HostConnectionData) == 0 }

func (v *GameClient) id() proto.AllocationID {
	return proto.AllocationID(v.cfg.Player.AllocationIDBytes)
}

// Run plays until ctx is done.
func (v *GameClient) Run(ctx context.Context) {
	for ctx.Err() == nil {
		line, err := v.dial(ctx)
		if err != nil {
			pause(ctx, gameClientRetry/4)
			continue
		}
		v.mu.Lock()
		v.counts.Connections++
		v.moved = false
		if v.cfg.Transport == "ws" || v.cfg.Transport == "wss" {
			v.state.bound = false // A binding does not outlive its WebSocket.
		}
		v.mu.Unlock()
		v.runConnection(ctx, line)
		line.close()
	}
}

func pause(ctx context.Context, d time.Duration) {
	select {
	case <-ctx.Done():
	case <-time.After(d):
	}
}

// runConnection uses a connection until it fails or the relay is silent for too
// long.
func (v *GameClient) runConnection(ctx context.Context, l clientConn) {
	came := make(chan []byte, 256)
	go func() {
		defer close(came)
		for {
			m, err := l.receive()
			if err != nil {
				return
			}
			for v.isAsleep() {
				time.Sleep(sleepPoll)
			}
			came <- m
		}
	}()
	defer func() {
		l.close()
		for range came {
		}
	}()
	tick := time.NewTicker(v.interval())
	defer tick.Stop()
	var sent, asked time.Time
	received := time.Now()
	for {
		select {
		case <-ctx.Done():
			return
		case m, ok := <-came:
			if !ok {
				return
			}
			received = time.Now()
			if again := v.handle(m); again {
				asked = time.Time{}
			}
		case now := <-tick.C:
			if v.isAsleep() {
				continue
			}
			if v.hasMoved() {
				return
			}
			if v.hasLeft() {
				_ = l.send(proto.Close{ID: v.id()}.Append(nil))
				<-ctx.Done()
				return
			}
			silence := now.Sub(received)
			if silence > gameClientSilenceLimit && !v.cfg.KeepsConnection {
				return
			}
			if silence > silentPeriods*gameClientPing && v.cfg.KeepsConnection {
				v.unbind()
				received, asked = now, time.Time{}
			}
			if now.Sub(asked) >= gameClientRetry {
				asked = now
				v.sendRequest(l)
			}
			if now.Sub(sent) >= gameClientPing {
				sent = now
				_ = l.send(proto.Ping{ID: v.id(), Number: 1}.Append(nil))
			}
			v.sendGameData(l)
			tick.Reset(v.interval())
		}
	}
}

// sleepPoll is how often a client that sleeps looks whether it is awake.
const sleepPoll = 20 * time.Millisecond

func (v *GameClient) isAsleep() bool {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.asleep
}

func (v *GameClient) hasMoved() bool {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.moved
}

func (v *GameClient) hasLeft() bool {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.leaves
}

func (v *GameClient) interval() time.Duration {
	v.mu.Lock()
	defer v.mu.Unlock()
	return time.Second / time.Duration(v.cfg.Rate)
}

// Sleep stops or resumes the client, as a machine that is asleep.
func (v *GameClient) Sleep(on bool) {
	v.mu.Lock()
	v.asleep = on
	v.mu.Unlock()
}

// Move gives the client another address, and the relay's in its family. A port of zero
// means any.
func (v *GameClient) Move(local, relay netip.AddrPort) {
	v.mu.Lock()
	v.cfg.Local, v.cfg.Relay, v.localAddr, v.moved = local.Addr(), relay, local, true
	v.mu.Unlock()
}

// Play changes the rate and the sizes of its datagrams.
func (v *GameClient) Play(rate int, sizes ...int) {
	v.mu.Lock()
	v.cfg.Rate, v.cfg.Sizes = rate, sizes
	v.mu.Unlock()
}

// Meet adds a peer.
func (v *GameClient) Meet(peer proto.AllocationID) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.cfg.Peers = append(v.cfg.Peers, peer)
	v.in[peer] = new(flow)
}

// Leave makes the client send CLOSE and nothing later.
func (v *GameClient) Leave() {
	v.mu.Lock()
	v.leaves = true
	v.mu.Unlock()
}

// Bound reports whether the relay has accepted its BIND, and whether it has refused it.
func (v *GameClient) Bound() (bound, refused bool) {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.state.bound, v.counts.Fatal > 0
}

// Tally returns what was sent and received since the last call of Mark.
func (v *GameClient) Tally() map[Stream]Tally {
	v.mu.Lock()
	defer v.mu.Unlock()
	return maps.Clone(v.tally)
}

// unbind makes the client bind again, first with its current nonce.
func (v *GameClient) unbind() {
	v.mu.Lock()
	v.state.bound, v.state.binds = false, 0
	v.mu.Unlock()
}

// sendRequest sends BIND or CONNECT_REQUEST if one is needed. Send errors count
// as loss.
func (v *GameClient) sendRequest(l clientConn) {
	v.mu.Lock()
	var m []byte
	switch s := &v.state; {
	case !s.bound:
		if s.binds++; s.binds > 1 || v.counts.Connections > 1 {
			s.nonce++
		}
		var signer proto.Signer
		key := proto.Key(v.cfg.Player.Key)
		m = signer.Append(nil, proto.Bind{Nonce: s.nonce, ConnectionData: v.cfg.Player.ConnectionData}, &key)
	case !v.host() && !s.linked:
		m = proto.ConnectRequest{ID: v.id(), ConnectionData: v.cfg.Player.HostConnectionData}.Append(nil)
	}
	v.mu.Unlock()
	if m != nil {
		_ = l.send(m)
	}
}

// handle processes a message and reports whether the client should call
// sendRequest at once.
func (v *GameClient) handle(m []byte) (again bool) {
	v.mu.Lock()
	defer v.mu.Unlock()
	s := &v.state
	switch kind, _ := proto.ParseType(m); kind {
	case proto.TypeBindReceived:
		s.bound, s.binds = true, 0
		return true
	case proto.TypeAccepted:
		s.linked = true
	case proto.TypeRejected:
		v.counts.Fatal++
	case proto.TypeError:
		e, err := proto.ParseError(m)
		switch {
		case err != nil:
		case e.Code == proto.ErrorMismatch && s.bound:
			s.bound, s.binds = false, 1
			return true
		case e.Code == proto.ErrorNotFound, e.Code == proto.ErrorTimeout:
			v.counts.Fatal++
		}
	case proto.TypeRelay:
		r, err := proto.ParseRelay(m)
		if err != nil || len(r.Payload) < 16 {
			return false
		}
		s.linked = true
		in := v.in[r.From]
		if in == nil {
			return false
		}
		fresh := in.record(binary.BigEndian.Uint64(r.Payload))
		if fresh && binary.BigEndian.Uint64(r.Payload[8:]) == v.mark {
			v.count(r.From, len(r.Payload), Tally{Received: 1})
		}
		if v.firstArrival.IsZero() && binary.BigEndian.Uint64(r.Payload[8:]) >= v.mark {
			v.firstArrival = time.Now()
		}
	}
	return false
}

// count adds to the tally. The caller holds the mutex.
func (v *GameClient) count(peer proto.AllocationID, size int, n Tally) {
	at := Stream{peer, size}
	old := v.tally[at]
	v.tally[at] = Tally{old.Sent + n.Sent, old.Received + n.Received}
}

// sendGameData sends the next game datagram to each peer: its sequence number and the
// number of calls of Mark.
func (v *GameClient) sendGameData(l clientConn) {
	v.mu.Lock()
	if !v.state.bound || !v.state.linked || v.paused {
		v.mu.Unlock()
		return
	}
	content := make([]byte, v.cfg.Sizes[v.sequence%uint64(len(v.cfg.Sizes))])
	binary.BigEndian.PutUint64(content, v.sequence)
	binary.BigEndian.PutUint64(content[8:], v.mark)
	v.sequence++
	var all [][]byte
	for _, peer := range v.cfg.Peers {
		v.counts.Sent++
		v.count(peer, len(content), Tally{Sent: 1})
		all = append(all, proto.Relay{From: v.id(), To: peer, Payload: content}.Append(nil))
	}
	v.mu.Unlock()
	for _, m := range all {
		_ = l.send(m)
	}
}

// Counts returns the counters.
func (v *GameClient) Counts() GameClientCounts {
	v.mu.Lock()
	defer v.mu.Unlock()
	c := v.counts
	for _, in := range v.in {
		c.Received += in.unique
		c.Duplicates += in.duplicates
	}
	return c
}

// Pause stops or resumes the game.
func (v *GameClient) Pause(on bool) {
	v.mu.Lock()
	v.paused = on
	v.mu.Unlock()
}

// Mark resets FirstArrival and Tally. Both players of a match must be marked.
func (v *GameClient) Mark() {
	v.mu.Lock()
	v.mark, v.firstArrival = v.mark+1, time.Time{}
	clear(v.tally)
	v.mu.Unlock()
}

// FirstArrival returns when the first datagram arrived that was sent after both
// players were marked; zero if none has.
func (v *GameClient) FirstArrival() time.Time {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.firstArrival
}

// LocalAddr returns the address of the client's UDP socket; zero before the
// first dial.
func (v *GameClient) LocalAddr() netip.AddrPort {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.localAddr
}

// Captured returns the first datagrams that the client sent over DTLS, as an
// on-path attacker could have captured them.
func (v *GameClient) Captured() [][]byte {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.captured
}

// String returns a one-line summary.
func (v *GameClient) String() string {
	c := v.Counts()
	v.mu.Lock()
	s := v.state
	v.mu.Unlock()
	return fmt.Sprintf("%s at %v: sent %d, received %d, connections %d, fatal %d, bound %v, linked %v", v.cfg.Transport, v.LocalAddr(), c.Sent,
		c.Received, c.Connections, c.Fatal, s.bound, s.linked)
}

// clientConn is a connection to the relay that carries messages.
type clientConn struct {
	send    func(m []byte) error
	receive func() ([]byte, error)
	close   func() // abrupt; may be called twice
}

// socket opens a UDP socket, at the client's previous port if it had one.
func (v *GameClient) socket() (conn *net.UDPConn, err error) {
	v.mu.Lock()
	at := v.localAddr
	if !at.IsValid() {
		at = netip.AddrPortFrom(v.cfg.Local, 0)
	}
	v.mu.Unlock()
	network := "udp4"
	if at.Addr().Is6() {
		network = "udp6"
	}
	err = v.cfg.Namespace.Do(func() (err error) {
		conn, err = net.ListenUDP(network, net.UDPAddrFromAddrPort(at))
		return err
	})
	if err == nil {
		v.setLocalAddr(conn.LocalAddr().(*net.UDPAddr).AddrPort())
	}
	return conn, err
}

func (v *GameClient) setLocalAddr(at netip.AddrPort) {
	v.mu.Lock()
	v.localAddr = at
	v.mu.Unlock()
}

const (
	// dialTimeout bounds a DTLS or WebSocket handshake.
	dialTimeout = 20 * time.Second
	// flightInterval is Unity Transport's retransmission time of a DTLS handshake
	// message.
	flightInterval = time.Second
	// maxCaptured is how many datagrams Captured returns at most.
	maxCaptured = 24
)

// dial connects over the client's transport.
func (v *GameClient) dial(ctx context.Context) (clientConn, error) {
	ctx, cancel := context.WithTimeout(ctx, dialTimeout)
	defer cancel()
	switch v.cfg.Transport {
	case "dtls":
		return v.dialDTLS(ctx)
	case "ws", "wss":
		return v.dialWebSocket(ctx)
	}
	return v.dialUDP()
}

// relay returns the relay's address.
func (v *GameClient) relay() netip.AddrPort {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.cfg.Relay
}

func (v *GameClient) dialUDP() (clientConn, error) {
	conn, err := v.socket()
	if err != nil {
		return clientConn{}, err
	}
	relay := v.relay()
	return clientConn{
		send: func(m []byte) error { _, err := conn.WriteToUDPAddrPort(m, relay); return err },
		receive: func() ([]byte, error) {
			buf := make([]byte, 2048)
			for {
				n, from, err := conn.ReadFromUDPAddrPort(buf)
				// As a NAT or a firewall of a player, it takes datagrams of the relay's address only.
				if err != nil || netip.AddrPortFrom(from.Addr().Unmap(), from.Port()) == relay {
					return buf[:n], err
				}
			}
		},
		close: func() { conn.Close() },
	}, nil
}

// capturingConn records the first datagrams that a client sends.
type capturingConn struct {
	net.PacketConn
	v *GameClient
}

func (w *capturingConn) WriteTo(b []byte, to net.Addr) (int, error) {
	w.v.mu.Lock()
	if len(w.v.captured) < maxCaptured {
		w.v.captured = append(w.v.captured, bytes.Clone(b))
	}
	w.v.mu.Unlock()
	return w.PacketConn.WriteTo(b, to)
}

func (v *GameClient) dialDTLS(ctx context.Context) (clientConn, error) {
	socket, err := v.socket()
	if err != nil {
		return clientConn{}, err
	}
	conn, err := wiretest.DTLSClient(&capturingConn{socket, v}, net.UDPAddrFromAddrPort(v.relay()), v.cfg.Player.AllocationIDBytes,
		v.cfg.Player.Key, pion.WithFlightInterval(flightInterval))
	if err == nil {
		err = conn.HandshakeContext(ctx)
	}
	if err != nil {
		socket.Close()
		return clientConn{}, err
	}
	return clientConn{
		send: func(m []byte) error { _, err := conn.Write(m); return err },
		receive: func() ([]byte, error) {
			buf := make([]byte, 2048)
			n, err := conn.Read(buf)
			return buf[:n], err
		},
		close: func() { socket.Close(); conn.Close() }, // The socket first, so that no close_notify is sent.
	}, nil
}

func (v *GameClient) dialWebSocket(ctx context.Context) (clientConn, error) {
	v.mu.Lock()
	local, url := v.cfg.Local, v.cfg.Transport+"://"+v.cfg.Relay.String()+"/"
	v.mu.Unlock()
	// The laboratory's certificate is self-signed.
	transport := &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}, DialContext: func(ctx context.Context, network,
		addr string) (conn net.Conn, err error) {
		err = v.cfg.Namespace.Do(func() error {
			d := net.Dialer{LocalAddr: &net.TCPAddr{IP: local.AsSlice()}}
			conn, err = d.DialContext(ctx, network, addr)
			return err
		})
		return conn, err
	}}
	conn, _, err := ws.Dial(ctx, url, &ws.DialOptions{HTTPClient: &http.Client{Transport: transport}})
	if err != nil {
		return clientConn{}, err
	}
	return clientConn{
		send: func(m []byte) error {
			ctx, cancel := context.WithTimeout(context.Background(), gameClientSilenceLimit)
			defer cancel()
			return conn.Write(ctx, ws.MessageBinary, m)
		},
		receive: func() ([]byte, error) {
			_, m, err := conn.Read(context.Background())
			return m, err
		},
		close: func() { _ = conn.CloseNow() },
	}, nil
}
