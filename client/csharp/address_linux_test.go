package csharp

import (
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/ferryrelay/ferry/internal/testkit"
)

// TestNewAddress: the machine of a player gets another IP address, and the match goes on. It runs in a
// network namespace of its own.
func TestNewAddress(t *testing.T) {
	t.Parallel()
	const marker = "FERRY_TEST_NAMESPACE"
	if os.Getenv(marker) != t.Name() {
		testkit.NeedRoot(t, "a network namespace")
		testkit.Program(t, "mcs", "mono-mcs")
		testkit.Program(t, "ip", "iproute2")
		cmd := exec.Command(testkit.Program(t, "unshare", "util-linux"), "--net", os.Args[0], "-test.run=^"+t.Name()+"$", "-test.v")
		cmd.Env = append(os.Environ(), marker+"="+t.Name())
		out, err := cmd.CombinedOutput()
		if err != nil || !strings.Contains(string(out), "--- PASS: "+t.Name()) {
			t.Fatalf("%v\n%s", err, out)
		}
		return
	}
	ip := func(args string) {
		t.Helper()
		if out, err := exec.Command("ip", strings.Fields(args)...).CombinedOutput(); err != nil {
			t.Fatalf("ip %s: %v: %s", args, err, out)
		}
	}
	use := func(addr string) {
		t.Helper()
		ip("addr add " + addr + "/32 dev lo")
		ip("route replace local 127.0.0.1 dev lo table local src " + addr)
	}
	ip("link set lo up")
	use("198.18.0.2")
	url, caller, _ := service(t)
	_, code, _ := host(t, caller)
	g := play(t, url, playerToken, code)
	g.do("connect")
	g.expect("connected")
	g.reach("before")
	ip("addr del 198.18.0.2/32 dev lo")
	use("198.18.0.3")
	g.reach("after", "not sent")
}
