package config

import (
	"errors"
	"fmt"
	"net/netip"
	"regexp"
	"strconv"
	"strings"
)

// Name is a DNS name that players are told, and a port where it is not the one
// that we listen on. The zero value is no name.
type Name struct {
	Host string
	Port uint16 // 0: not given
}

// maxName is the longest DNS name in bytes (RFC 1035, 2.3.4).
const maxName = 253

var (
	// dnsName is what a host may be called (RFC 1123, 2.1).
	dnsName = regexp.MustCompile(`^([A-Za-z0-9]([A-Za-z0-9-]{0,61}[A-Za-z0-9])?\.)*[A-Za-z0-9]([A-Za-z0-9-]{0,61}[A-Za-z0-9])?$`)
	errName = errors.New("is not a DNS name, or NAME:PORT, such as relay.example.org; names with other letters are written as xn--…")
)

// UnmarshalText reads NAME, NAME:PORT or nothing.
func (n *Name) UnmarshalText(text []byte) error {
	host, number, given := strings.Cut(string(text), ":")
	var p uint64
	if given {
		var err error
		if p, err = strconv.ParseUint(number, 10, 16); err != nil || p == 0 {
			return fmt.Errorf("%q %w", text, errName)
		}
	}
	_, notIP := netip.ParseAddr(host)
	if (host != "" || given) && (len(host) > maxName || notIP == nil || !dnsName.MatchString(host)) {
		return fmt.Errorf("%q %w", text, errName)
	}
	n.Host, n.Port = host, uint16(p)
	return nil
}

// String returns NAME or NAME:PORT.
func (n Name) String() string {
	if n.Port == 0 {
		return n.Host
	}
	return n.Host + ":" + strconv.Itoa(int(n.Port))
}
