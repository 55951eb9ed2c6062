package blackbox

import (
	"net"
	"testing"

	"github.com/ferryrelay/ferry/internal/test/wiretest"
)

func (f *ferry) event(name string) float64 {
	f.t.Helper()
	return f.metric(`ferry_dtls_events_total{event="` + name + `"}`)
}

func (a allocation) secure(t *testing.T, socket net.PacketConn) *wiretest.Conn {
	t.Helper()
	return wiretest.DTLS(t, socket, a.endpoint(t, "dtls"), [16]byte(a.AllocationIDBytes), a.Key)
}

func newSocket(t *testing.T, local string) net.PacketConn {
	t.Helper()
	socket, err := net.ListenPacket("udp4", local)
	if err != nil {
		t.Fatal(err)
	}
	return socket
}
