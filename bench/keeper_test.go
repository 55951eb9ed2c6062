package bench

import (
	"net/netip"
	"testing"
	"time"

	"github.com/ferryrelay/ferry/internal/benchrig"
	"github.com/ferryrelay/ferry/internal/sock"
)

func TestKeeper(t *testing.T) {
	const n, after = 1000, time.Second
	r := &benchrig.Rig{Endpoints: make([]benchrig.Endpoint, n)}
	for i := range r.Endpoints {
		r.Endpoints[i].Relay = netip.MustParseAddrPort("127.0.0.1:1")
		r.Endpoints[i].Keepalive = []byte{1}
	}
	k := newKeepaliveTimer(r, after)
	said := make([][]int64, n)
	begin := sock.Now()
	talker := int32(7)
	for ms := range int64(5000) {
		now := begin + ms*1e6
		k.recordSent(talker, now)
		k.due(now, func(ep int) { said[ep] = append(said[ep], ms) })
	}
	for ep, times := range said {
		if ep == int(talker) {
			if len(times) != 0 {
				t.Errorf("endpoint %d talks and was kept alive at %v", ep, times)
			}
			continue
		}
		for i := range times {
			if i > 0 && (times[i]-times[i-1] < 1000 || times[i]-times[i-1] > 1200) {
				t.Fatalf("endpoint %d spoke at %v ms", ep, times)
			}
		}
		if len(times) < 4 || times[0] > 1200 {
			t.Fatalf("endpoint %d spoke at %v ms", ep, times)
		}
	}
	k = newKeepaliveTimer(r, -1)
	k.due(begin+1e12, func(int) { t.Error("kept alive, though switched off") })
}
