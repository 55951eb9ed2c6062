package websocket

import (
	"context"
	"errors"
	"net/netip"
	"sync"
	"sync/atomic"

	"github.com/ferryrelay/ferry/engine"
	"github.com/ferryrelay/ferry/internal/endpoint"
	"github.com/ferryrelay/ferry/proto"
)

// ErrAlreadyRun means that Run was called twice.
var ErrAlreadyRun = errors.New("websocket: the transport has been run already")

// Transport is the WebSocket way into a relay. It implements
// [engine.Transport] and [net/http.Handler].
type Transport struct {
	cfg    Config
	holds  sync.Pool // of *[holdSize]byte
	serial atomic.Uint64
	ran    atomic.Bool
	began  chan struct{} // closed when callers are let in
	door   door
	shards [numShards]shard
	counts counters
}

// numShards is a power of two, so many that workers seldom meet at a lock.
const numShards = 64

// shard has the connections of some serials.
type shard struct {
	mu    sync.RWMutex // guards conns
	conns map[uint64]*conn
	_     [32]byte // so that two locks do not share a cache line
}

// New returns a transport, or what is wrong with the configuration.
func New(cfg Config) (*Transport, error) {
	cfg = cfg.withDefaults()
	if err := cfg.validate(); err != nil {
		return nil, err
	}
	t := &Transport{cfg: cfg, began: make(chan struct{})}
	t.holds.New = func() any { return new([holdSize]byte) }
	t.door = door{maxTotal: cfg.MaxConns, maxAddress: cfg.MaxConnsPerAddress, by: make(map[netip.Prefix]int)}
	for i := range t.shards {
		t.shards[i].conns = make(map[uint64]*conn)
	}
	return t, nil
}

// Kind returns [endpoint.KindWS].
func (t *Transport) Kind() endpoint.Kind { return endpoint.KindWS }

// Run lets callers in until ctx ends, and returns when all connections are
// closed, which takes CloseTimeout at the most, and a little more for one that
// a worker of the http.Server is about to open. It can be called once.
func (t *Transport) Run(ctx context.Context, in engine.Intake) error {
	if !t.ran.CompareAndSwap(false, true) {
		return ErrAlreadyRun
	}
	t.door.unlock(in)
	close(t.began)
	<-ctx.Done()
	t.door.lock()
	for i := range t.shards {
		for _, c := range t.shards[i].all() {
			c.end(EndStopped)
		}
	}
	t.door.inward.Wait()
	return nil
}

// Running returns a channel that is closed once callers are let in.
func (t *Transport) Running() <-chan struct{} { return t.began }

// MaxMessage returns Config.MaxOutgoing, see [engine.Transport].
func (t *Transport) MaxMessage() int { return t.cfg.MaxOutgoing }

// Send queues a message for a connection. It copies pkt, never blocks, and
// reports false when the connection is gone or its queue is full. After ERROR 1
// or 4 the connection is closed. Any goroutine may call it.
func (t *Transport) Send(serial uint64, pkt []byte) bool {
	c := t.find(serial)
	if c == nil {
		return t.drop(DropGone)
	}
	e, err := proto.ParseError(pkt)
	if err != nil {
		return c.send(pkt)
	}
	if e.Code == proto.ErrorTimeout || e.Code == proto.ErrorNotFound {
		return c.sendLast(pkt)
	}
	return c.sendError(pkt)
}

// drop counts a message and returns false.
func (t *Transport) drop(why Drop) bool {
	t.counts.dropped[why].Add(1)
	return false
}

func (t *Transport) shard(serial uint64) *shard { return &t.shards[serial%numShards] }

func (t *Transport) find(serial uint64) *conn {
	s := t.shard(serial)
	s.mu.RLock()
	defer s.mu.RUnlock()
	return s.conns[serial]
}

func (t *Transport) add(c *conn) {
	s := t.shard(c.serial)
	s.mu.Lock()
	s.conns[c.serial] = c
	s.mu.Unlock()
	if t.door.locked() {
		c.end(EndStopped) // Run may have looked already.
	}
}

func (t *Transport) remove(c *conn) {
	s := t.shard(c.serial)
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.conns, c.serial)
}

func (s *shard) all() (all []*conn) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	for _, c := range s.conns {
		all = append(all, c)
	}
	return all
}
