package lab

import (
	"bytes"
	"context"
	"net"
	"net/http"
	"time"

	ws "github.com/coder/websocket"
	pion "github.com/pion/dtls/v3"
)

const (
	// dialWithin is how long a handshake may take before it is begun anew.
	dialWithin = 20 * time.Second
	// firstFlight is UTP's time before a message of a handshake is repeated.
	firstFlight = time.Second
	// keptWire is how many datagrams of a client are kept for attackers.
	keptWire = 24
)

// dial makes a connection by the client's way.
func (v *GameClient) dial(ctx context.Context) (line, error) {
	ctx, cancel := context.WithTimeout(ctx, dialWithin)
	defer cancel()
	switch v.cfg.Way {
	case "dtls":
		return v.dialDTLS(ctx)
	case "ws":
		return v.dialWebSocket(ctx)
	}
	return v.dialUDP()
}

func (v *GameClient) dialUDP() (line, error) {
	conn, err := v.socket()
	if err != nil {
		return line{}, err
	}
	return line{
		send: func(m []byte) error { _, err := conn.WriteToUDPAddrPort(m, v.cfg.Relay); return err },
		receive: func() ([]byte, error) {
			buf := make([]byte, 2048)
			n, _, err := conn.ReadFromUDPAddrPort(buf)
			return buf[:n], err
		},
		hangUp: func() { conn.Close() },
	}, nil
}

// watched keeps what a client sends.
type watched struct {
	net.PacketConn
	v *GameClient
}

func (w *watched) WriteTo(b []byte, to net.Addr) (int, error) {
	w.v.mu.Lock()
	if len(w.v.wire) < keptWire {
		w.v.wire = append(w.v.wire, bytes.Clone(b))
	}
	w.v.mu.Unlock()
	return w.PacketConn.WriteTo(b, to)
}

func (v *GameClient) dialDTLS(ctx context.Context) (line, error) {
	socket, err := v.socket()
	if err != nil {
		return line{}, err
	}
	conn, err := pion.ClientWithOptions(&watched{socket, v}, net.UDPAddrFromAddrPort(v.cfg.Relay),
		pion.WithPSK(func([]byte) ([]byte, error) { return v.cfg.Player.Key, nil }),
		pion.WithPSKIdentityHint(v.cfg.Player.AllocationIDBytes),
		pion.WithCipherSuites(pion.TLS_PSK_WITH_AES_128_GCM_SHA256), pion.WithFlightInterval(firstFlight))
	if err == nil {
		err = conn.HandshakeContext(ctx)
	}
	if err != nil {
		socket.Close()
		return line{}, err
	}
	return line{
		send: func(m []byte) error { _, err := conn.Write(m); return err },
		receive: func() ([]byte, error) {
			buf := make([]byte, 2048)
			n, err := conn.Read(buf)
			return buf[:n], err
		},
		hangUp: func() { socket.Close(); conn.Close() }, // No close_notify gets out.
	}, nil
}

func (v *GameClient) dialWebSocket(ctx context.Context) (line, error) {
	transport := &http.Transport{DialContext: func(ctx context.Context, network, addr string) (conn net.Conn, err error) {
		err = v.cfg.From.Do(func() error {
			d := net.Dialer{LocalAddr: &net.TCPAddr{IP: v.cfg.Local.AsSlice()}}
			conn, err = d.DialContext(ctx, network, addr)
			return err
		})
		return conn, err
	}}
	conn, _, err := ws.Dial(ctx, "ws://"+v.cfg.Relay.String()+"/", &ws.DialOptions{HTTPClient: &http.Client{Transport: transport}})
	if err != nil {
		return line{}, err
	}
	return line{
		send: func(m []byte) error {
			ctx, cancel := context.WithTimeout(context.Background(), gameClientSilence)
			defer cancel()
			return conn.Write(ctx, ws.MessageBinary, m)
		},
		receive: func() ([]byte, error) {
			_, m, err := conn.Read(context.Background())
			return m, err
		},
		hangUp: func() { _ = conn.CloseNow() },
	}, nil
}
