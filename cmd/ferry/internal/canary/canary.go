// Package canary plays a small match through a relay again and again, over every transport, as
// players do: over the Allocations API and the public address.
package canary

import (
	"context"
	"crypto/tls"
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/VictoriaMetrics/metrics"

	"github.com/ferryrelay/ferry/alloc/api"
	"github.com/ferryrelay/ferry/internal/fleet/operator"
	"github.com/ferryrelay/ferry/proto"
)

// Config says what to play. All fields are required unless stated otherwise.
type Config struct {
	API *api.Client
	// Region to allocate in. Empty: chosen by the server.
	Region string
	// Transports are those of "udp", "dtls", "ws" and "wss" to play over.
	Transports []string
	// Interval is the time between the beginnings of two rounds of matches.
	Interval time.Duration
	// Datagrams are sent by the player of each match, and returned by the host.
	Datagrams int
	// Timeout bounds a match, from the allocation on.
	Timeout time.Duration
	// TLS is for wss. Nil: the system's authorities are trusted.
	TLS *tls.Config
	// Name is that of the canary in reports, and Report sends one, after each round. Nil: there are none.
	Name   string
	Report func(context.Context, operator.CanaryReport) error
	// Logger gets a line when a transport begins to work, fails, or works again, and likewise of reports.
	Logger *slog.Logger
}

// Transports are the values of [Config].Transports.
var Transports = []string{"udp", "dtls", "ws", "wss"}

// The steps of a match, for the metric of failures.
const (
	stepAllocate = "allocate"
	stepCode     = "joincode"
	stepJoin     = "join"
	stepOpen     = "open" // the socket, session or WebSocket
	stepBind     = "bind"
	stepConnect  = "connect"
	stepRelay    = "relay"
	stepClose    = "close"
)

var steps = []string{stepAllocate, stepCode, stepJoin, stepOpen, stepBind, stepConnect, stepRelay, stepClose}

// stepError is the failure of a step.
type stepError struct {
	step string
	err  error
}

func (e *stepError) Error() string {
	return e.step + ": " + strings.TrimPrefix(e.err.Error(), e.step+": ")
}
func (e *stepError) Unwrap() error { return e.err }

// Canary plays matches. Run may be called once.
type Canary struct {
	cfg        Config
	set        *metrics.Set
	transports []*transport
	began      time.Time
	unreported bool // the last report failed
}

// transport has the metrics of one transport, and whether its last match succeeded.
type transport struct {
	name                 string
	ok                   *metrics.Counter
	failed               map[string]*metrics.Counter
	sent, lost           *metrics.Counter
	roundTrip, preparing *histogram
	lastOK               *metrics.Gauge
	hour                 hour

	played, works bool
}

// New checks the configuration and connects nowhere.
func New(cfg Config) (*Canary, error) {
	p := &Canary{cfg: cfg, set: metrics.NewSet()}
	for _, name := range cfg.Transports {
		if !slices.Contains(Transports, name) {
			return nil, fmt.Errorf("canary: %q is not udp, dtls, ws or wss", name)
		}
		label := func(metric, more string) string {
			return fmt.Sprintf("ferry_canary_%s{transport=%q%s}", metric, name, more)
		}
		w := &transport{
			name: name, ok: p.set.NewCounter(label("matches_total", `,result="ok"`)), failed: map[string]*metrics.Counter{},
			sent: p.set.NewCounter(label("datagrams_total", "")), lost: p.set.NewCounter(label("lost_total", "")),
			roundTrip: newHistogram(p.set, "round_trip_seconds", label),
			preparing: newHistogram(p.set, "preparation_seconds", label),
			lastOK:    p.set.NewGauge(label("last_success_seconds", ""), nil),
		}
		for _, step := range steps {
			w.failed[step] = p.set.NewCounter(label("matches_total", fmt.Sprintf(",result=%q", step)))
		}
		p.transports = append(p.transports, w)
	}
	switch {
	case len(p.transports) == 0:
		return nil, errors.New("canary: no transport to play over")
	case cfg.Datagrams < 1 || cfg.Datagrams > 10_000:
		return nil, fmt.Errorf("canary: %d datagrams are not within 1 and 10000", cfg.Datagrams)
	case cfg.Interval < time.Second || cfg.Interval > time.Hour:
		return nil, fmt.Errorf("canary: an interval of %v is not within 1s and 1h", cfg.Interval)
	case cfg.Timeout < time.Second || cfg.Timeout > time.Minute:
		return nil, fmt.Errorf("canary: a timeout of %v is not within 1s and 1m", cfg.Timeout)
	}
	return p, nil
}

// ServeHTTP serves the metrics.
func (p *Canary) ServeHTTP(w http.ResponseWriter, _ *http.Request) {
	w.Header().Set("Content-Type", "text/plain; version=0.0.4; charset=utf-8")
	p.set.WritePrometheus(w)
}

// Run plays until ctx ends.
func (p *Canary) Run(ctx context.Context) {
	ticker := time.NewTicker(p.cfg.Interval)
	defer ticker.Stop()
	p.began = time.Now()
	for {
		for _, w := range p.transports {
			p.play(ctx, w)
		}
		p.report(ctx)
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
	}
}

// report sends a report. It logs the first failure of several.
func (p *Canary) report(ctx context.Context) {
	if p.cfg.Report == nil || ctx.Err() != nil {
		return
	}
	r := operator.CanaryReport{Name: p.cfg.Name, Interval: p.cfg.Interval.Seconds(), Since: p.began}
	if hourAgo := time.Now().Add(-reportOver); hourAgo.After(r.Since) {
		r.Since = hourAgo
	}
	for _, w := range p.transports {
		r.Transports = append(r.Transports, w.hour.report(w.name))
	}
	err := p.cfg.Report(ctx, r)
	switch {
	case ctx.Err() != nil:
	case err != nil && !p.unreported:
		p.cfg.Logger.Error("the report was not taken", "error", err)
	case err == nil && p.unreported:
		p.cfg.Logger.Info("reports are taken again")
	}
	p.unreported = err != nil
}

// play plays one match and counts its result. A match that ctx interrupts does not count.
func (p *Canary) play(ctx context.Context, w *transport) {
	within, cancel := context.WithTimeout(ctx, p.cfg.Timeout)
	defer cancel()
	began := time.Now()
	untilIn, err := p.match(within, w)
	if ctx.Err() != nil {
		return
	}
	if err == nil {
		w.hour.add(played{began, untilIn}, "")
	} else {
		w.hour.add(played{at: began}, err.Error())
	}
	log, was, first := p.cfg.Logger.With("transport", w.name), w.works, !w.played
	w.played, w.works = true, err == nil
	var failed *stepError
	switch {
	case errors.As(err, &failed):
		w.failed[failed.step].Inc()
		if was || first {
			log.Error("a match failed", "step", failed.step, "error", failed.err)
		}
	default:
		w.ok.Inc()
		w.lastOK.Set(float64(time.Now().Unix()))
		if first {
			log.Info("a match was played")
		} else if !was {
			log.Info("matches are played again")
		}
	}
}

// match plays one match over a transport. It returns the time until the player was in.
func (p *Canary) match(ctx context.Context, w *transport) (untilIn time.Duration, err error) {
	began := time.Now()
	fail := func(step string, err error) (time.Duration, error) { return 0, &stepError{step, err} }
	allocation, err := p.cfg.API.Allocate(ctx, api.AllocateRequest{MaxConnections: 1, Region: p.cfg.Region})
	if err != nil {
		return fail(stepAllocate, err)
	}
	w.hour.region = allocation.Region
	code, err := p.cfg.API.JoinCode(ctx, allocation.AllocationID)
	if err != nil {
		return fail(stepCode, err)
	}
	joined, err := p.cfg.API.Join(ctx, code)
	if err != nil {
		return fail(stepJoin, err)
	}
	var players [2]*player
	for i, a := range []api.Allocation{allocation, joined} {
		if players[i], err = openPlayer(ctx, w.name, a, p.cfg.TLS); err != nil {
			return fail(stepOpen, err)
		}
		defer players[i].conn.Close()
		if err := players[i].bind(ctx); err != nil {
			return fail(stepBind, err)
		}
	}
	host, joiner := players[0], players[1]
	if err := joiner.connect(ctx); err != nil {
		return fail(stepConnect, err)
	}
	untilIn = time.Since(began)
	w.preparing.update(untilIn.Seconds())
	lost, err := p.exchange(ctx, w, host, joiner)
	if err != nil {
		return fail(stepRelay, err)
	}
	if lost == p.cfg.Datagrams {
		return fail(stepRelay, fmt.Errorf("all %d datagrams were lost", lost))
	}
	for _, x := range players {
		if err := x.conn.send(proto.Close{ID: x.id}.Append(nil)); err != nil {
			return fail(stepClose, err)
		}
	}
	return untilIn, nil
}

// exchangePace is the time between two datagrams of a player: 30 a second, as in a game.
const exchangePace = time.Second / 30

// lostAfter is when a datagram that has not come back counts as lost.
const lostAfter = time.Second

// exchange sends datagrams from the joiner to the host, which returns them, and counts those
// that do not come back. An error is that of a connection.
func (p *Canary) exchange(ctx context.Context, w *transport, host, joiner *player) (lost int, err error) {
	ctx, cancel := context.WithCancel(ctx)
	echoing := make(chan error, 1)
	go func() { echoing <- host.echo(ctx) }()
	defer func() {
		cancel()
		host.conn.interrupt()
		<-echoing
	}()
	payload := make([]byte, 64)
	for i := range p.cfg.Datagrams {
		binary.BigEndian.PutUint32(payload, uint32(i))
		sent := time.Now()
		if err := joiner.conn.send(proto.Relay{From: joiner.id, To: host.id, Payload: payload}.Append(nil)); err != nil {
			return lost, err
		}
		w.sent.Inc()
		switch came, err := joiner.awaitEcho(ctx, host.id, uint32(i), sent.Add(lostAfter)); {
		case err != nil:
			return lost, err
		case came:
			w.roundTrip.update(time.Since(sent).Seconds())
		default:
			w.lost.Inc()
			lost++
		}
		select {
		case <-ctx.Done():
			return lost, ctx.Err()
		case <-time.After(time.Until(sent.Add(exchangePace))):
		}
	}
	return lost, nil
}
