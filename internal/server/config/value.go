package config

import (
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"regexp"
	"strconv"
	"strings"

	"github.com/ferryrelay/ferry/alloc"
	"github.com/ferryrelay/ferry/internal/base/keyfile"
	"github.com/ferryrelay/ferry/internal/server/host/machine"
)

// Addr is a listen address. Its host is an IP address, "localhost" for 127.0.0.1,
// or empty for all IPv4 addresses. Other names are rejected: a listen address must
// not depend on DNS.
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

// Host is an advertised address: an IP address, and a port if it differs from the
// listen port.
type Host struct {
	IP   netip.Addr
	Port uint16 // 0: the listen port
}

var errHost = errors.New("is not an IP address that players can send to; DNS names are not supported by game clients")

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

// RelayID is the id of a relay, zero for none.
type RelayID struct{ alloc.RelayID }

// UnmarshalText reads a UUID, or the empty string.
func (r *RelayID) UnmarshalText(text []byte) (err error) {
	*r = RelayID{}
	if len(text) == 0 {
		return nil
	}
	if r.RelayID, err = alloc.ParseRelayID(string(text)); err != nil || r.IsZero() {
		return fmt.Errorf("%q is not a UUID such as 6a1c3f5e-0d2b-4c7a-9e8f-112233445566", text)
	}
	return nil
}

// String returns the id, or the empty string.
func (r RelayID) String() string {
	if r.IsZero() {
		return ""
	}
	return r.RelayID.String()
}

// CPUs is a list of CPU numbers and ranges, such as 0-31,64-95, in the order of the
// workers. The zero value is no CPU.
type CPUs string

// UnmarshalText reads a list, or the empty string.
func (c *CPUs) UnmarshalText(text []byte) error {
	_, err := machine.ParseCPUs(string(text))
	if err == nil {
		*c = CPUs(text)
	}
	return err
}

// List returns the CPUs.
func (c CPUs) List() []int {
	list, _ := machine.ParseCPUs(string(c)) // valid by UnmarshalText
	return list
}

// Network is an address prefix such as 10.0.0.0/8, or one address.
type Network struct{ netip.Prefix }

var errNetwork = errors.New("is not an IP address or a network such as 10.0.0.0/8, or 0.0.0.0/0 for all of IPv4")

// UnmarshalText reads IP or IP/BITS.
func (n *Network) UnmarshalText(text []byte) error {
	p, err := netip.ParsePrefix(string(text))
	if err != nil {
		var ip netip.Addr
		if ip, err = netip.ParseAddr(string(text)); err == nil && ip.Zone() == "" {
			p = netip.PrefixFrom(ip, ip.BitLen())
		}
	}
	if p.Addr().Is4In6() && p.Bits() >= 96 {
		p = netip.PrefixFrom(p.Addr().Unmap(), p.Bits()-96) // Addresses are compared as IPv4.
	}
	if err != nil || !p.IsValid() || p.IsSingleIP() && p.Addr().IsUnspecified() {
		return fmt.Errorf("%q %w", text, errNetwork)
	}
	n.Prefix = p.Masked()
	return nil
}

// Name is an advertised DNS name, and a port if it differs from the listen port.
// The zero value is no name.
type Name struct {
	Host string
	Port uint16 // 0: the listen port
}

// maxName is the longest DNS name in bytes (RFC 1035, 2.3.4).
const maxName = 253

var (
	// dnsName matches a host name (RFC 1123, 2.1).
	dnsName = regexp.MustCompile(`^([A-Za-z0-9]([A-Za-z0-9-]{0,61}[A-Za-z0-9])?\.)*[A-Za-z0-9]([A-Za-z0-9-]{0,61}[A-Za-z0-9])?$`)
	errName = errors.New("is not a DNS name, or NAME:PORT, such as relay.example.org; encode other characters as xn--… (IDNA)")
)

// UnmarshalText reads NAME, NAME:PORT or the empty string.
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

const hidden = "[hidden]"

// maxSecretFile is the maximum size of a secret file in bytes: twice the longest token.
const maxSecretFile = 8 << 10

// Secret is a string that prints as "[hidden]" in every format. Convert it to
// string to get the secret.
type Secret string

// String returns "[hidden]", or "" for an empty secret.
func (s Secret) String() string {
	if s == "" {
		return ""
	}
	return hidden
}

// Format writes the result of String for every verb.
func (s Secret) Format(f fmt.State, _ rune) { _, _ = io.WriteString(f, s.String()) }

// LogValue returns the result of String.
func (s Secret) LogValue() slog.Value { return slog.StringValue(s.String()) }

// MarshalText returns the result of String.
func (s Secret) MarshalText() ([]byte, error) { return []byte(s.String()), nil }

func (t *Token) resolve() error {
	if (t.Secret == "") == (t.SecretFile == "") {
		return errors.New("needs either secret or secret_file")
	}
	if t.Kind == "" {
		t.Kind = "player"
	}
	if t.SecretFile == "" {
		return nil
	}
	secret, err := ReadSecret(t.SecretFile)
	if err != nil {
		return fmt.Errorf("secret_file: %w", err)
	}
	t.Secret = secret
	return nil
}

// ReadSecret reads a file with one secret, as [keyfile.DecodeSecret] does. A file of more than 8 KiB is an error.
func ReadSecret(path string) (Secret, error) {
	text, err := readAtMost(path, maxSecretFile)
	if err != nil {
		return "", err
	}
	secret, err := keyfile.DecodeSecret(text)
	if err != nil {
		return "", fmt.Errorf("%s %w", path, err)
	}
	return Secret(secret), nil
}

func readAtMost(path string, limit int64) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	text, err := io.ReadAll(io.LimitReader(f, limit+1))
	if err == nil && int64(len(text)) > limit {
		err = fmt.Errorf("%s is larger than %d bytes", path, limit)
	}
	return text, err
}
