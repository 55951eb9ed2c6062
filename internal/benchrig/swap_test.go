package benchrig

import (
	"net/netip"
	"testing"

	"github.com/ferryrelay/ferry/internal/net/endpoint"
)

func TestNullSwap(t *testing.T) {
	at := func(s string) endpoint.Endpoint { return endpoint.UDP(netip.MustParseAddrPort(s), 3, 0) }
	for _, test := range []struct {
		star     bool
		from, to string
		pkt      []byte
	}{
		{false, "127.1.0.4:9", "127.1.0.5:9", nil},
		{false, "127.1.0.5:9", "127.1.0.4:9", []byte{7}},
		{true, "127.1.3.5:9", "127.1.3.0:9", []byte{7}},
		{true, "127.1.3.0:9", "127.1.3.7:9", []byte{7, 1}},
		{true, "127.1.3.0:9", "", nil},
		{false, "[::1]:9", "", nil},
	} {
		want := endpoint.Endpoint{}
		if test.to != "" {
			want = at(test.to)
		}
		n := NullRelay{cfg: NullConfig{Star: test.star}}
		if got := n.swap(at(test.from), test.pkt); got != want {
			t.Errorf("%+v goes to %v", test, got)
		}
	}
}
