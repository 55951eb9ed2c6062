package blackbox

import (
	"bytes"
	"net"
	"testing"

	"github.com/ferryrelay/ferry/internal/test/wiretest"
	"github.com/ferryrelay/ferry/proto"
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

// TestDTLSTakenOver: when a client starts a new session at the same address, its binding continues without a BIND.
func TestDTLSTakenOver(t *testing.T) {
	t.Parallel()
	f := dev(t)
	a, _ := f.allocate(4)
	socket := newSocket(t, "127.0.0.1:0")
	s := a.secure(t, socket)
	s.Bind(a.credentials(t), 0)
	_ = s.Close()
	s = a.secure(t, newSocket(t, socket.LocalAddr().String()))
	ping := proto.Ping{ID: proto.AllocationID(a.AllocationIDBytes), Number: 5}.Append(nil)
	s.Ask(ping, func(got []byte) bool {
		if wiretest.HasType(proto.TypeError)(got) {
			t.Errorf("the new session received % x", got)
		}
		return bytes.Equal(got, ping)
	})
	if n := f.event("taken_over"); n != 1 {
		t.Errorf("%v sessions were taken over", n)
	}
}
