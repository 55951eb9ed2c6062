package lab

import (
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"sync"
	"time"

	ws "github.com/coder/websocket"
	"github.com/ferryrelay/ferry/alloc/api"
	"github.com/ferryrelay/ferry/proto"
	pion "github.com/pion/dtls/v3"
)

// Times of a [GameClient].
const (
	// gameClientPing is the time between PINGs, as Netcode for GameObjects has it.
	gameClientPing = 500 * time.Millisecond
	// gameClientRetry is the time between BINDs and between CONNECT_REQUESTs.
	gameClientRetry = time.Second
	// gameClientSilence is how long the relay may be silent before a client looks
	// for it anew: UTP's limit before it makes a new session of DTLS.
	gameClientSilenceLimit = 2 * time.Second
)

// GameClientConfig configures a GameClient.
type GameClientConfig struct {
	Transport string // "udp", "dtls" or "ws"
	Namespace Namespace
	Local     netip.Addr // its own address
	Relay     netip.AddrPort
	Player    api.Allocation
	Peer      proto.AllocationID // whom it plays with
	Rate      int                // datagrams a second
	// Stays keeps the client on its first connection for good, as Unity's client
	// before 2.7 does over DTLS: after three silent PING periods it sends BIND.
	KeepsConnection bool
	UTP1            bool // its nonce stays, and it only logs ERROR 3, as Unity Transport 1.x does
}

// GameClient is one player on a connection of its own, by any way in. Like the
// project's own client, and unlike Unity's in two points, it makes a new
// connection when the relay was silent for 2 s: over DTLS a new handshake from the
// same port, which Unity's client begins beside the old session; over WebSocket a
// new one, where Unity's client gives the game up. It then says PING, and BIND
// with the next nonce when that earns ERROR 3. Its methods may be called by any
// goroutine while Run runs.
type GameClient struct {
	cfg GameClientConfig

	mu             sync.Mutex // guards what follows
	localAddr      netip.AddrPort
	state          gameClientState
	counts         GameClientCounts
	in             flow
	paused         bool
	mark           uint64    // how often it was marked
	firstArrival   time.Time // when something arrived first from a peer that was marked as often
	connectionLost time.Time // when the other end broke the last connection
	captured       [][]byte  // the first datagrams that it sent over DTLS
}

// gameClientState is the state of a client's game.
type gameClientState struct {
	nonce  uint16
	bound  bool
	linked bool // it may send to its peer
	binds  int  // since it was bound last
}

// GameClientCounts counts the events of a client.
type GameClientCounts struct {
	Sent, Received, Duplicates uint64
	Connections                int // that it made
	Fatal                      int // ERROR 1 and 4
}

// NewGameClient returns a client; nothing is opened before Run.
func NewGameClient(cfg GameClientConfig) *GameClient { return &GameClient{cfg: cfg} }

func (v *GameClient) host() bool { return len(v.cfg.Player.HostConnectionData) == 0 }

func (v *GameClient) id() proto.AllocationID {
	return proto.AllocationID(v.cfg.Player.AllocationIDBytes)
}

// Run plays until ctx ends.
func (v *GameClient) Run(ctx context.Context) {
	for ctx.Err() == nil {
		line, err := v.dial(ctx)
		if err != nil {
			pause(ctx, gameClientRetry/4)
			continue
		}
		v.mu.Lock()
		v.counts.Connections++
		if v.cfg.Transport == "ws" {
			v.state.bound = false // The relay knows a WebSocket by itself alone.
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

// live uses a connection until it fails or the relay is silent.
func (v *GameClient) runConnection(ctx context.Context, l clientConn) {
	came := make(chan []byte, 256)
	go func() {
		defer close(came)
		for {
			m, err := l.receive()
			if err != nil {
				return
			}
			came <- m
		}
	}()
	defer func() {
		l.close()
		for range came {
		}
	}()
	tick := time.NewTicker(time.Second / time.Duration(v.cfg.Rate))
	defer tick.Stop()
	var sent, asked time.Time
	received := time.Now()
	for {
		select {
		case <-ctx.Done():
			return
		case m, ok := <-came:
			if !ok {
				v.mu.Lock()
				v.connectionLost = time.Now()
				v.mu.Unlock()
				return
			}
			received = time.Now()
			if again := v.handle(m); again {
				asked = time.Time{}
			}
		case now := <-tick.C:
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
		}
	}
}

// unbind makes the client bind again, first with the nonce that it has.
func (v *GameClient) unbind() {
	v.mu.Lock()
	v.state.bound, v.state.binds = false, 0
	v.mu.Unlock()
}

// ask says BIND or CONNECT_REQUEST where it is needed. What cannot be sent is
// lost, as on any network.
func (v *GameClient) sendRequest(l clientConn) {
	v.mu.Lock()
	var m []byte
	switch s := &v.state; {
	case !s.bound:
		if s.binds++; (s.binds > 1 || v.counts.Connections > 1) && !v.cfg.UTP1 {
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

// take handles a message, and reports whether the client has to ask at once.
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
	case proto.TypeError:
		e, err := proto.ParseError(m)
		switch {
		case err != nil:
		case e.Code == proto.ErrorMismatch && s.bound && !v.cfg.UTP1:
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
		v.in.record(binary.BigEndian.Uint64(r.Payload))
		if v.firstArrival.IsZero() && binary.BigEndian.Uint64(r.Payload[8:]) >= v.mark {
			v.firstArrival = time.Now()
		}
	}
	return false
}

// play sends the next datagram of the game: its number, and how often the
// client was marked.
func (v *GameClient) sendGameData(l clientConn) {
	v.mu.Lock()
	if !v.state.bound || !v.state.linked || v.paused {
		v.mu.Unlock()
		return
	}
	content := binary.BigEndian.AppendUint64(nil, v.counts.Sent)
	content = binary.BigEndian.AppendUint64(content, v.mark)
	content = append(content, make([]byte, 48)...)
	v.counts.Sent++
	m := proto.Relay{From: v.id(), To: v.cfg.Peer, Payload: content}.Append(nil)
	v.mu.Unlock()
	_ = l.send(m)
}

// Counts returns what was counted so far.
func (v *GameClient) Counts() GameClientCounts {
	v.mu.Lock()
	defer v.mu.Unlock()
	c := v.counts
	c.Received, c.Duplicates = v.in.unique, v.in.duplicates
	return c
}

// Pause stops the game or lets it go on.
func (v *GameClient) Pause(on bool) {
	v.mu.Lock()
	v.paused = on
	v.mu.Unlock()
}

// Mark begins anew for Since. Both players of a match are marked.
func (v *GameClient) Mark() {
	v.mu.Lock()
	v.mark, v.firstArrival = v.mark+1, time.Time{}
	v.mu.Unlock()
}

// Since returns when something arrived first that was sent since both were
// marked; zero: nothing has.
func (v *GameClient) FirstArrival() time.Time {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.firstArrival
}

// Cut returns when the other end last broke a connection; zero: it has not.
func (v *GameClient) ConnectionLost() time.Time {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.connectionLost
}

// At is where the relay sees the client; zero before it was there.
func (v *GameClient) LocalAddr() netip.AddrPort {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.localAddr
}

// Wire returns the first datagrams that the client sent over DTLS, as an attacker
// on the path may have seen them.
func (v *GameClient) Captured() [][]byte {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.captured
}

// String is one line for people.
func (v *GameClient) String() string {
	c := v.Counts()
	return fmt.Sprintf("%s at %v: sent %d, received %d, connections %d, fatal %d", v.cfg.Transport, v.LocalAddr(), c.Sent, c.Received, c.Connections, c.Fatal)
}

// line is a connection: one message in, one out.
type clientConn struct {
	send    func(m []byte) error
	receive func() ([]byte, error)
	close   func() // without a word; may be called twice
}

// socket opens a UDP socket of the client's, at the port that it had before.
func (v *GameClient) socket() (conn *net.UDPConn, err error) {
	v.mu.Lock()
	at := v.localAddr
	v.mu.Unlock()
	if !at.IsValid() {
		at = netip.AddrPortFrom(v.cfg.Local, 0)
	}
	err = v.cfg.Namespace.Do(func() (err error) {
		conn, err = net.ListenUDP("udp4", net.UDPAddrFromAddrPort(at))
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
	// dialWithin is how long a handshake may take before it is begun anew.
	dialTimeout = 20 * time.Second
	// firstFlight is UTP's time before a message of a handshake is repeated.
	flightInterval = time.Second
	// keptWire is how many datagrams of a client are kept for attackers.
	maxCaptured = 24
)

// dial makes a connection by the client's way.
func (v *GameClient) dial(ctx context.Context) (clientConn, error) {
	ctx, cancel := context.WithTimeout(ctx, dialTimeout)
	defer cancel()
	switch v.cfg.Transport {
	case "dtls":
		return v.dialDTLS(ctx)
	case "ws":
		return v.dialWebSocket(ctx)
	}
	return v.dialUDP()
}

func (v *GameClient) dialUDP() (clientConn, error) {
	conn, err := v.socket()
	if err != nil {
		return clientConn{}, err
	}
	return clientConn{
		send: func(m []byte) error { _, err := conn.WriteToUDPAddrPort(m, v.cfg.Relay); return err },
		receive: func() ([]byte, error) {
			buf := make([]byte, 2048)
			n, _, err := conn.ReadFromUDPAddrPort(buf)
			return buf[:n], err
		},
		close: func() { conn.Close() },
	}, nil
}

// watched keeps what a client sends.
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
	conn, err := pion.ClientWithOptions(&capturingConn{socket, v}, net.UDPAddrFromAddrPort(v.cfg.Relay),
		pion.WithPSK(func([]byte) ([]byte, error) { return v.cfg.Player.Key, nil }),
		pion.WithPSKIdentityHint(v.cfg.Player.AllocationIDBytes),
		pion.WithCipherSuites(pion.TLS_PSK_WITH_AES_128_GCM_SHA256), pion.WithFlightInterval(flightInterval))
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
		close: func() { socket.Close(); conn.Close() }, // No close_notify gets out.
	}, nil
}

func (v *GameClient) dialWebSocket(ctx context.Context) (clientConn, error) {
	transport := &http.Transport{DialContext: func(ctx context.Context, network, addr string) (conn net.Conn, err error) {
		err = v.cfg.Namespace.Do(func() error {
			d := net.Dialer{LocalAddr: &net.TCPAddr{IP: v.cfg.Local.AsSlice()}}
			conn, err = d.DialContext(ctx, network, addr)
			return err
		})
		return conn, err
	}}
	conn, _, err := ws.Dial(ctx, "ws://"+v.cfg.Relay.String()+"/", &ws.DialOptions{HTTPClient: &http.Client{Transport: transport}})
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
