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

	"github.com/ferryrelay/ferry/alloc"
	"github.com/ferryrelay/ferry/internal/server/players/outcall"
)

const (
	DefaultQueue    = 4096
	DefaultSenders  = 4
	DefaultAttempts = 5
	DefaultBackoff  = time.Second
)

const EventHeader = "Ferry-Event-Id"

// WebhookConfig configures [Webhooks] and a [Target]. A zero field selects its default.
type WebhookConfig struct {
	// URL is the address of the receiver: https, or http on loopback or a private
	// network. A target needs it and a secret.
	URL    string
	Secret []byte
	// Queue is the capacity of the queue in events, Senders the number of events
	// that are sent concurrently. 0: 4096 and 4.
	Queue, Senders int
	// Attempts is the maximum number of attempts for an event. Backoff is the wait
	// after the first attempt; it doubles after each further one. 0: 5 and 1 s.
	Attempts int
	Backoff  time.Duration
	// Timeout bounds one attempt; 0 means 5 s.
	Timeout   time.Duration
	Transport http.RoundTripper
	// Logger gets dropped events. Nil: no log.
	Logger *slog.Logger
	Now    func() time.Time
}

// Webhooks send events to a program of the operator. They may be used concurrently.
type Webhooks struct {
	cfg    WebhookConfig
	target atomic.Pointer[Target]
	queue  chan *Event

	sent, retried, full, failed atomic.Uint64
	cut                         atomic.Uint64 // of failed: being sent when the process ended
	lastFullLog, lastFailedLog  atomic.Int64  // Unix times of the last log messages about them
}

// NewWebhooks sends no event before Run. There must be a target, see SetTarget, before the first one.
func NewWebhooks(cfg WebhookConfig) *Webhooks {
	cfg.setDefaults()
	return &Webhooks{cfg: cfg, queue: make(chan *Event, cfg.Queue)}
}

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

// Send queues an event, and sets its id and time if they are unset. It does not
// block: if the queue is full, the event is dropped and counted.
func (w *Webhooks) Send(e Event) {
	if e.ID == "" {
		e.ID = rand.Text()
	}
	if e.Time.IsZero() {
		e.Time = w.cfg.Now()
	}
	select {
	case w.queue <- &e:
	default:
		w.full.Add(1)
		w.logFull()
	}
}

func (w *Webhooks) logFull() {
	if w.mayLog(&w.lastFullLog) {
		w.cfg.Logger.Warn("webhooks: the queue is full; events are dropped", "host", w.target.Load().endpoint.Host(), "dropped", w.full.Load())
	}
}

// mayLog reports whether the last line of that kind was a minute ago.
func (w *Webhooks) mayLog(last *atomic.Int64) bool {
	now, at := w.cfg.Now().Unix(), last.Load()
	return now-at >= 60 && last.CompareAndSwap(at, now)
}

// Run sends events until ctx is done. It drops the events that are then queued and
// counts them as failed. All its goroutines have ended when it returns.
func (w *Webhooks) Run(ctx context.Context) {
	var senders sync.WaitGroup
	for range w.cfg.Senders {
		senders.Go(func() { w.sendAll(ctx) })
	}
	senders.Wait()
	if t := w.target.Load(); t != nil {
		t.endpoint.Close()
	}
	unsent := uint64(len(w.queue))
	if unsent += w.cut.Load(); unsent > 0 {
		w.cfg.Logger.Warn("webhooks: the process ends before events were sent", "dropped", unsent)
	}
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

func (w *Webhooks) deliver(ctx context.Context, e *Event) {
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
		case <-ctx.Done():
		case <-time.After(w.cfg.Backoff << (attempt - 1)):
			w.retried.Add(1)
			err = nil
		}
	}
	failed := w.failed.Add(1)
	switch {
	case ctx.Err() != nil:
		w.cut.Add(1)
	case w.mayLog(&w.lastFailedLog):
		w.cfg.Logger.Warn("webhooks: events are dropped after all attempts", "dropped", failed, "type", string(e.Type), "id", e.ID, "error", err)
	}
}

func (w *Webhooks) attempt(ctx context.Context, id string, body []byte) error {
	t, header := w.target.Load(), make(http.Header)
	header.Set(SignatureHeader, Sign(t.secret, body, w.cfg.Now()))
	header.Set(EventHeader, id)
	a, err := t.endpoint.Post(ctx, header, body, maxResponse)
	if err == nil && a.Status/100 != 2 {
		err = fmt.Errorf("%s answered with status %d", t.endpoint.Host(), a.Status)
	}
	return err
}

type WebhookStats struct {
	Sent    uint64 // acknowledged by the receiver
	Retried uint64 // attempts after the first
	Full    uint64 // dropped because the queue was full
	Failed  uint64 // dropped after the last attempt, or at the end of Run
	Waiting int    // queued now
}

// Stats returns the counts. It may be called at any time.
func (w *Webhooks) Stats() WebhookStats {
	return WebhookStats{w.sent.Load(), w.retried.Load(), w.full.Load(), w.failed.Load(), len(w.queue)}
}

// Target is the receiver of [Webhooks] and the secret of their signatures. It is
// immutable.
type Target struct {
	endpoint *outcall.Endpoint
	secret   []byte
}

// NewTarget opens no connection. Its errors wrap ErrConfig.
func NewTarget(cfg WebhookConfig) (*Target, error) {
	cfg.setDefaults()
	if err := checkSecret(cfg.Secret); err != nil {
		return nil, err
	}
	e, err := outcall.New(outcall.Config{
		URL: cfg.URL, AllowPrivate: true, Timeout: cfg.Timeout,
		KeepAlive: cfg.Senders, Transport: cfg.Transport,
	})
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrConfig, err)
	}
	return &Target{e, cfg.Secret}, nil
}

// SetTarget makes t the target of all further attempts, including those of queued
// events. An attempt in progress completes at the old target.
func (w *Webhooks) SetTarget(t *Target) {
	if old := w.target.Swap(t); old != nil {
		old.endpoint.Close()
	}
}

type Type string

const (
	// Allocated: an allocation was reserved, for a host or for a joining player.
	Allocated Type = "allocated"
	// Bound: the client bound its allocation, for the first time or from a new address.
	Bound Type = "bound"
	// Joined: a player was connected to its host; Allocation is the player's.
	Joined Type = "joined"
	// Left: that connection was closed; Allocation is the side that closed it.
	Left Type = "left"
	// Ended: the allocation has ended, and its connections with it. They have no Left
	// events.
	Ended Type = "ended"
)

type Event struct {
	// ID does not change when an event is sent again.
	ID   string    `json:"id"`
	Type Type      `json:"type"`
	Time time.Time `json:"time"`
	// Allocation is the subject. Peer is the other side of Joined and Left, and the
	// host of a joining player's Allocated.
	Allocation string `json:"allocation"`
	Peer       string `json:"peer,omitempty"`
	Role       string `json:"role,omitempty"` // "host" or "joiner"
	// The following fields belong to Allocated. Project, Environment and Player are also in
	// Ended: the former if the relay knows the name, the latter if this process reserved it.
	Project        string `json:"project,omitempty"`
	Environment    string `json:"environment,omitempty"`
	Player         string `json:"player,omitempty"`
	Kind           string `json:"kind,omitempty"`
	Region         string `json:"region,omitempty"`
	MaxConnections int    `json:"maxConnections,omitempty"`
	// The following fields belong to Ended. PlayerSeconds is the time from the reservation, of an
	// allocation that was bound; Datagrams and Bytes are what its owner sent and the relay forwarded,
	// without UDP and IP headers. All three begin at zero when an allocation comes back after a restart.
	Reason        string  `json:"reason,omitempty"`
	PlayerSeconds float64 `json:"playerSeconds,omitempty"`
	Datagrams     uint64  `json:"datagrams,omitempty"`
	Bytes         uint64  `json:"bytes,omitempty"`
}

// EventOf returns the event of a reservation.
func EventOf(r alloc.ReservationEvent) Event {
	q := r.Request
	e := Event{
		Type: Allocated, Allocation: r.ID.String(), Role: q.Role.String(),
		Project: q.Caller.Tenant.Project, Environment: q.Caller.Tenant.Environment,
		Player: q.Caller.Player, Kind: kindOf(q.Caller),
		Region: q.Region, MaxConnections: q.MaxConnections,
	}
	if !q.Host.IsZero() {
		e.Peer = q.Host.String()
	}
	return e
}
