package enginetest

import (
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"testing"
)

// SteadyAddr returns an address of loopback at which nobody listens in that network,
// "udp" or "tcp". Its port is below those that systems give to who asks for none, so
// that nobody comes by it until it is used, or while a process is started anew.
func SteadyAddr(t testing.TB, network string) string {
	t.Helper()
	for range 100 {
		addr := fmt.Sprint("127.0.0.1:", 10_000+rand.IntN(20_000))
		var socket io.Closer
		var err error
		if network == "udp" {
			socket, err = net.ListenPacket(network, addr)
		} else {
			socket, err = net.Listen(network, addr)
		}
		if err == nil {
			socket.Close()
			return addr
		}
	}
	t.Fatal("no port is free")
	return ""
}
