package app

import (
	"net/http"
	"sync"
	"time"

	"github.com/ferryrelay/ferry/alloc"
	"github.com/ferryrelay/ferry/alloc/httpapi"
	"github.com/ferryrelay/ferry/engine"
	"github.com/ferryrelay/ferry/engine/dtls"
	"github.com/ferryrelay/ferry/engine/websocket"
	"github.com/ferryrelay/ferry/internal/config"
	"github.com/ferryrelay/ferry/proto"
)

// addWays makes the ways in besides plain UDP and tells the relay of them.
func (a *App) addWays(to *engine.Config, sealer *alloc.Sealer) (err error) {
	c := &a.opts.Config
	if c.DTLS {
		cfg := dtlsConfig(c, sealer)
		cfg.Sessions = a.openSessions(cfg.MaxSessions)
		if a.dtls, err = dtls.New(cfg); err != nil {
			return err
		}
		to.Records = a.dtls
	}
	if c.WebSocket {
		if a.websocket, err = websocket.New(websocketConfig(c, a.opts.Mode)); err != nil {
			return err
		}
		to.Transports = append(to.Transports, a.websocket)
	}
	return nil
}

// dtlsConfig returns the settings of DTLS. Every id has a key, which nobody but
// its owner was told; whether the allocation lives, or may come back after a
// restart, is for the BIND inside to find out. Who knows the key of one that has
// ended can hold a few sessions until they are idle, and reaches nothing.
func dtlsConfig(c *config.Config, sealer *alloc.Sealer) dtls.Config {
	derivers := sync.Pool{New: func() any { return sealer.NewDeriver() }}
	return dtls.Config{
		PSK: func(id proto.AllocationID) (key proto.Key, ok bool) {
			d := derivers.Get().(*alloc.Deriver)
			defer derivers.Put(d)
			d.Key(id, &key)
			return key, true
		},
		MaxSessions: c.MaxDTLSSessions,
		MaxMessage:  c.DTLSMaxMessage,
		Idle:        patience(c, 60*time.Second),
	}
}

// websocketConfig returns the settings of WebSocket. The limits of addresses are
// those of connections to the API: none in dev, and none behind a proxy of which
// only that is known.
func websocketConfig(c *config.Config, mode Mode) websocket.Config {
	w := websocket.Config{
		MaxConns: c.MaxWebSockets, MaxConnsPerAddress: c.MaxAddressWebSockets,
		TrustedProxies: trusted(c), AllowOrigins: origins(c),
		IdleTimeout:   patience(c, websocket.DefaultIdleTimeout),
		QueueMessages: c.WebSocketQueue, MaxOutgoing: c.WebSocketMaxMessage,
		QueueBytes: queueBytes(c),
	}
	if mode == Dev || c.BehindProxy && len(c.TrustedProxies) == 0 {
		w.MaxConnsPerAddress = -1
	}
	return w
}

// queuedBytes is what a queued message may take on average, as with the defaults
// of package websocket.
const queuedBytes = websocket.DefaultQueueBytes / websocket.DefaultQueueMessages

// queueBytes is what the queue of one WebSocket may take.
func queueBytes(c *config.Config) int {
	return max(c.WebSocketQueue*queuedBytes, websocket.MaxMessage+2)
}

// patience returns how long a session of a player may be silent, which must not
// be shorter than the relay waits.
func patience(c *config.Config, least time.Duration) time.Duration {
	longest := max(c.IdleTimeout, c.HostAloneTimeout, c.HearTimeout)
	return min(max(least, longest+time.Second), 24*time.Hour)
}

// origins returns the web pages that may call, nil for all.
func origins(c *config.Config) []string {
	if len(c.AllowOrigins) == 0 {
		return nil
	}
	return c.AllowOrigins
}

// entrance is the API, with the WebSocket at / if there is one.
func (a *App) entrance(api http.Handler) http.Handler {
	if a.websocket == nil {
		return api
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if httpapi.RoutePath(r) == "/" {
			a.websocket.ServeHTTP(w, r)
			return
		}
		api.ServeHTTP(w, r)
	})
}
