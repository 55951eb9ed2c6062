package csharp

import (
	"testing"

	"github.com/ferryrelay/ferry/internal/test/clienttest"
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
	var g *clienttest.Program
	clienttest.ChangeAddress(t, func() {
		url, caller, _ := service(t)
		g = connected(t, url, clienttest.Host(t, caller, 4, nil).Code)
	}, func() { g.Reach("after", "not sent") })
}
