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
		own          bool
	}{
		{"direct", "192.0.2.1:5", nil, "192.0.2.1/32", true},
		{"mapped", "[::ffff:192.0.2.1]:5", nil, "192.0.2.1/32", true},
		{"IPv6 by its /56", "[2001:db8:1:2:3::4]:5", nil, "2001:db8:1::/56", true},
		{"zone", "[fe80::1%eth0]:5", nil, "fe80::/56", true},
		{"a liar", "192.0.2.1:5", []string{"198.51.100.1"}, "192.0.2.1/32", true},
		{"a proxy", "10.1.1.1:5", []string{"198.51.100.1"}, "198.51.100.1/32", true},
		{"an IPv6 proxy", "[2001:db8:ff::1]:5", []string{"198.51.100.1"}, "198.51.100.1/32", true},
		{"a liar behind a proxy", "10.1.1.1:5", []string{"203.0.113.7, 198.51.100.1"}, "198.51.100.1/32", true},
		{"two proxies", "10.1.1.1:5", []string{"203.0.113.7, 198.51.100.1, 10.2.2.2"}, "198.51.100.1/32", true},
		{"two header lines", "10.1.1.1:5", []string{"198.51.100.1", "10.2.2.2"}, "198.51.100.1/32", true},
		{"proxies only", "10.1.1.1:5", []string{"10.3.3.3"}, "10.3.3.3/32", false},
		{"junk", "10.1.1.1:5", []string{"198.51.100.1, junk"}, "10.1.1.1/32", false},
		{"empty", "10.1.1.1:5", []string{""}, "10.1.1.1/32", false},
		{"no header", "10.1.1.1:5", nil, "10.1.1.1/32", false},
		{"no address", "@", []string{"198.51.100.1"}, "invalid Prefix", true},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			r := httptest.NewRequest("GET", "/", nil)
			r.RemoteAddr = tt.remote
			r.Header["X-Forwarded-For"] = tt.forwarded
			if got, own := clientAddress(r, proxies); got.String() != tt.want || own != tt.own {
				t.Errorf("clientAddress = %v, %v, want %s, %v", got, own, tt.want, tt.own)
			}
		})
	}
}
