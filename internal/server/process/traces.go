package process

import (
	"context"
	"fmt"
	"log/slog"
	"net"

	"github.com/ferryrelay/ferry/internal/base/trace"
	"github.com/ferryrelay/ferry/internal/server/config"
	"github.com/ferryrelay/ferry/internal/server/observe/otlp"
)

// traceConfig returns the configuration of traces. There are none if its URL is empty.
func traceConfig(c *config.Config, log *slog.Logger) otlp.Config {
	return otlp.Config{URL: c.TraceURL, Ratio: float64(c.TraceRatio), Logger: log}
}

// checkTraces checks the settings of traces.
func checkTraces(c *config.Config) error {
	if c.TraceURL == "" {
		return nil
	}
	cfg := traceConfig(c, nil)
	if err := cfg.Validate(); err != nil {
		return fmt.Errorf("app: trace_url, trace_ratio: %w", err)
	}
	return nil
}

// buildTraces creates the tracer, if the settings name a collector. It is the first
// component, so it outlives all others and exports their last spans.
func (a *App) buildTraces() (err error) {
	if a.opts.Config.TraceURL == "" {
		return nil
	}
	cfg := traceConfig(&a.opts.Config, a.opts.Logger)
	instance := hostname()
	if a.opts.Mode.hasRelay() {
		instance = a.opts.Identity.Relay.String()
	}
	cfg.Attributes = []string{
		"service.name", "ferry", "service.version", a.opts.Version, "service.instance.id", instance,
		"ferry.mode", a.opts.Mode.String(),
	}
	if a.tracer, err = otlp.New(cfg); err != nil {
		return fmt.Errorf("app: trace_url: %w", err)
	}
	a.addComponent(component{"traces", a.tracer.Run, func() error { return nil }})
	a.opts.Logger.Info("API calls are traced", "trace_url", a.opts.Config.TraceURL, "trace_ratio", a.opts.Config.TraceRatio.String())
	return nil
}

// trace traces the calls of a server, if there is a tracer.
func (a *App) trace(w *web) {
	if a.tracer != nil {
		w.server.BaseContext = func(net.Listener) context.Context {
			return trace.WithTracer(context.Background(), a.tracer)
		}
	}
}

// traceInterface returns the tracer, nil if there is none.
func (a *App) traceInterface() trace.Tracer {
	if a.tracer == nil {
		return nil
	}
	return a.tracer
}
