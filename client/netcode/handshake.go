package netcode

import (
	"fmt"

	"github.com/ferryrelay/ferry/client/netcode/address"
)

// enter moves a connection to a state and publishes that.
func (d *Driver) enter(s *session, st State) {
	s.state = st
	if st != StateDisconnected {
		d.publish(ConnectionEvent{Conn: Conn{d, s.conn}, NetworkID: s.id, State: st})
	}
}

// begin starts the handshake. Each side says its version without waiting for
// the other's.
func (d *Driver) begin(s *session) {
	s.since = d.elapsed
	appendSystem(&s.queue, indexVersion, d.version.append(nil))
	d.enter(s, StateHandshake)
}

// system executes an RPC of this package where it stands in the stream.
func (d *Driver) system(s *session, index uint16, body []byte) {
	switch {
	case index == indexVersion && len(body) == versionLen && !s.versionReceived:
		d.compare(s, parseVersion(body))
	case index == indexClose:
		d.closeByPeer(s, body)
	case index == indexGetApproved && !d.server && s.state == StateHandshake && len(body) == 0:
		s.since = d.elapsed
		d.enter(s, StateApproval)
	case index == indexApproved && !d.server && s.handshaking():
		id, ok := parseApproved(body)
		if !ok {
			d.invalid(s, "approval without a network id")
			return
		}
		s.id = id
		d.enter(s, StateConnected)
	default:
		d.invalid(s, "a system RPC out of place")
	}
}

// compare judges the peer's version. The server alone goes on with it.
func (d *Driver) compare(s *session, peer ProtocolVersion) {
	if differs := d.version.mismatch(peer, d.cfg.RelaxedVersion); differs != nil {
		d.log.Warn("the peer has another version", "detail", differs)
		d.closeBecause(s, ReasonBadProtocolVersion, differs.Error(), differs)
		return
	}
	s.versionReceived = true
	if !d.server {
		return
	}
	if !d.cfg.RequireApproval {
		d.welcome(s)
		return
	}
	appendSystem(&s.queue, indexGetApproved, nil)
	d.enter(s, StateApproval)
	if s.approved {
		d.welcome(s)
	}
}

// welcome connects a client.
func (d *Driver) welcome(s *session) {
	d.ep.Admit(s.conn)
	s.id = d.ids.take()
	appendSystem(&s.queue, indexApproved, appendApproved(nil, s.id, d.cfg.HandshakeApprovalTimeout))
	d.enter(s, StateConnected)
}

// RequestResult is what became of a request.
type RequestResult uint8

// The results.
const (
	// ResultPending: the next Update will see to it.
	ResultPending RequestResult = iota
	// ResultSucceeded: the server listens, or the client is connecting.
	ResultSucceeded
	// ResultFailed: see Err.
	ResultFailed
	// ResultRefusedAlready: the server listens already, or the client has a
	// connection already.
	ResultRefusedAlready
	// ResultRefusedMultiple: another request of the same tick was served.
	ResultRefusedMultiple
)

// String returns the name of the result, or result(n).
func (r RequestResult) String() string {
	switch r {
	case ResultPending:
		return "pending"
	case ResultSucceeded:
		return "succeeded"
	case ResultFailed:
		return "failed"
	case ResultRefusedAlready:
		return "refused: already done"
	case ResultRefusedMultiple:
		return "refused: multiple requests"
	}
	return fmt.Sprintf("result(%d)", uint8(r))
}

// ListenRequest is a Listen that the next Update makes. It belongs to the
// goroutine of its driver.
type ListenRequest struct {
	at     address.Addr
	result RequestResult
	err    error
}

// Addr returns the address to listen at.
func (r *ListenRequest) Addr() address.Addr { return r.at }

// Result returns what became of it.
func (r *ListenRequest) Result() RequestResult { return r.result }

// Err returns the error of Listen, nil unless the request failed or was refused.
func (r *ListenRequest) Err() error { return r.err }

// ConnectRequest is a Connect that the next Update makes. It belongs to the
// goroutine of its driver.
type ConnectRequest struct {
	to     address.Addr
	result RequestResult
	err    error
	conn   Conn
}

// Addr returns the address to connect to.
func (r *ConnectRequest) Addr() address.Addr { return r.to }

// Result returns what became of it.
func (r *ConnectRequest) Result() RequestResult { return r.result }

// Err returns the error of Connect, nil unless the request failed or was refused.
func (r *ConnectRequest) Err() error { return r.err }

// Conn returns the connection, the zero Conn unless the request succeeded.
func (r *ConnectRequest) Conn() Conn { return r.conn }

// RequestListen asks the next Update for a Listen. Of several requests in one
// tick it serves the first.
func (d *Driver) RequestListen(at address.Addr) *ListenRequest {
	r := &ListenRequest{at: at}
	d.listens = append(d.listens, r)
	return r
}

// RequestConnect asks the next Update for a Connect. Of several requests in one
// tick it serves the first.
func (d *Driver) RequestConnect(to address.Addr) *ConnectRequest {
	r := &ConnectRequest{to: to}
	d.connects = append(d.connects, r)
	return r
}

func (d *Driver) serveRequests() {
	for i, r := range d.listens {
		switch {
		case d.Listening() && i == 0:
			r.result, r.err = ResultRefusedAlready, ErrAlreadyListening
		case i > 0:
			r.result, r.err = ResultRefusedMultiple, ErrAlreadyListening
		default:
			r.result, r.err = resultOf(d.Listen(r.at))
		}
	}
	for i, r := range d.connects {
		switch {
		case d.busy() && i == 0:
			r.result, r.err = ResultRefusedAlready, ErrAlreadyConnecting
		case i > 0:
			r.result, r.err = ResultRefusedMultiple, ErrAlreadyConnecting
		default:
			c, err := d.Connect(r.to)
			r.conn = c
			r.result, r.err = resultOf(err)
		}
	}
	clear(d.listens)
	clear(d.connects)
	d.listens, d.connects = d.listens[:0], d.connects[:0]
}

func resultOf(err error) (RequestResult, error) {
	if err != nil {
		return ResultFailed, err
	}
	return ResultSucceeded, nil
}

// NetworkID names a connected client for as long as it stays: 1, 2, 3 and so
// on, and the one that was freed longest ago first. 0 is none. It is no
// identity: a player that returns may have another one.
type NetworkID int32

// networkIDs hands them out.
type networkIDs struct {
	last  NetworkID
	freed []NetworkID // a queue: next at head
	head  int
	aged  int // the end of those that may be handed out
}

func (q *networkIDs) take() NetworkID {
	if q.head >= q.aged {
		q.last++
		return q.last
	}
	id := q.freed[q.head]
	q.head++
	if q.head*2 > len(q.freed) {
		q.freed = q.freed[:copy(q.freed, q.freed[q.head:])]
		q.aged -= q.head
		q.head = 0
	}
	return id
}

// age lets the ids that were freed so far be handed out again. Each Update begins with it:
// an id does not end and begin among the events of one.
func (q *networkIDs) age() { q.aged = len(q.freed) }

func (q *networkIDs) free(id NetworkID) { q.freed = append(q.freed, id) }
