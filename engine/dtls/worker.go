package dtls

import (
	"context"
	"time"

	"github.com/ferryrelay/ferry/internal/endpoint"
)

// maxLetter is the largest datagram that is taken for the handshake.
const maxLetter = 1500

// letter is a datagram on its way to a worker.
type letter struct {
	from endpoint.Endpoint
	n    int
	data [maxLetter]byte
}

// worker handles the handshakes of some source prefixes. Its goroutine owns it,
// but for the two channels: letters go round between them.
type worker struct {
	r    *Records
	full chan *letter
	free chan *letter

	send     func(to endpoint.Endpoint, pkt []byte)
	cookies  cookies
	open     map[endpoint.Endpoint]*halfOpen
	prefixes map[endpoint.Endpoint]int // half-open handshakes of each
	oldest   *halfOpen                 // of open
	newest   *halfOpen
	out      []byte // the datagram being made
	copied   []byte // a record that two keys may be tried on
	aad      scratch
	over     bool // the rest of the datagram in hand is not heard
}

func newWorker(r *Records) *worker {
	w := &worker{
		r:        r,
		full:     make(chan *letter, r.conf.Queue),
		free:     make(chan *letter, r.conf.Queue),
		cookies:  newCookies(),
		open:     make(map[endpoint.Endpoint]*halfOpen),
		prefixes: make(map[endpoint.Endpoint]int),
		out:      make([]byte, 0, 256),
	}
	letters := make([]letter, r.conf.Queue)
	for i := range letters {
		w.free <- &letters[i]
	}
	return w
}

// enqueue copies a datagram, and reports false when the queue is full. Any
// goroutine may call it.
func (w *worker) enqueue(from endpoint.Endpoint, pkt []byte) bool {
	select {
	case l := <-w.free:
		l.from, l.n = from, copy(l.data[:], pkt)
		w.full <- l // never blocks: it has room for all letters there are
		return true
	default:
		return false
	}
}

func (w *worker) run(ctx context.Context, send func(to endpoint.Endpoint, pkt []byte)) {
	w.send = send
	ticker := time.NewTicker(min(maxTick, w.r.conf.HandshakeTimeout/8))
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
			w.expire(w.r.now())
		case l := <-w.full:
			w.datagram(l.from, l.data[:l.n])
			w.free <- l
		}
	}
}

// datagram goes through the records of a datagram, until one of them is answered
// or has a ClientHello. A second answer would be more than the datagram's source,
// which may be forged, has paid for.
func (w *worker) datagram(from endpoint.Endpoint, pkt []byte) {
	w.over = false
	for len(pkt) > 0 {
		if w.over {
			w.count(DropTrailing)
			return
		}
		rec, rest, ok := parseRecord(pkt)
		if !ok {
			w.count(DropMalformed)
			return
		}
		pkt = rest
		switch {
		case rec.kind == typeHandshake && rec.epoch == 0:
			w.messages(from, &rec)
		case rec.kind == typeHandshake && rec.epoch == epoch1:
			w.sealed(from, &rec)
		case rec.kind == typeChangeCipherSpec:
			// It says nothing that the epoch of the next record does not.
		case rec.kind == typeAlert && rec.epoch == 0:
			w.count(DropAlert)
		default:
			w.count(DropStray)
		}
	}
}

// messages goes through the handshake messages of a plain record.
func (w *worker) messages(from endpoint.Endpoint, rec *record) {
	for b := rec.body; ; {
		if w.over {
			w.count(DropTrailing)
			return
		}
		m, rest, ok := parseMessage(b)
		if !ok {
			w.count(DropMalformed)
			return
		}
		switch m.kind {
		case msgClientHello:
			w.over = true
			w.clientHello(from, rec, &m)
		case msgClientKeyExchange:
			w.keyExchange(from, &m)
		default:
			w.count(DropStray)
		}
		if b = rest; len(b) == 0 {
			return
		}
	}
}

func (w *worker) count(e Event) { w.r.counters.count(e) }

// emit sends what was made in w.out.
func (w *worker) emit(to endpoint.Endpoint) {
	w.over = true
	w.send(to, w.out)
	w.out = w.out[:0]
}
