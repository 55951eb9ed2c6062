package process

import (
	"context"
	"net"
	"time"

	"github.com/ferryrelay/ferry/client"
	"github.com/ferryrelay/ferry/internal/server/operator/admin"
)

// reachWithin bounds a check of [reach], within what a call of the admin pages may take.
const reachWithin = 3 * time.Second

// reach reports whether another server can be reached from here: by QoS probes over UDP, which
// relays answer without an allocation, or by opening a TCP connection.
func reach(ctx context.Context, network, address string) (r admin.Reached, err error) {
	ctx, cancel := context.WithTimeout(ctx, reachWithin)
	defer cancel()
	if network == "udp" {
		q := client.Measure(ctx, []client.Site{{Addr: address}}, client.MeasureConfig{Timeout: time.Second})[0]
		return admin.Reached{Sent: q.Sent, Received: q.Received, RTT: q.RTT}, q.Err
	}
	began := time.Now()
	r.Sent = 1
	conn, err := new(net.Dialer).DialContext(ctx, network, address)
	if err != nil {
		return r, err
	}
	r.Received, r.RTT = 1, time.Since(began)
	return r, conn.Close()
}
