package client

import (
	"cmp"
	"context"
	"net"
	"slices"
	"sync"
	"time"
)

// The defaults of Measure are those of the real client: five probes for each
// server, and half a second for the last answer (QoS SDK 1.3).
const (
	defaultProbes  = 5
	defaultPatient = 500 * time.Millisecond
	maxProbes      = 100
	probeGap       = 20 * time.Millisecond
)

// Site is a place whose distance [Measure] finds out.
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
	// ProbeQoS is the probe of the real client (protocol.md 5).
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
	// Patience is how long to wait after the last probe. 0 means 500 ms.
	Patience time.Duration
}

// Measure sends probes to all sites at once and returns what it found, the nearest
// first, as [SortByDistance] does. It returns early when ctx ends.
func Measure(ctx context.Context, sites []Site, cfg MeasureConfig) []Quality {
	if cfg.Probes <= 0 {
		cfg.Probes = defaultProbes
	}
	cfg.Probes = min(cfg.Probes, maxProbes)
	if cfg.Patience <= 0 {
		cfg.Patience = defaultPatient
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
