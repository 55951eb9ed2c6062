package client

import (
	"cmp"
	"context"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/ferryrelay/ferry/proto"
)

// The defaults of Measure are those of the real client: five probes for each
// server, and half a second for the last answer (QoS SDK 1.3).
const (
	defaultProbes  = 5
	defaultTimeout = 500 * time.Millisecond
	maxProbes      = 100
	probeGap       = 20 * time.Millisecond
)

// Site is a location whose round trip time [Measure] measures.
type Site struct {
	Region string
	// Addr is the UDP address of a relay there, host:port.
	Addr string
}

// Quality is how well a site can be reached.
type Quality struct {
	Site
	Sent, Received int
	// RTT is the mean round trip of those that were answered.
	RTT time.Duration
	// Err is why no probe was sent, or that answers were none of a relay. It may be nil without an answer.
	Err error
}

// Loss returns the share of probes without an answer, from 0 to 1.
func (q Quality) Loss() float64 {
	if q.Sent == 0 {
		return 1
	}
	return float64(q.Sent-q.Received) / float64(q.Sent)
}

// MeasureConfig says how Measure asks.
type MeasureConfig struct {
	// Probes is how many are sent to each site. 0 means 5; at most 100. A relay
	// answers 40 QoS probes of one address at once and 20 a second.
	Probes int
	// Timeout is how long to wait for answers after the last probe. 0 means 500 ms.
	Timeout time.Duration
}

// Measure sends probes to all sites at once and returns what it found, the nearest
// first: by round trip, then by loss. Sites that do not answer come last. It returns
// early when ctx ends.
func Measure(ctx context.Context, sites []Site, cfg MeasureConfig) []Quality {
	if cfg.Probes <= 0 {
		cfg.Probes = defaultProbes
	}
	cfg.Probes = min(cfg.Probes, maxProbes)
	if cfg.Timeout <= 0 {
		cfg.Timeout = defaultTimeout
	}
	all := make([]Quality, len(sites))
	var wg sync.WaitGroup
	for i, site := range sites {
		wg.Go(func() { all[i] = measure(ctx, site, cfg) })
	}
	wg.Wait()
	slices.SortStableFunc(all, nearer)
	return all
}

func nearer(a, b Quality) int {
	if (a.Received > 0) != (b.Received > 0) {
		return cmp.Compare(b.Received, a.Received)
	}
	return cmp.Or(cmp.Compare(a.RTT, b.RTT), cmp.Compare(a.Loss(), b.Loss()))
}

func measure(ctx context.Context, site Site, cfg MeasureConfig) Quality {
	q := Quality{Site: site}
	var dialer net.Dialer
	conn, err := dialer.DialContext(ctx, "udp", site.Addr)
	if err != nil {
		q.Err = err
		return q
	}
	defer conn.Close()
	defer context.AfterFunc(ctx, func() { conn.SetDeadline(time.Unix(1, 0)) })()
	p := newProber(conn, cfg)
	var wg sync.WaitGroup
	wg.Go(func() { p.receive(&q) })
	sent := p.send(ctx, cfg)
	wg.Wait()
	q.Sent = sent
	switch {
	case q.Received > 0:
		q.RTT = p.sum / time.Duration(q.Received)
	case p.malformed:
		q.Err = errNoRelay
	}
	return q
}

var errNoRelay = errors.New("client: it answers with something else than a relay does: another service has the address")

const qosTitle = "ferry"

// prober measures one site. Sending and receiving share nothing that changes but
// the times at which probes left.
type prober struct {
	conn     net.Conn
	start    time.Time
	id       uint16         // which run this is: answers to another one do not count
	left     []atomic.Int64 // when each probe left, in nanoseconds since start
	answered []bool         // the receiver's
	sum      time.Duration  // of round trips; the receiver's

	malformed bool // an answer was; the receiver's
}

func newProber(conn net.Conn, cfg MeasureConfig) *prober {
	var id [2]byte
	rand.Read(id[:])
	return &prober{
		conn: conn, start: time.Now(), id: binary.LittleEndian.Uint16(id[:]),
		left: make([]atomic.Int64, cfg.Probes), answered: make([]bool, cfg.Probes),
	}
}

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
	p.conn.SetReadDeadline(time.Now().Add(cfg.Timeout))
	if ctx.Err() != nil {
		p.conn.SetReadDeadline(time.Unix(1, 0))
	}
	return sent
}

// receive goes on after an error, such as one that a closed port causes.
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
		m, err := proto.ParseQoSResponse(buf[:n])
		i := int(m.Sequence)
		if err != nil {
			p.malformed = true
			continue
		}
		if m.ID != p.id || i >= len(p.answered) || p.answered[i] {
			continue
		}
		p.answered[i] = true
		p.sum += time.Since(p.start) - time.Duration(p.left[i].Load())
		q.Received++
	}
}

func (p *prober) question(i int) []byte {
	return proto.QoSRequest{
		Title: []byte(qosTitle), Sequence: uint8(i), ID: p.id, Time: uint64(time.Since(p.start)),
	}.Append(nil)
}
