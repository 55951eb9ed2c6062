package process

import (
	"errors"

	"github.com/ferryrelay/ferry/engine"
	"github.com/ferryrelay/ferry/engine/dtls"
	"github.com/ferryrelay/ferry/engine/websocket"
	"github.com/ferryrelay/ferry/internal/server/advertised"
	"github.com/ferryrelay/ferry/internal/server/config"
)

func (r *localRelay) addTransports(to *engine.Config) (err error) {
	c := &r.opts.Config
	d := dtls.Config{MaxSessions: c.MaxDTLSSessions}
	if r.opts.Parent == nil { // The process before this one has the file open.
		d.Sessions = r.openSessionFile(0)
	}
	var w *websocket.Config
	if c.WebSocket {
		cfg := websocketConfig(c, r.opts.Mode)
		w = &cfg
	}
	if r.dtls, r.websocket, err = advertised.AddTransports(to, &d, w); err != nil {
		return errors.Join(err, r.closeSessionFile())
	}
	return nil
}

// websocketConfig returns the configuration of WebSocket. Its limits per address are those
// of connections to the API: none in dev.
func websocketConfig(c *config.Config, mode Mode) websocket.Config {
	w := websocket.Config{
		MaxConns: c.MaxWebSockets, MaxConnsPerAddress: perAddress(c.MaxWebSockets),
		TrustedProxies: trustedProxies(c), AllowOrigins: origins(c),
	}
	if mode == Dev {
		w.MaxConnsPerAddress = -1
	}
	return w
}
