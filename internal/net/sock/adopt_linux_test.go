//go:build linux && !sockportable

package sock

import (
	"net"
	"net/netip"
	"testing"

	"github.com/ferryrelay/ferry/internal/net/endpoint"
)

// TestAdopt: another process takes over the sockets of every kind of address, with what waits
// there, and has what they had.
func TestAdopt(t *testing.T) {
	for _, addr := range []string{"127.0.0.1:0", "0.0.0.0:0", "[::1]:0", "[::]:0"} {
		t.Run(addr, func(t *testing.T) {
			if addr[0] == '[' {
				needV6(t)
			}
			cfg := Config{Addr: netip.MustParseAddrPort(addr)}
			old := listen(t, cfg, 2)
			to := netip.AddrPortFrom(netip.MustParseAddr("127.0.0.1"), old.Addr().Port())
			if addr[0] == '[' {
				to = netip.AddrPortFrom(netip.IPv6Loopback(), to.Port())
			}
			client := dial(t, netip.AddrPort{}, to)
			write(t, client, []byte("waits"))
			files, err := old.Files()
			if err != nil {
				t.Fatal(err)
			}
			g, err := Adopt(cfg, files)
			if err != nil {
				t.Fatal(err)
			}
			defer g.Close()
			if err := old.CloseDescriptors(); err != nil {
				t.Fatal(err)
			}
			if g.Addr() != old.Addr() || g.Capabilities() != old.Capabilities() {
				t.Errorf("at %v with %+v, had %v with %+v", g.Addr(), g.Capabilities(), old.Addr(), old.Capabilities())
			}
			from := endpoint.UDP(client.LocalAddr().(*net.UDPAddr).AddrPort(), 0, 0)
			received := 0
			for _, c := range g.Conns() {
				rx, tx := c.NewRecvBatch(), c.NewSendBatch(1)
				if n, err := c.TryRecv(rx); err != nil {
					t.Fatal(err)
				} else {
					received += n
				}
				tx.Add(from, []byte("reply"))
				if res := c.Send(tx); res.Sent != 1 {
					t.Errorf("%+v", res)
				}
				if got := string(read(t, client)); got != "reply" {
					t.Errorf("the client got %q", got)
				}
			}
			if received != 1 {
				t.Errorf("%d datagrams waited, want 1", received)
			}
		})
	}
}
