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
	// Region is its name.
	Region string
	// Addr is the UDP address of a relay there, host:port.
	Addr string
}

// Quality is how well a site can be reached.
type Quality struct {
	Site
	// Sent and Received count probes.
	Sent, Received int
	// RTT is the mean round trip of those that were answered.
	RTT time.Duration
	// Err is why no probe was sent, or nil.
	Err error
}

// Loss returns the share of probes without an answer, from 0 to 1.
func (q Quality) Loss() float64 {
	if q.Sent == 0 {
		return 1
	}
	return float64(q.Sent-q.Received) / float64(q.Sent)
}

// Probe is what Measure asks a relay with.
type Probe uint8

// The probes.
const (
	// ProbeQoS is the probe that Unity's QoS package sends.
	ProbeQoS Probe = iota
	// ProbeDTLS is a ClientHello without a cookie, and so short that a server may
	// only answer it with a cookie (RFC 6347 4.2.1). That is the first round trip of
	// every handshake; it needs no key, and a Ferry relay remembers nothing of it.
	ProbeDTLS
)

// MeasureConfig says how Measure asks.
type MeasureConfig struct {
	// Probe is what is sent. The zero value is ProbeQoS.
	Probe Probe
	// Probes is how many are sent to each site. 0 means 5; at most 100. A relay
	// answers 40 QoS probes of one address at once and 20 a second.
	Probes int
	// Timeout is how long to wait for answers after the last probe. 0 means 500 ms.
	Timeout time.Duration
}

// Measure sends probes to all sites at once and returns what it found, the nearest
// first, as [SortByDistance] does. It returns early when ctx ends.
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
	SortByDistance(all)
	return all
}

// SortByDistance puts the nearest site first: by round trip, then by loss. Sites
// that do not answer come last.
func SortByDistance(all []Quality) { slices.SortStableFunc(all, nearer) }

// nearer orders by what a player feels.
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
	if q.Received > 0 {
		q.RTT = p.sum / time.Duration(q.Received)
	}
	return q
}

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
	p.conn.SetReadDeadline(time.Now().Add(cfg.Timeout))
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

// What is needed of DTLS 1.2 for its first round trip, RFC 6347 4.1 to 4.2.2.
const (
	dtlsHandshake    = 22
	dtlsVersion      = 0xFEFD
	dtlsHeader       = 13 // type, version, epoch and sequence number, length
	dtlsMessage      = 12 // type, length, number, offset and length of the fragment
	dtlsRandom       = 32
	clientHello      = 1
	helloVerify      = 3
	pskAES128GCM     = 0x00A8 // TLS_PSK_WITH_AES_128_GCM_SHA256, RFC 5487
	shortHelloBody   = 2 + dtlsRandom + 1 + 1 + 2 + 2 + 1 + 1
	helloVerifyLeast = dtlsHeader + dtlsMessage + 3
)

// appendShortHello appends a datagram of 67 bytes with a ClientHello that has one
// cipher suite and no extensions. A ServerHello would be longer, so that a server
// that amplifies nothing asks for a cookie.
func appendShortHello(dst []byte, seq uint64) []byte {
	dst = append(dst, dtlsHandshake)
	dst = binary.BigEndian.AppendUint16(dst, dtlsVersion)
	dst = binary.BigEndian.AppendUint64(dst, seq)
	dst = binary.BigEndian.AppendUint16(dst, dtlsMessage+shortHelloBody)
	dst = append(dst, clientHello, 0, 0, shortHelloBody, 0, 0, 0, 0, 0, 0, 0, shortHelloBody)
	dst = binary.BigEndian.AppendUint16(dst, dtlsVersion)
	var random [dtlsRandom]byte
	rand.Read(random[:])
	dst = append(dst, random[:]...)
	dst = append(dst, 0, 0, 0, 2) // no session, no cookie, suites of two bytes
	dst = binary.BigEndian.AppendUint16(dst, pskAES128GCM)
	return append(dst, 1, 0) // no compression
}

// parseHelloVerify returns the sequence number of a HelloVerifyRequest, which is
// that of the hello it answers (RFC 6347 4.2.1).
func parseHelloVerify(b []byte) (seq uint64, ok bool) {
	if len(b) < helloVerifyLeast || b[0] != dtlsHandshake || b[dtlsHeader] != helloVerify {
		return 0, false
	}
	return binary.BigEndian.Uint64(b[3:]), int(binary.BigEndian.Uint16(b[11:])) == len(b)-dtlsHeader
}
