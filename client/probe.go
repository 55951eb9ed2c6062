package client

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"net"
	"sync/atomic"
	"time"

	"github.com/ferryrelay/ferry/proto"
)

// qosTitle is what a probe says of itself.
const qosTitle = "ferry"

// prober measures one site. Sending and receiving share nothing that changes but
// the times at which probes left.
type prober struct {
	conn     net.Conn
	kind     Probe
	start    time.Time
	id       uint32         // which run this is: answers to another one do not count
	left     []atomic.Int64 // when each probe left, in nanoseconds since start
	answered []bool         // the receiver's
	sum      time.Duration  // of round trips; the receiver's
}

func newProber(conn net.Conn, cfg MeasureConfig) *prober {
	var id [4]byte
	rand.Read(id[:])
	return &prober{
		conn: conn, kind: cfg.Probe, start: time.Now(), id: binary.LittleEndian.Uint32(id[:]),
		left: make([]atomic.Int64, cfg.Probes), answered: make([]bool, cfg.Probes),
	}
}

// send sends the probes and sets the time by which answers must be there.
func (p *prober) send(ctx context.Context, cfg MeasureConfig) (sent int) {
	for i := range cfg.Probes {
		if i > 0 {
			select {
			case <-ctx.Done():
			case <-time.After(probeGap):
			}
		}
		if ctx.Err() != nil {
			break
		}
		m := p.question(i)
		p.left[i].Store(int64(time.Since(p.start)))
		p.conn.Write(m) // One that the machine cannot send counts as lost.
		sent++
	}
	p.conn.SetReadDeadline(time.Now().Add(cfg.Patience))
	if ctx.Err() != nil {
		p.conn.SetReadDeadline(time.Unix(1, 0))
	}
	return sent
}

// receive takes the answers until all are there or time is over. An error that
// a closed port causes is no reason to stop before.
func (p *prober) receive(q *Quality) {
	buf := make([]byte, 512)
	for q.Received < len(p.answered) {
		n, err := p.conn.Read(buf)
		if timeout, ok := err.(net.Error); ok && timeout.Timeout() || errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil {
			time.Sleep(time.Millisecond)
			continue
		}
		i, ok := p.answers(buf[:n])
		if !ok || i >= len(p.answered) || p.answered[i] {
			continue
		}
		p.answered[i] = true
		p.sum += time.Since(p.start) - time.Duration(p.left[i].Load())
		q.Received++
	}
}

// question returns a probe.
func (p *prober) question(i int) []byte {
	if p.kind == ProbeDTLS {
		return appendShortHello(nil, uint64(p.id)+uint64(i))
	}
	return proto.QoSRequest{
		Title: []byte(qosTitle), Sequence: uint8(i), ID: uint16(p.id), Time: uint64(time.Since(p.start)),
	}.Append(nil)
}

// answers returns which probe a datagram answers, and false if it is no answer.
func (p *prober) answers(b []byte) (i int, ok bool) {
	if p.kind == ProbeDTLS {
		seq, ok := parseHelloVerify(b)
		if seq -= uint64(p.id); !ok || seq >= uint64(len(p.answered)) {
			return 0, false
		}
		return int(seq), true
	}
	m, err := proto.ParseQoSResponse(b)
	return int(m.Sequence), err == nil && m.ID == uint16(p.id)
}
