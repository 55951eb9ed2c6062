package main

import (
	"context"
	"net"
	"net/netip"
	"sync"
)

// tunnel is the player's side of a transport: a UDP socket on loopback in front of a TCP connection to
// the relay. For the client.Session of a player, the socket's address is that of the relay.
type tunnel struct {
	udp *net.UDPConn
	tcp net.Conn
}

// dial opens a tunnel to the transport at an address. It carries nothing before run, which closes it.
func dial(ctx context.Context, to string) (*tunnel, error) {
	tcp, err := new(net.Dialer).DialContext(ctx, "tcp", to)
	if err != nil {
		return nil, err
	}
	udp, err := net.ListenUDP("udp4", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1)})
	if err != nil {
		_ = tcp.Close()
		return nil, err
	}
	return &tunnel{udp: udp, tcp: tcp}, nil
}

// addr returns the address of the UDP socket.
func (t *tunnel) addr() netip.AddrPort { return t.udp.LocalAddr().(*net.UDPAddr).AddrPort() }

// run carries messages of the session at a local address until ctx or the connection ends, and closes
// the tunnel. A session that calls Roam leaves the tunnel.
func (t *tunnel) run(ctx context.Context, session netip.AddrPort) {
	ctx, cancel := context.WithCancel(ctx)
	queue := make(chan []byte, queueLength)
	var running sync.WaitGroup
	running.Go(func() {
		defer cancel()
		write(ctx, t.tcp, queue)
	})
	running.Go(func() {
		defer cancel()
		receive(t.tcp, func(msg []byte) { _, _ = t.udp.WriteToUDPAddrPort(msg, session) })
	})
	running.Go(func() {
		defer cancel()
		t.readFrom(session, queue)
	})
	<-ctx.Done()
	_ = t.tcp.Close()
	_ = t.udp.Close()
	running.Wait()
}

// readFrom queues the datagrams of a session until the socket is closed. What does not fit into the
// queue is lost, as it is with UDP.
func (t *tunnel) readFrom(session netip.AddrPort, queue chan<- []byte) {
	buf := make([]byte, maxMessage)
	for {
		n, from, err := t.udp.ReadFromUDPAddrPort(buf)
		if err != nil {
			return
		}
		if from != session {
			continue
		}
		select {
		case queue <- frame(buf[:n]):
		default:
		}
	}
}
