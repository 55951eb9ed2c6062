package demo

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"time"
)

const (
	// MaxPlayers and MaxDuration bound a demo.
	MaxPlayers  = 1000
	MaxDuration = time.Hour
	// rate is how many datagrams a second each side sends.
	rate = 30
	// gatherWithin is how long it may take until all are connected.
	gatherWithin = 30 * time.Second
	// drainWithin is how long datagrams may be on their way after the last one
	// was sent.
	drainWithin = 3 * time.Second
)

// Options say what is played.
type Options struct {
	// Players is how many join the host, 1 to MaxPlayers.
	Players int
	// Duration is how long they exchange datagrams, at most MaxDuration.
	Duration time.Duration
	// JSON writes one JSON object instead of text.
	JSON bool
	// Logger is that of the relay. Required.
	Logger *slog.Logger

	// exchanging, for tests, is called when the exchange begins, with what
	// stops the relay.
	exchanging func(stopRelay func())
}

var (
	// ErrOptions is wrapped by the refusal of options.
	ErrOptions = errors.New("demo: players have to be 1 to 1000, the time more than 0 and at most an hour")
	// ErrLost is wrapped by the verdict on a match in which datagrams were lost.
	ErrLost = errors.New("demo: not every datagram arrived")
	// ErrRelayStopped is wrapped by the verdict on a match whose relay ended
	// before it.
	ErrRelayStopped = errors.New("demo: the relay stopped in the middle of the match")
)

// Run plays a match and writes what came of it to w. It returns nil if every
// datagram that should arrive did, and has nothing running any more when it
// returns.
func Run(ctx context.Context, w io.Writer, o Options) error {
	if o.Players < 1 || o.Players > MaxPlayers || o.Duration <= 0 || o.Duration > MaxDuration {
		return ErrOptions
	}
	ctx, fail := context.WithCancelCause(ctx)
	defer fail(nil)
	out := printer{w: w, json: o.JSON}

	s, err := startServer(ctx, o, fail)
	if err != nil {
		return out.finish(Report{}, err)
	}
	defer s.stop()
	out.line("relay udp=%v http=%s", s.relay.Engine().Addr(), s.api)

	m := newMatch(s.api, o, fail)
	defer m.leave()
	if err := m.gather(ctx); err != nil {
		return out.finish(m.report(), err)
	}
	out.line("join code %s", m.code)
	out.line("%d players have joined; each side sends %d datagrams a second for %v", o.Players, rate, o.Duration)
	if o.exchanging != nil {
		o.exchanging(s.cancel)
	}
	err = m.exchange(ctx)
	m.leave()
	report := m.report()
	if err == nil {
		err = report.verdict()
	}
	return out.finish(report, err)
}

// cause returns the cause of the end of ctx.
func cause(ctx context.Context) error {
	if err := context.Cause(ctx); !errors.Is(err, context.Canceled) {
		return err
	}
	return fmt.Errorf("demo: interrupted: %w", context.Canceled)
}
