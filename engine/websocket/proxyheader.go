package websocket

import (
	"bytes"
	"encoding/binary"
	"errors"
	"net/netip"
	"strconv"
	"strings"
)

// The errors of a PROXY header. ErrProxyHeader is the one that a reader of the
// connection gets.
var (
	ErrProxyHeader = errors.New("websocket: the proxy's connection does not begin with a PROXY header")
	errMoreHeader  = errors.New("websocket: the PROXY header goes on")
)

// The layouts are those of HAProxy's proxy-protocol.txt, versions 1 and 2.
const (
	proxyV1Start = "PROXY "
	proxyV1Max   = 107 // bytes, with CRLF
	proxyV2Start = "\r\n\r\n\x00\r\nQUIT\n"
	proxyV2Len   = 16 // bytes before the addresses
	// proxyMax bounds a header with all its extensions. The protocol says that
	// 536 must do; some proxies add a name and a certificate's.
	proxyMax = 2048
)

// parseProxyHeader reads the PROXY header that b begins with. It returns the
// client's address, invalid if the header leaves it to the connection, and the
// size of the header; errMoreHeader if b is only the beginning of one; and else
// ErrProxyHeader.
func parseProxyHeader(b []byte) (client netip.AddrPort, n int, err error) {
	switch {
	case startsLike(b, proxyV2Start):
		return parseProxyV2(b)
	case startsLike(b, proxyV1Start):
		return parseProxyV1(b)
	}
	return netip.AddrPort{}, 0, ErrProxyHeader
}

// startsLike reports whether b begins with start, as far as it goes.
func startsLike(b []byte, start string) bool {
	n := min(len(b), len(start))
	return string(b[:n]) == start[:n]
}

func parseProxyV1(b []byte) (client netip.AddrPort, n int, err error) {
	end := bytes.Index(b[:min(len(b), proxyV1Max)], []byte("\r\n"))
	if end < 0 {
		if len(b) >= proxyV1Max {
			return client, 0, ErrProxyHeader
		}
		return client, 0, errMoreHeader
	}
	if end < len(proxyV1Start) {
		return client, 0, ErrProxyHeader
	}
	fields := strings.Split(string(b[len(proxyV1Start):end]), " ")
	if fields[0] == "UNKNOWN" {
		return client, end + 2, nil
	}
	if len(fields) != 5 {
		return client, 0, ErrProxyHeader
	}
	from, ok := parseAddrPort(fields[0], fields[1], fields[3])
	_, ok2 := parseAddrPort(fields[0], fields[2], fields[4])
	if !ok || !ok2 {
		return client, 0, ErrProxyHeader
	}
	return from, end + 2, nil
}

func parseAddrPort(family, host, port string) (netip.AddrPort, bool) {
	addr, err := netip.ParseAddr(host)
	number, err2 := strconv.ParseUint(port, 10, 16)
	if err != nil || err2 != nil || addr.Zone() != "" || family != "TCP4" && family != "TCP6" {
		return netip.AddrPort{}, false
	}
	return netip.AddrPortFrom(addr.Unmap(), uint16(number)), addr.Is4() == (family == "TCP4")
}

// The values of a version 2 header: version and command, family and protocol.
const (
	proxyV2Local = 0x20 // the proxy itself calls, as for a health check
	proxyV2Proxy = 0x21
	proxyV2TCP4  = 0x11
	proxyV2TCP6  = 0x21
	proxyV2Last  = 0x32 // families and protocols beyond these are not assigned
)

func parseProxyV2(b []byte) (client netip.AddrPort, n int, err error) {
	if len(b) < proxyV2Len {
		return client, 0, errMoreHeader
	}
	command, family := b[12], b[13]
	n = proxyV2Len + int(binary.BigEndian.Uint16(b[14:]))
	if n > proxyMax || command != proxyV2Local && command != proxyV2Proxy || family > proxyV2Last || family&15 > 2 {
		return client, 0, ErrProxyHeader
	}
	if len(b) < n {
		return client, 0, errMoreHeader
	}
	if command == proxyV2Local {
		return client, n, nil
	}
	var size int // of one address
	switch family {
	case proxyV2TCP4:
		size = 4
	case proxyV2TCP6:
		size = 16
	default:
		return client, n, nil // Not TCP: there is no such address here.
	}
	addresses := b[proxyV2Len:n]
	if len(addresses) < 2*size+4 {
		return client, 0, ErrProxyHeader
	}
	addr, _ := netip.AddrFromSlice(addresses[:size])
	return netip.AddrPortFrom(addr.Unmap(), binary.BigEndian.Uint16(addresses[2*size:])), n, nil
}
