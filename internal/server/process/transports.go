package process

import (
	"errors"
	"time"

	"github.com/ferryrelay/ferry/engine"
	"github.com/ferryrelay/ferry/engine/dtls"
	"github.com/ferryrelay/ferry/engine/websocket"
	"github.com/ferryrelay/ferry/internal/server/config"
)

func (r *localRelay) addTransports(to *engine.Config) (err error) {
	c := &r.opts.Config
	cfg := dtlsConfig(c)
	if r.opts.Parent == nil { // The process before this one has the file open.
		cfg.Sessions = r.openSessionFile(0)
	}
	if r.dtls, err = dtls.New(cfg); err != nil {
		return errors.Join(err, r.closeSessionFile())
	}
	to.Records = r.dtls
	if c.WebSocket {
		if r.websocket, err = websocket.New(websocketConfig(c, r.opts.Mode)); err != nil {
			return errors.Join(err, r.closeSessionFile())
		}
		to.Transports = append(to.Transports, r.websocket)
	}
	return nil
}

func dtlsConfig(c *config.Config) dtls.Config {
	return dtls.Config{
		MaxSessions: c.MaxDTLSSessions,
		Idle:        idleTimeout(c, 60*time.Second),
	}
}

// websocketConfig returns the configuration of WebSocket. Its limits per address are those
// of connections to the API: none in dev.
func websocketConfig(c *config.Config, mode Mode) websocket.Config {
	w := websocket.Config{
		MaxConns: c.MaxWebSockets, MaxConnsPerAddress: perAddress(c.MaxWebSockets),
		TrustedProxies: trustedProxies(c), AllowOrigins: origins(c),
		IdleTimeout:  idleTimeout(c, websocket.DefaultIdleTimeout),
		PingInterval: min(c.IdleTimeout/3, maxPingInterval),
	}
	if mode == Dev {
		w.MaxConnsPerAddress = -1
	}
	return w
}

// maxPingInterval is how often a silent WebSocket is pinged at least, whatever the idle
// time-out, so that NAT and proxies keep its connection.
const maxPingInterval = 20 * time.Second

// idleTimeout returns how long a session may be silent: not shorter than the idle
// time-outs of the relay.
func idleTimeout(c *config.Config, least time.Duration) time.Duration {
	longest := max(c.IdleTimeout, c.HostAloneTimeout, receiveTimeout(c))
	return min(max(least, longest+time.Second), maxTimeout)
}
