package forwarded

import (
	"net/http"
	"net/netip"
	"testing"
)

func TestFind(t *testing.T) {
	proxies := []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8"), netip.MustParsePrefix("2001:db8:ff::/48")}
	const (
		known     = "known"
		unknown   = "unknown"
		malformed = "malformed"
	)
	for _, tt := range []struct {
		name, remote string
		forwarded    []string
		want, state  string
	}{
		{"direct", "192.0.2.1:5", nil, "192.0.2.1/32", known},
		{"mapped", "[::ffff:192.0.2.1]:5", nil, "192.0.2.1/32", known},
		{"IPv6 by its /56", "[2001:db8:1:23ff:3::4]:5", nil, "2001:db8:1:2300::/56", known},
		{"zone", "[fe80::1%eth0]:5", nil, "fe80::/56", known},
		{"a forged header", "192.0.2.1:5", []string{"198.51.100.1"}, "192.0.2.1/32", known},
		{"a proxy", "10.1.1.1:5", []string{"198.51.100.1"}, "198.51.100.1/32", known},
		{"an IPv6 proxy", "[2001:db8:ff::1]:5", []string{"198.51.100.1"}, "198.51.100.1/32", known},
		{"a forged header behind a proxy", "10.1.1.1:5", []string{"203.0.113.7, 198.51.100.1"}, "198.51.100.1/32", known},
		{"two proxies", "10.1.1.1:5", []string{"203.0.113.7, 198.51.100.1, 10.2.2.2"}, "198.51.100.1/32", known},
		{"two header lines", "10.1.1.1:5", []string{"198.51.100.1", "10.2.2.2 "}, "198.51.100.1/32", known},
		{"mapped entry", "10.1.1.1:5", []string{"::ffff:198.51.100.1"}, "198.51.100.1/32", known},
		{"a port", "10.1.1.1:5", []string{"198.51.100.1:61000"}, "198.51.100.1/32", known},
		{"a port of a proxy", "10.1.1.1:5", []string{"198.51.100.1:61000, 10.2.2.2:80"}, "198.51.100.1/32", known},
		{"IPv6", "10.1.1.1:5", []string{"2001:db8::7"}, "2001:db8::/56", known},
		{"IPv6 in brackets", "10.1.1.1:5", []string{"[2001:db8::7]"}, "2001:db8::/56", known},
		{"IPv6 with a port", "10.1.1.1:5", []string{"[2001:db8::7]:61000"}, "2001:db8::/56", known},
		{"proxies only", "10.1.1.1:5", []string{"10.3.3.3"}, "10.3.3.3/32", unknown},
		{"no header", "10.1.1.1:5", nil, "10.1.1.1/32", unknown},
		{"junk", "10.1.1.1:5", []string{"198.51.100.1, junk"}, "10.1.1.1/32", malformed},
		{"junk before a proxy", "10.1.1.1:5", []string{"198.51.100.1, unknown, 10.3.3.3"}, "10.3.3.3/32", malformed},
		{"empty", "10.1.1.1:5", []string{""}, "10.1.1.1/32", malformed},
		{"an empty end", "10.1.1.1:5", []string{"198.51.100.1,"}, "10.1.1.1/32", malformed},
		{"a wrong port", "10.1.1.1:5", []string{"198.51.100.1:99999"}, "10.1.1.1/32", malformed},
		{"half a bracket", "10.1.1.1:5", []string{"2001:db8::7]:5"}, "10.1.1.1/32", malformed},
		{"no address", "@", []string{"198.51.100.1"}, "invalid Prefix", unknown},
	} {
		r := &http.Request{RemoteAddr: tt.remote, Header: http.Header{"X-Forwarded-For": tt.forwarded}}
		got := Find(r, proxies)
		state := unknown
		switch {
		case got.Known:
			state = known
		case got.Malformed:
			state = malformed
		}
		if got.Prefix.String() != tt.want || state != tt.state || got.Known && got.Malformed {
			t.Errorf("%s: %+v, want %s, %s", tt.name, got, tt.want, tt.state)
		}
	}
}
