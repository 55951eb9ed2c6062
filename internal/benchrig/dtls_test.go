package benchrig

import (
	"bytes"
	"context"
	"net"
	"net/netip"
	"testing"
	"time"

	"github.com/pion/dtls/v3"
)

// echo serves one client of pion's server at a time and sends back its datagrams.
func echo(t *testing.T, opts ...dtls.ServerOption) netip.AddrPort {
	t.Helper()
	l, err := dtls.ListenWithOptions("udp4", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1)}, opts...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer c.Close()
				buf := make([]byte, 2048)
				for {
					n, err := c.Read(buf)
					if err != nil {
						return
					}
					_, _ = c.Write(buf[:n])
				}
			}()
		}
	}()
	return l.Addr().(*net.UDPAddr).AddrPort()
}

// handshake connects an endpoint and waits. Other endpoints' datagrams go to others.
func handshake(ctx context.Context, r *Rig, ep int, server Server, others Handler) error {
	done, err := r.Dialer.Connect(ctx, ep, server)
	if done || err != nil {
		return err
	}
	return r.Await(ctx, func() bool { return done }, func(time.Time) error {
		r.Dialer.Advance(func(_ int, failed error) { done, err = true, failed })
		return err
	}, others)
}

// TestHandshake: after the handshake, pion's server understands what is sealed
// here, and we what it says; with a wrong key there is no session.
func TestHandshake(t *testing.T) {
	key, id := bytes.Repeat([]byte{7}, 64), []byte("0123456789abcdef")
	server := echo(t, dtls.WithPSK(func([]byte) ([]byte, error) { return key, nil }),
		dtls.WithCipherSuites(dtls.TLS_PSK_WITH_AES_128_GCM_SHA256))
	p := Plan{Matches: 1, Players: 1, Payload: 24, Stride: 2, Sockets: 1, Batch: 16, Transport: TransportDTLS}
	if err := p.Place(DefaultSources(FamilyIPv4)); err != nil {
		t.Fatal(err)
	}
	r, err := NewRig(p)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	ignore := func(int, netip.AddrPort, []byte) {}
	if err := handshake(t.Context(), r, 0, Server{Addr: server, DTLS: PSK(id, key)}, ignore); err != nil {
		t.Fatal(err)
	}
	for _, size := range []int{1, 150, 1200} {
		msg, got := bytes.Repeat([]byte{byte(size)}, size), []byte(nil)
		if err := r.SendTo(0, server, msg); err != nil {
			t.Error(err)
		}
		limited, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		err := r.Await(limited, func() bool { return got != nil }, func(time.Time) error { return nil },
			func(_ int, _ netip.AddrPort, pkt []byte) { got = bytes.Clone(pkt) })
		cancel()
		if err != nil || !bytes.Equal(got, msg) {
			t.Errorf("%d bytes came back as %d: %v", size, len(got), err)
		}
	}
	limited, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	if err := handshake(limited, r, 1, Server{Addr: server, DTLS: PSK(id, id)}, ignore); err == nil || r.Endpoints[1].Cipher != nil {
		t.Errorf("a wrong key made a session: %v", err)
	}
}
