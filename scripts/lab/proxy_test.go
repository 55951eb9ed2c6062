//go:build lab && linux

package lab

import (
	"context"
	"net"
	"net/netip"
	"sync"
)

// A proxy forwards datagrams of UDP, with a socket towards the relay for each player.
type proxy struct {
	target   netip.AddrPort
	listener *net.UDPConn // that players send to
	dial     func() (*net.UDPConn, error)
}

// run forwards until ctx is done, closes all sockets and waits for its goroutines.
func (p *proxy) run(ctx context.Context) {
	var tasks sync.WaitGroup
	defer tasks.Wait()
	upstream := map[netip.AddrPort]*net.UDPConn{}
	defer func() {
		for _, conn := range upstream {
			conn.Close()
		}
	}()
	defer context.AfterFunc(ctx, func() { p.listener.Close() })()
	buf := make([]byte, 2048)
	for {
		n, from, err := p.listener.ReadFromUDPAddrPort(buf)
		if ctx.Err() != nil {
			return
		}
		if err != nil {
			continue
		}
		conn := upstream[from]
		if conn == nil {
			if conn, err = p.dial(); err != nil {
				continue
			}
			upstream[from] = conn
			tasks.Go(func() { p.answer(conn, from) })
		}
		// A failed write counts as loss.
		_, _ = conn.WriteToUDPAddrPort(buf[:n], p.target)
	}
}

// answer forwards what the relay sends to a player, until its socket is closed.
func (p *proxy) answer(conn *net.UDPConn, player netip.AddrPort) {
	buf := make([]byte, 2048)
	for {
		n, _, err := conn.ReadFromUDPAddrPort(buf)
		if err != nil {
			return
		}
		_, _ = p.listener.WriteToUDPAddrPort(buf[:n], player)
	}
}
