//go:build linux && !sockportable

package sock

import (
	"testing"

	"golang.org/x/sys/unix"
)

func TestPktinfoRoundTrip(t *testing.T) {
	for _, tt := range []struct {
		name string
		v4   bool
		a    localAddr
		ok   bool
	}{
		{"v4", true, localAddr{lo: 0x7f000002}, true},
		{"v4 none", true, localAddr{}, false},
		{"v6", false, localAddr{hi: 0x20010db8 << 32, lo: 1}, true},
		{"v6 link-local", false, localAddr{hi: 0xfe80 << 48, lo: 7, zone: 3}, true},
		{"v6 multicast", false, localAddr{hi: 0xff02 << 48, lo: 1}, false},
	} {
		slot := make([]byte, unix.CmsgSpace(pktinfoLen(tt.v4)))
		initPktinfo(slot, tt.v4)
		putPktinfo(slot, tt.a, tt.v4)
		if tt.ok {
			msgs, err := unix.ParseSocketControlMessage(slot)
			if err != nil || len(msgs) != 1 || len(msgs[0].Data) != pktinfoLen(tt.v4) {
				t.Errorf("%s: x/sys reads %v, %v", tt.name, msgs, err)
			}
		}
		if got, ok := parsePktinfo(slot, len(slot), tt.v4); ok != tt.ok || (ok && got != tt.a) {
			t.Errorf("%s: %+v, %v", tt.name, got, ok)
		}
		if _, ok := parsePktinfo(slot, unix.CmsgLen(pktinfoLen(tt.v4))-1, tt.v4); ok {
			t.Errorf("%s: a short message is read", tt.name)
		}
		if _, ok := parsePktinfo(slot, len(slot), !tt.v4); ok {
			t.Errorf("%s: a message of the other family is read", tt.name)
		}
	}
}
