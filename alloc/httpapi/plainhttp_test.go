package httpapi

import (
	"errors"
	"net/netip"
	"testing"
)

func TestPlainHTTPAllowed(t *testing.T) {
	tests := map[string]bool{
		"127.0.0.1:7777": true, "127.9.9.9:7777": true, "[::1]:7777": true, "[::ffff:127.0.0.1]:7777": true,
		"0.0.0.0:7777": false, "[::]:7777": false, "192.0.2.1:7777": false, "10.0.0.1:7777": false,
		"192.168.1.1:7777": false, "[fe80::1%eth0]:7777": false, "[fd00::1]:7777": false,
		"[2001:db8::1]:7777": false, "169.254.1.1:7777": false, "[::ffff:0.0.0.0]:7777": false,
	}
	for in, want := range tests {
		addr := netip.MustParseAddrPort(in)
		err := PlainHTTPAllowed(addr, false)
		if (err == nil) != want || (err != nil && !errors.Is(err, ErrPlainHTTP)) {
			t.Errorf("PlainHTTPAllowed(%s) = %v", in, err)
		}
		if err := PlainHTTPAllowed(addr, true); err != nil {
			t.Errorf("PlainHTTPAllowed(%s) behind a proxy = %v", in, err)
		}
	}
	if err := PlainHTTPAllowed(netip.AddrPort{}, false); !errors.Is(err, ErrPlainHTTP) {
		t.Errorf("PlainHTTPAllowed of no address = %v", err)
	}
}
