package httpapi

import (
	"net/http/httptest"
	"net/netip"
	"testing"
)

func TestClientAddress(t *testing.T) {
	proxies := []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8"), netip.MustParsePrefix("2001:db8:ff::/48")}
	tests := []struct {
		name, remote string
		forwarded    []string
		want         string
	}{
		{"direct", "192.0.2.1:5", nil, "192.0.2.1"},
		{"mapped", "[::ffff:192.0.2.1]:5", nil, "192.0.2.1"},
		{"IPv6 by its /64", "[2001:db8:1:2:3::4]:5", nil, "2001:db8:1:2::/64"},
		{"zone", "[fe80::1%eth0]:5", nil, "fe80::/64"},
		{"a liar", "192.0.2.1:5", []string{"198.51.100.1"}, "192.0.2.1"},
		{"a proxy", "10.1.1.1:5", []string{"198.51.100.1"}, "198.51.100.1"},
		{"an IPv6 proxy", "[2001:db8:ff::1]:5", []string{"198.51.100.1"}, "198.51.100.1"},
		{"a liar behind a proxy", "10.1.1.1:5", []string{"203.0.113.7, 198.51.100.1"}, "198.51.100.1"},
		{"two proxies", "10.1.1.1:5", []string{"203.0.113.7, 198.51.100.1, 10.2.2.2"}, "198.51.100.1"},
		{"two header lines", "10.1.1.1:5", []string{"198.51.100.1", "10.2.2.2"}, "198.51.100.1"},
		{"proxies only", "10.1.1.1:5", []string{"10.3.3.3"}, "10.3.3.3"},
		{"junk", "10.1.1.1:5", []string{"198.51.100.1, junk"}, "10.1.1.1"},
		{"empty", "10.1.1.1:5", []string{""}, "10.1.1.1"},
		{"no header", "10.1.1.1:5", nil, "10.1.1.1"},
		{"no address", "@", []string{"198.51.100.1"}, "unknown"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			r := httptest.NewRequest("GET", "/", nil)
			r.RemoteAddr = tt.remote
			r.Header["X-Forwarded-For"] = tt.forwarded
			if got := clientAddress(r, proxies); got != tt.want {
				t.Errorf("clientAddress = %q, want %q", got, tt.want)
			}
		})
	}
}
