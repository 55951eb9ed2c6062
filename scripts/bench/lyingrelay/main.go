// Command lyingrelay is a relay for ferry bench --dialect swap that does known things to
// datagrams, by which a report can be checked: it loses, changes or cuts off a share of them,
// stops for a time, or has a receive buffer that is too small.
package main

import (
	"flag"
	"fmt"
	"log"
	"net"
	"net/netip"
	"time"
)

func main() {
	var r lyingRelay
	addr := flag.String("addr", "127.0.0.1:7790", "listen `address`")
	flag.IntVar(&r.lose, "lose", 0, "lose so many `percent`")
	flag.IntVar(&r.change, "change", 0, "change the last byte of so many `percent` of the others")
	flag.IntVar(&r.cut, "cut", 0, "cut off the last 10 bytes of so many `percent` of the others")
	flag.DurationVar(&r.stopAt, "stop-at", 0, "stop so long after the first datagram, or the first one after a silent second")
	flag.DurationVar(&r.stopFor, "stop-for", 0, "`time` for which it is stopped")
	flag.DurationVar(&r.sleep, "sleep", 0, "sleep before every 50th datagram")
	buffer := flag.Int("buffer", 4<<20, "receive buffer in `bytes`")
	flag.Parse()
	if err := r.run(*addr, *buffer); err != nil {
		log.Fatal(err)
	}
}

type lyingRelay struct {
	lose, change, cut      int // percent
	stopAt, stopFor, sleep time.Duration

	number      int
	first, last time.Time
}

func (r *lyingRelay) run(addr string, buffer int) error {
	listen, err := netip.ParseAddrPort(addr)
	if err != nil {
		return err
	}
	conn, err := net.ListenUDP("udp4", net.UDPAddrFromAddrPort(listen))
	if err != nil {
		return err
	}
	if err := conn.SetReadBuffer(buffer); err != nil {
		return err
	}
	fmt.Println(conn.LocalAddr())
	for buf := make([]byte, 2048); ; {
		n, from, err := conn.ReadFromUDPAddrPort(buf)
		if err != nil {
			return err
		}
		pkt := r.handle(buf[:n], time.Now())
		if len(pkt) == 0 {
			continue
		}
		// The two endpoints of a pair differ in the lowest bit of their address.
		to := from.Addr().As4()
		to[3] ^= 1
		if _, err := conn.WriteToUDPAddrPort(pkt, netip.AddrPortFrom(netip.AddrFrom4(to), from.Port())); err != nil {
			return err
		}
	}
}

// handle returns what is delivered of a datagram, nil for nothing. The first ones of a hundred
// are delivered as they are, since ferry bench asks for the relay before it begins.
func (r *lyingRelay) handle(pkt []byte, now time.Time) []byte {
	if now.Sub(r.last) > time.Second {
		r.first = now
	}
	r.last = now
	r.number++
	if r.sleep > 0 && r.number%50 == 0 {
		time.Sleep(r.sleep)
	}
	running := now.Sub(r.first)
	switch place := 99 - r.number%100; {
	case place < r.lose, running >= r.stopAt && running < r.stopAt+r.stopFor:
		return nil
	case place < r.lose+r.change:
		pkt[len(pkt)-1] ^= 1
	case place < r.lose+r.change+r.cut:
		return pkt[:max(len(pkt)-10, 0)]
	}
	return pkt
}
