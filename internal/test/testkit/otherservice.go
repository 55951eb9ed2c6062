package testkit

import (
	"net"
	"testing"
)

// OtherService returns the UDP address of a service that answers each datagram with one that is no
// message of a relay, until the test ends.
func OtherService(t testing.TB) string {
	t.Helper()
	conn, err := net.ListenPacket("udp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	t.Cleanup(func() {
		conn.Close()
		<-done
	})
	go func() {
		defer close(done)
		buf := make([]byte, 2048)
		for {
			_, from, err := conn.ReadFrom(buf)
			if err != nil {
				return
			}
			_, _ = conn.WriteTo([]byte("hello"), from) // A test that waits for it fails.
		}
	}()
	return conn.LocalAddr().String()
}
