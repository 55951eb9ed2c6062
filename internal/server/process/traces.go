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

// newTracer returns the tracer of the settings, nil if they name no collector. It opens no
// connection.
func newTracer(o *Options) (*otlp.Tracer, error) {
	if o.Config.TraceURL == "" {
		return nil, nil
	}
	cfg := traceConfig(&o.Config, o.Logger)
	instance := hostname()
	if o.Mode.hasRelay() {
		instance = o.Identity.Relay.String()
	}
	cfg.Attributes = []string{
		"service.name", "ferry", "service.version", o.Version, "service.instance.id", instance, "ferry.mode", o.Mode.String(),
	}
	tracer, err := otlp.New(cfg)
	if err != nil {
		return nil, fmt.Errorf("app: trace_url: %w", err)
	}
	o.Logger.Info("API calls are traced", "trace_url", o.Config.TraceURL, "trace_ratio", o.Config.TraceRatio.String())
	return tracer, nil
}

// traceCalls traces the calls of a server, if there is a tracer.
func traceCalls(w *web, tracer *otlp.Tracer) {
	if tracer != nil {
		w.server.BaseContext = func(net.Listener) context.Context { return trace.WithTracer(context.Background(), tracer) }
	}
}
