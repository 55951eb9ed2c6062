package hooks

import (
	"fmt"

	"github.com/ferryrelay/ferry/internal/outcall"
)

// Target is whom [Webhooks] tell, and how they sign. It does not change.
type Target struct {
	endpoint *outcall.Endpoint
	secret   []byte
}

// NewTarget returns the target that a configuration names, or an error that
// wraps ErrConfig. It connects to nothing.
func NewTarget(cfg WebhookConfig) (*Target, error) {
	cfg.setDefaults()
	if err := checkSecret(cfg.Secret); err != nil {
		return nil, err
	}
	e, err := outcall.New(outcall.Config{
		URL: cfg.URL, AllowPrivate: cfg.AllowPrivate, Timeout: cfg.Timeout,
		KeepAlive: cfg.Senders, Transport: cfg.Transport,
	})
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrConfig, err)
	}
	return &Target{e, cfg.Secret}, nil
}

// Aim has t told from the next attempt on, of what waits too. An attempt that is
// under way ends where it began.
func (w *Webhooks) Aim(t *Target) { w.target.Swap(t).endpoint.Close() }
