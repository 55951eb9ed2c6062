package utp

import "github.com/ferryrelay/ferry/client/netcode/address"

// Datagram is one that the caller has to send.
type Datagram struct {
	To   address.Addr
	Data []byte
}

// outbox holds the datagrams that wait to be sent, in order, in one buffer that
// is used again.
type outbox struct {
	limit   int // datagrams
	parcels []parcel
	next    int // the first that has not been taken
	buf     []byte
	from    int // where the first that has not been taken begins in buf
}

// parcel is a datagram that ends at a place of the buffer.
type parcel struct {
	to  address.Addr
	end int
}

// room reports whether n more datagrams fit.
func (o *outbox) room(n int) bool { return len(o.parcels)-o.next+n <= o.limit }

// open returns the buffer to append a datagram to, for close. The caller has
// seen that there is room.
func (o *outbox) open() []byte {
	if o.next == len(o.parcels) || o.next >= o.limit {
		o.compact()
	}
	return o.buf
}

// compact forgets what was taken, so that a caller who never takes everything
// does not make the buffer grow.
func (o *outbox) compact() {
	rest := copy(o.parcels, o.parcels[o.next:])
	o.parcels = o.parcels[:rest]
	for i := range o.parcels {
		o.parcels[i].end -= o.from
	}
	o.buf = o.buf[:copy(o.buf, o.buf[o.from:])]
	o.next, o.from = 0, 0
}

// close queues what was appended since open and returns its size.
func (o *outbox) close(to address.Addr, buf []byte) int {
	size := len(buf) - len(o.buf)
	o.buf = buf
	o.parcels = append(o.parcels, parcel{to: to, end: len(buf)})
	return size
}

// take returns the first datagram, which keeps its bytes until the next open.
func (o *outbox) take() (Datagram, bool) {
	if o.next == len(o.parcels) {
		return Datagram{}, false
	}
	p := o.parcels[o.next]
	data := o.buf[o.from:p.end:p.end]
	o.next++
	o.from = p.end
	return Datagram{To: p.to, Data: data}, true
}
