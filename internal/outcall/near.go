package outcall

import (
	"fmt"
	"net/netip"
	"net/url"
	"syscall"
)

// check reads a URL and refuses what is not for us. What a name stands for is
// looked at again when it is dialled.
func check(text string, allowPrivate bool) (*url.URL, error) {
	u, err := url.Parse(text)
	switch {
	case err != nil:
		return nil, ErrURL // The error would quote the text.
	case u.Scheme != "https" && u.Scheme != "http", u.Hostname() == "", u.User != nil, u.Fragment != "":
		return nil, fmt.Errorf("%w: it has to be https://HOST/PATH, without a user and a fragment", ErrURL)
	case u.Scheme == "https":
		return u, nil
	}
	ip, err := netip.ParseAddr(u.Hostname())
	switch {
	case err == nil && !near(ip, allowPrivate), err != nil && u.Hostname() != "localhost" && !allowPrivate:
		return nil, fmt.Errorf("%w (%s)", ErrPlain, u.Host)
	}
	return u, nil
}

// near reports whether plain HTTP may go to an address.
func near(ip netip.Addr, allowPrivate bool) bool {
	ip = ip.Unmap()
	return ip.IsLoopback() || allowPrivate && ip.IsPrivate()
}

// nearOnly returns a check of each address before it is dialled, so that a name
// which has come to lead elsewhere is refused.
func nearOnly(allowPrivate bool) func(network, address string, _ syscall.RawConn) error {
	return func(_, address string, _ syscall.RawConn) error {
		to, err := netip.ParseAddrPort(address)
		if err != nil || !near(to.Addr(), allowPrivate) {
			return ErrPlain
		}
		return nil
	}
}
