package csharp

import (
	"testing"

	"github.com/ferryrelay/ferry/internal/test/testkit"
)

// TestNewAddress: the machine of a player gets another IP address, and the match goes on. It runs in a
// network namespace of its own.
func TestNewAddress(t *testing.T) {
	t.Parallel()
	testkit.Program(t, "mcs", "mono-mcs")
	if !testkit.InNamespace(t) {
		return
	}
	use := func(addr string) {
		t.Helper()
		testkit.IP(t, "addr add "+addr+"/32 dev lo")
		testkit.IP(t, "route replace local 127.0.0.1 dev lo table local src "+addr)
	}
	testkit.IP(t, "link set lo up")
	use("198.18.0.2")
	url, caller, _ := service(t)
	_, code, _ := host(t, caller)
	g := play(t, url, playerToken, code)
	g.do("connect")
	g.expect("connected")
	g.reach("before")
	testkit.IP(t, "addr del 198.18.0.2/32 dev lo")
	use("198.18.0.3")
	g.reach("after", "not sent")
}
