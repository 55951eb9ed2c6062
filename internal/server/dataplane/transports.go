package dataplane

import (
	"cmp"
	"errors"
	"net"
	"strconv"
	"time"

	"github.com/ferryrelay/ferry/alloc"
	"github.com/ferryrelay/ferry/engine/dtls"
	"github.com/ferryrelay/ferry/engine/websocket"
	"github.com/ferryrelay/ferry/internal/privateapi"
)

const (
	// maxPingInterval is how often a silent WebSocket is pinged at least, whatever the idle time-out,
	// so that NAT and proxies keep its connection.
	maxPingInterval = 20 * time.Second
	maxIdleTimeout  = 24 * time.Hour
)

// addTransports creates the transports and adds them to the configuration of the engine, from which zero
// times follow: a session may be silent for longer than the relay waits for its player.
func (r *Relay) addTransports() (err error) {
	to := &r.cfg.Engine
	wait := max(to.Timeouts.Idle, to.Timeouts.HostAlone, to.Timeouts.Receive) + time.Second
	if r.cfg.DTLS != nil {
		c := *r.cfg.DTLS
		c.Idle = cmp.Or(c.Idle, min(max(time.Minute, wait), maxIdleTimeout))
		if c.Sessions == nil && to.Private.Handover == nil { // else the process before this one has the file open
			r.openSessions(0)
			c.Sessions = r.sessions
		}
		if r.DTLS, err = dtls.New(c); err != nil {
			return err
		}
		to.Records = r.DTLS
	}
	if r.cfg.WebSocket != nil {
		c := *r.cfg.WebSocket
		c.IdleTimeout = cmp.Or(c.IdleTimeout, min(max(2*time.Minute, wait), maxIdleTimeout))
		if idle := to.Timeouts.Idle; c.PingInterval == 0 && idle > 0 {
			c.PingInterval = min(idle/3, maxPingInterval)
		}
		if r.WebSocket, err = websocket.New(c); err != nil {
			return err
		}
		all := to.Transports
		to.Transports = append(all[:len(all):len(all)], r.WebSocket)
	}
	return nil
}

// TakeOver continues the DTLS sessions of the process before this one, before Run.
func (r *Relay) TakeOver(from privateapi.DTLSHandover) error {
	r.openSessions(from.Slots)
	return r.DTLS.Private().TakeOver(r.sessions, from)
}

// openSessions opens the file of DTLS sessions, if there is one. An error does not prevent the start.
func (r *Relay) openSessions(slots int) {
	if r.cfg.SessionFile == "" {
		return
	}
	log := r.cfg.Logger.With("file", r.cfg.SessionFile)
	onError := func(err error) {
		log.Error("session file: cannot be written; DTLS sessions will not outlive this process, unless it can be written later", "error", err)
	}
	s, err := dtls.OpenSessionFile(dtls.SessionFileConfig{
		Path: r.cfg.SessionFile, Relay: r.cfg.Identity.Relay, MaxSessions: r.cfg.DTLS.MaxSessions, Slots: slots, OnError: onError,
		OnStored: func() { log.Info("session file: it could be written again, and has all DTLS sessions") },
	})
	if err != nil {
		onError(err)
		return
	}
	r.sessions = s
	switch err := s.Unread(); {
	case errors.Is(err, privateapi.ErrStateRolledBack):
		log.Warn("session file: it lacks the last changes, as an older copy does, so DTLS sessions of an earlier run need a new handshake")
	case err != nil && !errors.Is(err, privateapi.ErrStateAbsent):
		log.Info("session file: not used, so DTLS sessions of an earlier run need a new handshake", "why", err)
	default:
		log.Info("session file: open", "dtls_sessions_that_may_go_on", s.Found())
	}
}

// CloseSessions closes the file of DTLS sessions, if it is open. The relay must have ended.
func (r *Relay) CloseSessions() error {
	s := r.sessions
	if r.sessions = nil; s == nil {
		return nil
	}
	return s.Close()
}

// Region returns a region of this relay, with its first address for QoS probes and its first URL.
func (r *Relay) Region() alloc.Region {
	id := cmp.Or(r.cfg.Engine.Region, "default")
	g := alloc.Region{ID: id, Description: id}
	for _, e := range r.Endpoints {
		address := net.JoinHostPort(e.Host, strconv.Itoa(int(e.Port)))
		switch e.ConnectionType {
		case "udp":
			g.QoSAddress = cmp.Or(g.QoSAddress, address)
		case "ws", "wss":
			g.WebSocketURL = cmp.Or(g.WebSocketURL, e.ConnectionType+"://"+address+"/")
		}
	}
	return g
}
