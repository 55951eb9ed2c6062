package hooks

import (
	"cmp"
	"context"
	"crypto/rand"
	"encoding/json"
	"fmt"
	"log/slog"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"github.com/ferryrelay/ferry/internal/outcall"
)

// The defaults of [WebhookConfig].
const (
	DefaultQueue    = 4096
	DefaultSenders  = 4
	DefaultAttempts = 5
	DefaultBackoff  = time.Second
)

// EventHeader is the name of the header with the id of an event.
const EventHeader = "Ferry-Event-Id"

// WebhookConfig is what [Webhooks] are made of. Zero stands for the defaults.
type WebhookConfig struct {
	// URL is whom to tell: https, or http on this machine, or with AllowPrivate on
	// a private network.
	URL          string
	AllowPrivate bool
	// Secret signs events. Required.
	Secret []byte
	// Queue is how many events wait at most, Senders how many are sent at once.
	Queue, Senders int
	// Attempts is how often an event is sent at most. Backoff is the wait after
	// the first attempt; it doubles with each further one.
	Attempts int
	Backoff  time.Duration
	// Timeout bounds one attempt; 0 means 5 s.
	Timeout time.Duration
	// Transport replaces the way to the network, for tests. Nil: an own one.
	Transport http.RoundTripper
	// Logger gets dropped events. Nil: no log.
	Logger *slog.Logger
	// Now is the clock. Nil: time.Now.
	Now func() time.Time
}

// Webhooks tell a program of the operator's what happens. Many goroutines may
// send; what waits is in a channel, target and counters are atomic.
type Webhooks struct {
	cfg    WebhookConfig
	target atomic.Pointer[Target]
	queue  chan Event

	sent, retried, full, failed atomic.Uint64
	lastFull                    atomic.Int64 // Unix time of the last word about a full queue
}

// NewWebhooks returns webhooks, or an error that wraps ErrConfig. Nothing is sent
// before Run.
func NewWebhooks(cfg WebhookConfig) (*Webhooks, error) {
	cfg.setDefaults()
	t, err := NewTarget(cfg)
	if err != nil {
		return nil, err
	}
	w := &Webhooks{cfg: cfg, queue: make(chan Event, cfg.Queue)}
	w.target.Store(t)
	return w, nil
}

// setDefaults fills in what zero stands for.
func (c *WebhookConfig) setDefaults() {
	c.Queue, c.Senders = cmp.Or(c.Queue, DefaultQueue), cmp.Or(c.Senders, DefaultSenders)
	c.Attempts, c.Backoff = cmp.Or(c.Attempts, DefaultAttempts), cmp.Or(c.Backoff, DefaultBackoff)
	if c.Now == nil {
		c.Now = time.Now
	}
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
}

// Send queues an event, which gets an id and a time if it has none. It does not
// block: where too many wait, the event is dropped and counted.
func (w *Webhooks) Send(e Event) {
	if e.ID == "" {
		e.ID = rand.Text()
	}
	if e.Time.IsZero() {
		e.Time = w.cfg.Now()
	}
	select {
	case w.queue <- e:
	default:
		w.full.Add(1)
		w.sayFull()
	}
}

// sayFull complains once a minute, since Send is called for each event.
func (w *Webhooks) sayFull() {
	now, last := w.cfg.Now().Unix(), w.lastFull.Load()
	if now-last >= 60 && w.lastFull.CompareAndSwap(last, now) {
		w.cfg.Logger.Warn("webhooks: events are dropped, since too many wait", "host", w.target.Load().endpoint.Host(), "dropped", w.full.Load())
	}
}

// Run sends events until ctx ends. What waits then is lost, and counted as
// failed. No goroutine is left when it returns.
func (w *Webhooks) Run(ctx context.Context) {
	var senders sync.WaitGroup
	for range w.cfg.Senders {
		senders.Go(func() { w.sendAll(ctx) })
	}
	senders.Wait()
	w.target.Load().endpoint.Close()
	for {
		select {
		case <-w.queue:
			w.failed.Add(1)
		default:
			return
		}
	}
}

func (w *Webhooks) sendAll(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case e := <-w.queue:
			w.deliver(ctx, e)
		}
	}
}

// deliver sends one event until it is heard, or for the last time.
func (w *Webhooks) deliver(ctx context.Context, e Event) {
	body, err := json.Marshal(e)
	for attempt := 1; err == nil; attempt++ {
		if err = w.attempt(ctx, e.ID, body); err == nil {
			w.sent.Add(1)
			return
		}
		if attempt >= w.cfg.Attempts {
			break
		}
		select {
		case <-ctx.Done(): // It was the last one.
		case <-time.After(w.cfg.Backoff << (attempt - 1)):
			w.retried.Add(1)
			err = nil
		}
	}
	w.failed.Add(1)
	w.cfg.Logger.Warn("webhooks: an event was dropped", "type", string(e.Type), "id", e.ID, "error", err)
}

// attempt returns nil if the receiver has acknowledged the event.
func (w *Webhooks) attempt(ctx context.Context, id string, body []byte) error {
	t, header := w.target.Load(), make(http.Header)
	header.Set(SignatureHeader, Sign(t.secret, body, w.cfg.Now()))
	header.Set(EventHeader, id)
	a, err := t.endpoint.Post(ctx, header, body, maxAnswer)
	if err == nil && a.Status/100 != 2 {
		err = fmt.Errorf("%s answered with status %d", t.endpoint.Host(), a.Status)
	}
	return err
}

// WebhookStats are counts since the start.
type WebhookStats struct {
	Sent    uint64 // heard
	Retried uint64 // attempts after the first
	Full    uint64 // dropped since too many waited
	Failed  uint64 // dropped after the last attempt, or at the end
	Waiting int
}

// Stats returns the counts.
func (w *Webhooks) Stats() WebhookStats {
	return WebhookStats{w.sent.Load(), w.retried.Load(), w.full.Load(), w.failed.Load(), len(w.queue)}
}

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

// SetTarget sends to t from the next attempt on, queued events included. An attempt in
// progress completes at the old target.
func (w *Webhooks) SetTarget(t *Target) { w.target.Swap(t).endpoint.Close() }
