package config

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strconv"
)

// Addr is an address to listen on. Its host is an IP address, "localhost" for
// 127.0.0.1, or nothing for every IPv4 address. Other names are refused: what a
// server listens on should not depend on a name server.
type Addr struct{ netip.AddrPort }

var errAddr = errors.New("is not HOST:PORT with an IP address, such as 0.0.0.0:7777 or [::]:7777")

// UnmarshalText reads HOST:PORT.
func (a *Addr) UnmarshalText(text []byte) error {
	host, number, err := net.SplitHostPort(string(text))
	if err != nil {
		return fmt.Errorf("%q %w", text, errAddr)
	}
	switch host {
	case "":
		host = "0.0.0.0"
	case "localhost":
		host = "127.0.0.1"
	}
	ip, err := netip.ParseAddr(host)
	if err != nil || ip.Zone() != "" {
		return fmt.Errorf("%q %w", text, errAddr)
	}
	p, err := strconv.ParseUint(number, 10, 16)
	if err != nil {
		return fmt.Errorf("%q: port %q is not a number from 0 to 65535", text, number)
	}
	a.AddrPort = netip.AddrPortFrom(ip.Unmap(), uint16(p))
	return nil
}

// Host is an address that players are told: an IP address, and a port where it
// is another one than the relay's own.
type Host struct {
	IP   netip.Addr
	Port uint16 // 0: the port that the relay listens on
}

var errHost = errors.New("is not an IP address that players could send to; names are not, since game clients take no names")

// UnmarshalText reads IP or IP:PORT.
func (h *Host) UnmarshalText(text []byte) error {
	ip, err := netip.ParseAddr(string(text))
	var p uint16
	if err != nil {
		var full netip.AddrPort
		if full, err = netip.ParseAddrPort(string(text)); err == nil {
			ip, p = full.Addr(), full.Port()
		}
	}
	if err != nil || ip.IsUnspecified() || ip.IsMulticast() || ip.Zone() != "" {
		return fmt.Errorf("%q %w", text, errHost)
	}
	h.IP, h.Port = ip.Unmap(), p
	return nil
}

// String returns IP or IP:PORT.
func (h Host) String() string {
	if h.Port == 0 {
		return h.IP.String()
	}
	return netip.AddrPortFrom(h.IP, h.Port).String()
}

// Network is a range of addresses: a prefix such as 10.0.0.0/8, or one address.
type Network struct{ netip.Prefix }

var errNetwork = errors.New("is not an IP address or a network such as 10.0.0.0/8")

// UnmarshalText reads IP or IP/BITS.
func (n *Network) UnmarshalText(text []byte) error {
	p, err := netip.ParsePrefix(string(text))
	if err != nil {
		var ip netip.Addr
		if ip, err = netip.ParseAddr(string(text)); err == nil {
			ip = ip.Unmap()
			p = netip.PrefixFrom(ip, ip.BitLen())
		}
	}
	if err != nil || p.Addr().Zone() != "" {
		return fmt.Errorf("%q %w", text, errNetwork)
	}
	n.Prefix = p.Masked()
	return nil
}

// Sibling is the UDP address of another relay.
type Sibling struct{ netip.AddrPort }

var errSibling = errors.New("is not IP:PORT of another relay, such as 203.0.113.8:7777")

// UnmarshalText reads IP:PORT.
func (s *Sibling) UnmarshalText(text []byte) error {
	a, err := netip.ParseAddrPort(string(text))
	if err != nil || a.Port() == 0 || a.Addr().IsUnspecified() || a.Addr().Zone() != "" {
		return fmt.Errorf("%q %w", text, errSibling)
	}
	s.AddrPort = netip.AddrPortFrom(a.Addr().Unmap(), a.Port())
	return nil
}
