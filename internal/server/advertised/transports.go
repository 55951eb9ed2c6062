package advertised

import (
	"cmp"
	"net"
	"strconv"
	"time"

	"github.com/ferryrelay/ferry/alloc"
	"github.com/ferryrelay/ferry/engine"
	"github.com/ferryrelay/ferry/engine/dtls"
	"github.com/ferryrelay/ferry/engine/websocket"
)

const (
	// maxPingInterval is how often a silent WebSocket is pinged at least, whatever the idle time-out,
	// so that NAT and proxies keep its connection.
	maxPingInterval = 20 * time.Second
	maxIdleTimeout  = 24 * time.Hour
)

// AddTransports creates the transports of a relay besides plain UDP, nil for one without a
// configuration, and adds them to that of the relay, from which zero times follow: a session may be
// silent for longer than the relay waits for its player.
func AddTransports(to *engine.Config, d *dtls.Config, w *websocket.Config) (records *dtls.Records, at *websocket.Transport, err error) {
	wait := max(to.Timeouts.Idle, to.Timeouts.HostAlone, to.Timeouts.Receive) + time.Second
	if d != nil {
		c := *d
		c.Idle = cmp.Or(c.Idle, min(max(time.Minute, wait), maxIdleTimeout))
		if records, err = dtls.New(c); err != nil {
			return nil, nil, err
		}
		to.Records = records
	}
	if w != nil {
		c := *w
		c.IdleTimeout = cmp.Or(c.IdleTimeout, min(max(websocket.DefaultIdleTimeout, wait), maxIdleTimeout))
		if idle := to.Timeouts.Idle; c.PingInterval == 0 && idle > 0 {
			c.PingInterval = min(idle/3, maxPingInterval)
		}
		if at, err = websocket.New(c); err != nil {
			return nil, nil, err
		}
		all := to.Transports
		to.Transports = append(all[:len(all):len(all)], at)
	}
	return records, at, nil
}

// Region returns a region of one relay, with its first address for QoS probes and its first URL.
func Region(id string, endpoints []alloc.ServerEndpoint) alloc.Region {
	r := alloc.Region{ID: id, Description: id}
	for _, e := range endpoints {
		address := net.JoinHostPort(e.Host, strconv.Itoa(int(e.Port)))
		switch e.ConnectionType {
		case "udp":
			r.QoSAddress = cmp.Or(r.QoSAddress, address)
		case "ws", "wss":
			r.WebSocketURL = cmp.Or(r.WebSocketURL, e.ConnectionType+"://"+address+"/")
		}
	}
	return r
}
