package config

import (
	"strings"
	"testing"
)

func TestName(t *testing.T) {
	long := strings.Repeat("a", 63) + "."
	for text, want := range map[string]Name{
		"":                      {},
		"relay.example.org":     {Host: "relay.example.org"},
		"localhost":             {Host: "localhost"},
		"relay.example.org:443": {Host: "relay.example.org", Port: 443},
		"xn--fhre-0na.example":  {Host: "xn--fhre-0na.example"},
		"1.relay.example":       {Host: "1.relay.example"},
		long + "example":        {Host: long + "example"},
	} {
		var n Name
		if err := n.UnmarshalText([]byte(text)); err != nil || n != want || n.String() != text {
			t.Errorf("%q: %+v, %v", text, n, err)
		}
	}
	for _, text := range []string{
		":443", "relay.example.org:", "relay.example.org:0", "relay.example.org:65536", "relay.example.org.",
		"203.0.113.1", "203.0.113.1:7777", "[2001:db8::1]:7777", "2001:db8::1", "fähre.example", "a_b.example",
		"-a.example", "a-.example", "a..b", "wss://relay.example.org", "relay.example.org/", "a" + long + "example",
		strings.Repeat(long, 4) + "example",
	} {
		n := Name{Host: "before"}
		if err := n.UnmarshalText([]byte(text)); err == nil || n.Host != "before" {
			t.Errorf("%q: %+v, %v", text, n, err)
		}
	}
}
