package lab

import (
	"net"
	"net/netip"
	"time"
)

// parcel is a datagram under way through a Proxy.
type parcel struct {
	at     time.Time
	number uint64 // in the order of arrival, which decides where times are equal
	conn   *net.UDPConn
	to     netip.AddrPort
	pkt    []byte
}

// queue is a heap of parcels by time; the lock of the Proxy guards it.
type queue struct {
	parcels []parcel
	number  uint64
}

// Len is that of heap.Interface.
func (q *queue) Len() int { return len(q.parcels) }

// Less is that of heap.Interface.
func (q *queue) Less(i, j int) bool {
	a, b := &q.parcels[i], &q.parcels[j]
	if a.at.Equal(b.at) {
		return a.number < b.number
	}
	return a.at.Before(b.at)
}

// Swap is that of heap.Interface.
func (q *queue) Swap(i, j int) { q.parcels[i], q.parcels[j] = q.parcels[j], q.parcels[i] }

// Push is that of heap.Interface.
func (q *queue) Push(x any) { q.parcels = append(q.parcels, x.(parcel)) }

// Pop is that of heap.Interface.
func (q *queue) Pop() any {
	last := q.parcels[len(q.parcels)-1]
	q.parcels[len(q.parcels)-1] = parcel{}
	q.parcels = q.parcels[:len(q.parcels)-1]
	return last
}
