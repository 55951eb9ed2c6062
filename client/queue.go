package client

import "github.com/ferryrelay/ferry/proto"

const (
	// maxDatagram is the largest RELAY, 1472 bytes.
	maxDatagram = proto.RelayOverhead + proto.MaxContent
	// maxSpare bounds the buffers that a session keeps after a burst, 1.5 MB.
	maxSpare = 1024
)

// datagram has a byte more than the largest message, so that a cut one shows.
type datagram struct {
	buf [maxDatagram + 1]byte
	n   int
	at  *socket // the socket that it came to
}

func (d *datagram) bytes() []byte { return d.buf[:d.n] }

func (d *datagram) content() []byte { return d.buf[proto.RelayOverhead:d.n] }

type queue struct {
	slots []*datagram
	head  int
	count int
}

func newQueue(n int) queue { return queue{slots: make([]*datagram, n)} }

func (q *queue) push(d *datagram) bool {
	if q.count == len(q.slots) {
		return false
	}
	q.slots[(q.head+q.count)%len(q.slots)] = d
	q.count++
	return true
}

func (q *queue) pop() *datagram {
	if q.count == 0 {
		return nil
	}
	d := q.slots[q.head]
	q.slots[q.head] = nil
	q.head = (q.head + 1) % len(q.slots)
	q.count--
	return d
}

// peerList has the peers with datagrams that wait, once each, in the order in
// which ReadFrom serves them: one datagram each, so that a loud peer starves no
// other.
type peerList struct {
	first, last *Peer
}

func (l *peerList) add(p *Peer) {
	if p.listed {
		return
	}
	p.listed, p.before, p.after = true, l.last, nil
	if l.last == nil {
		l.first = p
	} else {
		l.last.after = p
	}
	l.last = p
}

func (l *peerList) remove(p *Peer) {
	if !p.listed {
		return
	}
	if p.before == nil {
		l.first = p.after
	} else {
		p.before.after = p.after
	}
	if p.after == nil {
		l.last = p.before
	} else {
		p.after.before = p.before
	}
	p.listed, p.before, p.after = false, nil, nil
}

// take returns an empty buffer. The caller holds the session's lock.
func (t *peerTable) take() *datagram {
	n := len(t.spare)
	if n == 0 {
		return new(datagram)
	}
	d := t.spare[n-1]
	t.spare = t.spare[:n-1]
	return d
}

// give takes a buffer back. The caller holds the session's lock.
func (t *peerTable) give(d *datagram) {
	if len(t.spare) < maxSpare {
		t.spare = append(t.spare, d)
	}
}
