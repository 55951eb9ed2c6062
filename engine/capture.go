package engine

import (
	"context"
	"errors"
	"maps"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"github.com/ferryrelay/ferry/alloc"
	"github.com/ferryrelay/ferry/engine/internal/table"
	"github.com/ferryrelay/ferry/internal/net/endpoint"
	"github.com/ferryrelay/ferry/internal/privateapi"
	"github.com/ferryrelay/ferry/proto"
)

const (
	// captureQueue is some 6 MB: a host with 100 players at 60 messages a second fills it in a
	// third of a second.
	captureQueue     = 4096
	maxUndecided     = 256
	maxCapturedPeers = 4096
)

func (s private) Capture(ctx context.Context, id proto.AllocationID, each func(*privateapi.Captured) error) (lost uint64, err error) {
	t := &tap{queue: make(chan *privateapi.Captured, captureQueue), localAddr: s.localAddr, names: s.shared.rules.transports}
	if err := s.onControl(ctx, func(c *control) error { return c.beginCapture(t, id) }); err != nil {
		return 0, err
	}
	err = s.readCapture(ctx, t, each)
	err = errors.Join(err, s.onControl(context.WithoutCancel(ctx), func(c *control) error { c.endCapture(t); return nil }))
	if err == nil {
		err = t.drain(each)
	}
	return t.lost.Load(), err
}

func (s *Server) readCapture(ctx context.Context, t *tap, each func(*privateapi.Captured) error) error {
	for at := uint32(0); ; {
		page, next, err := s.Allocations(ctx, Filter{Match: t.match}, at, 0)
		if err != nil {
			return err
		}
		if err := s.onControl(ctx, func(c *control) error { c.tapAllocations(t, page); return nil }); err != nil {
			return err
		}
		if at = next; at == 0 {
			break
		}
	}
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-s.stopped:
			return ErrNotRunning
		case m := <-t.queue:
			if err := each(m); err != nil {
				return err
			}
		}
	}
}

func (c *control) beginCapture(t *tap, id proto.AllocationID) error {
	e, ok := c.shared.table.ByID(id)
	if !ok {
		return alloc.ErrNotFound
	}
	t.match = c.shared.table.Account(e.Handle).Match
	t.ids.Store(&map[proto.AllocationID]bool{t.match: true})
	t.endpoints = map[endpoint.Endpoint]bool{}
	if !c.shared.tap.CompareAndSwap(nil, t) {
		return privateapi.ErrCapture
	}
	return nil
}

func (c *control) tapAllocations(t *tap, page []Allocation) {
	for i := range page {
		t.addID(page[i].ID)
		if e, ok := c.shared.table.ByID(page[i].ID); ok {
			t.mu.Lock()
			t.addEndpoint(e.Endpoint)
			t.mu.Unlock()
			c.nextHops.open(e.Handle)
		}
	}
}

func (c *control) endCapture(t *tap) {
	if !c.shared.tap.CompareAndSwap(t, nil) {
		return
	}
	for id := range *t.ids.Load() {
		if e, ok := c.shared.table.ByID(id); ok {
			c.nextHops.open(e.Handle)
		}
	}
}

// tap collects the messages of one match. Workers and control block for no longer than a copy.
type tap struct {
	match     proto.AllocationID
	queue     chan *privateapi.Captured
	lost      atomic.Uint64
	localAddr func(endpoint.Endpoint) (netip.AddrPort, bool)
	names     *[endpoint.Kinds]string // of transports, by the kind of endpoints

	// ids are the known allocations of the match, which may have ended. A set is never
	// changed, so that a worker needs no lock for the messages of other matches.
	ids atomic.Pointer[map[proto.AllocationID]bool]

	mu        sync.Mutex // guards what follows, and changes of ids
	endpoints map[endpoint.Endpoint]bool
	undecided []undecided            // the oldest first
	byControl []*privateapi.Captured // sent in this round of control, which come after what it decides
}

type undecided struct {
	kind     proto.Type
	now      int64
	from     endpoint.Endpoint
	captured *privateapi.Captured
}

func (t *tap) addID(id proto.AllocationID) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if known := *t.ids.Load(); !known[id] && len(known) < maxCapturedPeers {
		more := maps.Clone(known)
		more[id] = true
		t.ids.Store(&more)
	}
}

// The caller of addEndpoint holds the lock.
func (t *tap) addEndpoint(ep endpoint.Endpoint) {
	if !ep.IsZero() && len(t.endpoints) < maxCapturedPeers {
		t.endpoints[ep] = true
	}
}

func (t *tap) hasID(id proto.AllocationID) bool { return (*t.ids.Load())[id] }

func (t *tap) has(w *worker, from endpoint.Endpoint, msg []byte) bool {
	var e table.Entry
	if w.shared.table.FindByEndpoint(from, &e) && t.hasID(e.ID) {
		return true
	}
	kind, err := proto.ParseType(msg)
	switch {
	case err != nil:
		return false
	case kind == proto.TypeBind:
		m, err := proto.ParseBind(msg)
		if err != nil {
			return false
		}
		c, ok := w.shared.sealer.Open(&w.crypto.scratch, m.ConnectionData)
		if !ok || c.ID != t.match && c.Match != t.match {
			return false
		}
		t.addID(c.ID)
		return true
	case kind.FromClient() && len(msg) >= proto.HeaderLen+len(proto.AllocationID{}):
		return t.hasID(proto.AllocationID(msg[proto.HeaderLen:]))
	}
	return false
}

func (t *tap) addReceived(now int64, from endpoint.Endpoint, msg []byte) proto.Type {
	kind, _ := proto.ParseType(msg)
	m := t.newCaptured(from, msg)
	t.mu.Lock()
	defer t.mu.Unlock()
	if len(t.undecided) == maxUndecided {
		t.put(t.undecided[0].captured)
		t.undecided = append(t.undecided[:0], t.undecided[1:]...)
	}
	t.undecided = append(t.undecided, undecided{kind, now, from, m})
	return kind
}

func (t *tap) decide(now int64, from endpoint.Endpoint, kind proto.Type, o outcome) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for i, u := range t.undecided {
		if u.now == now && u.kind == kind && u.from == from {
			if o.isDrop() {
				u.captured.Dropped = o.String()
			} else {
				u.captured.Outcome = o.String()
			}
			if o == outBound {
				t.addEndpoint(from)
			}
			t.put(u.captured)
			t.undecided = append(t.undecided[:i], t.undecided[i+1:]...)
			return
		}
	}
}

func (t *tap) addSent(to endpoint.Endpoint, msg []byte) {
	m := t.newCaptured(to, msg)
	m.Sent = true
	t.put(m)
}

func (t *tap) addSentByControl(to endpoint.Endpoint, msg []byte) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.endpoints[to] {
		m := t.newCaptured(to, msg)
		m.Sent = true
		t.byControl = append(t.byControl, m)
	}
}

func (t *tap) endRound() {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, m := range t.byControl {
		t.put(m)
	}
	t.byControl = t.byControl[:0]
}

func (t *tap) newCaptured(peer endpoint.Endpoint, msg []byte) *privateapi.Captured {
	m := &privateapi.Captured{
		Time: time.Now(), Transport: t.names[peer.Kind()], Player: peer.AddrPort(), Session: peer.Serial(), Message: withoutSecrets(msg),
	}
	if k := peer.Kind(); k == endpoint.KindUDP4 || k == endpoint.KindUDP6 {
		m.Relay, _ = t.localAddr(peer)
	}
	return m
}

func (t *tap) put(m *privateapi.Captured) {
	select {
	case t.queue <- m:
	default:
		t.lost.Add(1)
	}
}

func (t *tap) drain(each func(*privateapi.Captured) error) error {
	t.endRound()
	t.mu.Lock()
	for _, u := range t.undecided {
		t.put(u.captured)
	}
	t.undecided = nil
	t.mu.Unlock()
	for range len(t.queue) {
		if err := each(<-t.queue); err != nil {
			return err
		}
	}
	return nil
}

// withoutSecrets returns a copy with zeros in place of connection data, and of what an unknown
// message contains.
func withoutSecrets(msg []byte) []byte {
	public := len(msg)
	switch kind, err := proto.ParseType(msg); {
	case err != nil:
		public = proto.HeaderLen
	case kind == proto.TypeBind:
		public = len(proto.Bind{}.Append(nil)) - len(proto.Bind{}.MAC)
	case kind == proto.TypeConnectRequest:
		public = len(proto.ConnectRequest{}.Append(nil))
	}
	safe := make([]byte, len(msg))
	copy(safe, msg[:min(public, len(msg))])
	return safe
}

// handleTapped is handleMessage while a capture runs.
//
//go:noinline
func (w *worker) handleTapped(t *tap, now int64, from endpoint.Endpoint, msg []byte) (o outcome) {
	w.tap = nil
	tx, at := w.out.tx, len(w.out.queue)
	w.out.tx = nil // The outbox then puts what the message causes in its queue.
	isOfMatch := t.has(w, from, msg)
	defer func() {
		added := w.out.queue[at:]
		w.out.tx, w.out.queue, w.tap = tx, w.out.queue[:at], t
		for _, d := range added {
			w.out.add(d.to, d.pkt)
			if isOfMatch {
				t.addSent(d.to, d.pkt)
			}
		}
	}()
	if !isOfMatch {
		return w.handleMessage(now, from, msg)
	}
	kind := t.addReceived(now, from, msg)
	if o = w.handleMessage(now, from, msg); o != outcomePending {
		t.decide(now, from, kind, o)
	}
	return o
}
