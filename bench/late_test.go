package bench

import (
	"net"
	"net/netip"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ferryrelay/ferry/internal/benchrig"
)

// TestLateDuplicates: what a relay sends again after all has arrived is counted until the end of the drain.
func TestLateDuplicates(t *testing.T) {
	t.Parallel()
	const rate, every, after = 1000, 10, 300 * time.Millisecond
	conn, err := net.ListenUDP("udp4", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1)})
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	var repeated atomic.Int64
	go func() {
		buf := make([]byte, 2048)
		for n := 0; ; n++ {
			size, from, err := conn.ReadFromUDPAddrPort(buf)
			if err != nil {
				return
			}
			ip := from.Addr().As4()
			ip[3] ^= 1 // as Swap has it
			to := netip.AddrPortFrom(netip.AddrFrom4(ip), from.Port())
			_, _ = conn.WriteToUDPAddrPort(buf[:size], to)
			if size > 100 && n%every == 0 {
				pkt := append([]byte(nil), buf[:size]...)
				time.AfterFunc(after, func() {
					if _, err := conn.WriteToUDPAddrPort(pkt, to); err == nil {
						repeated.Add(1)
					}
				})
			}
		}
	}()
	r := run(t, Config{Load: Load{Matches: 5, Rate: rate, Duration: 200 * time.Millisecond, Warmup: -1, Drain: 3 * time.Second}},
		benchrig.Swap{Relay: netip.MustParseAddrPort(conn.LocalAddr().String())})
	if n := uint64(repeated.Load()); n < r.Sent/every/2 || r.Duplicated != n || !r.CausedBy(limitServer) {
		t.Errorf("%d of %d were sent again, the result has %d: %v", n, r.Sent, r.Duplicated, r.Causes)
	}
}
