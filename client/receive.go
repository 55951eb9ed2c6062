package client

import (
	"errors"
	"fmt"
	"net"
	"syscall"
	"time"

	"github.com/ferryrelay/ferry/proto"
)

// firstReadPause and maxReadPause are how long the reader waits after the first error of the socket, and at
// most: one that a network going away has caused comes again at once, and a relay that comes back is soon heard.
const (
	firstReadPause = 10 * time.Millisecond
	maxReadPause   = 250 * time.Millisecond
)

// readFailure is a series of errors of a socket without a datagram between them.
type readFailure struct {
	since int64
	pause time.Duration // after the last one
	err   error         // the last one
}

func (s *Session) read() {
	d := new(datagram)
	for {
		conn := s.transport.socket.Load()
		n, from, err := conn.ReadFromUDPAddrPort(d.buf[:])
		if err != nil {
			if !s.survive(conn, err) {
				return
			}
			continue
		}
		if s.transport.failing.Load() != nil {
			s.transport.failing.Store(nil)
		}
		if from.Port() != conn.server.Port() || from.Addr().Unmap() != conn.server.Addr() {
			s.counters.foreign.Add(1)
			continue
		}
		d.n, d.at = n, conn
		d = s.handle(s.now(), d)
	}
}

// wsaMsgSize is WSAEMSGSIZE, with which Windows reports a datagram that was longer than the buffer. Other systems cut it.
const wsaMsgSize = syscall.Errno(10040)

// isTooLong reports whether an error is about one datagram, from whomever, and says nothing about the socket.
func isTooLong(err error) bool { return errors.Is(err, wsaMsgSize) }

// survive reports whether reading goes on after an error: on another socket
// after Roam or turnServer, on the same one after a passing trouble.
func (s *Session) survive(conn *socket, err error) bool {
	if isClosed(s.done) {
		return false
	}
	if conn != s.transport.socket.Load() {
		s.transport.failing.Store(nil)
		return true
	}
	if errors.Is(err, net.ErrClosed) {
		s.end(err)
		return false
	}
	if isTooLong(err) {
		s.counters.malformed.Add(1)
		return true
	}
	now, limit := s.now(), rebindTimeout
	failing := &readFailure{now, firstReadPause, err}
	if last := s.transport.failing.Load(); last != nil {
		failing.since, failing.pause = last.since, min(2*last.pause, maxReadPause)
	} else {
		s.log.Warn("the socket cannot receive", "error", err)
	}
	s.transport.failing.Store(failing)
	if now-failing.since >= int64(limit) {
		s.end(fmt.Errorf("client: the socket has received nothing but errors for %v: %w", limit, err))
		return false
	}
	pause := time.NewTimer(failing.pause)
	defer pause.Stop()
	select {
	case <-s.done:
		return false
	case <-pause.C:
		return true
	}
}

// handle returns the next buffer: another one when this one waits in a queue.
func (s *Session) handle(now int64, d *datagram) *datagram {
	kind, err := proto.ParseType(d.bytes())
	if err != nil {
		s.counters.malformed.Add(1)
		return d
	}
	if kind == proto.TypeRelay {
		return s.peers.receive(now, d)
	}
	known, err := s.handleControl(now, kind, d)
	switch {
	case err != nil:
		s.counters.malformed.Add(1)
	case !known:
		s.counters.unexpected.Add(1)
	default:
		s.transport.hear(now)
	}
	return d
}

// handleControl reports whether a relay sends such a message to this session.
func (s *Session) handleControl(now int64, kind proto.Type, d *datagram) (bool, error) {
	pkt := d.bytes()
	switch kind {
	case proto.TypeBindReceived:
		_, err := proto.ParseBindReceived(pkt)
		if err == nil {
			s.transport.hear(now)
			s.bind.onReceived(now, d.at)
		}
		return true, err
	case proto.TypePing:
		m, err := proto.ParsePing(pkt)
		if err != nil || m.ID != s.own {
			return false, err
		}
		s.transport.hear(now)
		s.ping.onEcho(now, m.Number)
		return true, nil
	case proto.TypeAccepted:
		m, err := proto.ParseAccepted(pkt)
		if err == nil {
			s.connect.onAccepted(now, m)
		}
		return true, err
	case proto.TypeRejected:
		s.connect.onVerdict(ErrRejected)
		return true, nil
	case proto.TypeDisconnect:
		m, err := proto.ParseDisconnect(pkt)
		if err == nil {
			s.peers.onDisconnect(m)
		}
		return true, err
	case proto.TypeError:
		m, err := proto.ParseError(pkt)
		if err == nil {
			s.onError(now, m)
		}
		return true, err
	}
	return false, nil
}

// onError takes the relay's ERROR. One about another allocation is counted and
// nothing else: 1 and 4 end a game. ERROR 0 names no allocation.
func (s *Session) onError(now int64, m proto.Error) {
	if int(m.Code) >= errorCodes || m.ID != s.own && m.Code != proto.ErrorVersion {
		s.counters.other.Add(1)
		return
	}
	s.counters.errors[m.Code].Add(1)
	switch m.Code {
	case proto.ErrorNotFound, proto.ErrorTimeout:
		if m.Code == proto.ErrorNotFound && s.connect.isAnswer() {
			s.connect.onVerdict(RefusedError{m.Code})
			return
		}
		s.log.Warn("allocation has ended", "error", m.Code.String())
		s.end(EndedError{m.Code})
	case proto.ErrorMismatch:
		s.bind.onMismatch(now)
	case proto.ErrorUnauthorized, proto.ErrorSelfConnect:
		s.log.Warn("connection refused", "error", m.Code.String())
		s.connect.onVerdict(RefusedError{m.Code})
	case proto.ErrorNotConnected:
		s.connect.onNotConnected(now)
	default:
		s.log.Debug("relay reports an error", "error", m.Code.String())
	}
}
