package sock

import (
	"maps"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/ferryrelay/ferry/internal/endpoint"
)

// maxLocals bounds the local addresses that a Group can tell apart. A host
// rarely has more; beyond the bound the kernel chooses the source of replies.
const maxLocals = 1024

// localAddr is a local address in the words of an endpoint.Endpoint. The zone is the
// interface index of an IPv6 link-local address, otherwise 0.
type localAddr struct {
	hi, lo uint64
	zone   uint32
}

// localIP is the address without its zone.
func localIP(a localAddr, v4 bool) netip.Addr {
	kind := endpoint.KindUDP6
	if v4 {
		kind = endpoint.KindUDP4
	}
	return endpoint.Endpoint{Hi: a.hi, Lo: a.lo, Tail: uint64(kind) << endpoint.KindShift}.AddrPort().Addr()
}

// locals numbers the local addresses that peers of one wildcard Group send to:
// 1, 2, 3 ... in order of appearance, 0 = unknown. Numbers never change and
// are never taken back. Any goroutine may call its methods; readers never lock.
type locals struct {
	mu    sync.Mutex // held by add
	table atomic.Pointer[localTable]
}

// localTable is immutable after it is published.
type localTable struct {
	ids   map[localAddr]uint16
	addrs []localAddr // by number; [0] is unused
}

func newLocals() *locals {
	l := new(locals)
	l.table.Store(&localTable{ids: map[localAddr]uint16{}, addrs: make([]localAddr, 1)})
	return l
}

// id returns the number of an address, making one if there is room.
func (l *locals) id(a localAddr) uint16 {
	t := l.table.Load()
	if id, ok := t.ids[a]; ok {
		return id
	}
	if len(t.addrs) > maxLocals {
		return 0
	}
	return l.add(a)
}

// at returns the address of a number; false for 0 and for numbers never given.
func (l *locals) at(id uint16) (localAddr, bool) {
	t := l.table.Load()
	if id == 0 || int(id) >= len(t.addrs) {
		return localAddr{}, false
	}
	return t.addrs[id], true
}

func (l *locals) add(a localAddr) uint16 {
	l.mu.Lock()
	defer l.mu.Unlock()
	t := l.table.Load()
	if id, ok := t.ids[a]; ok {
		return id
	}
	if len(t.addrs) > maxLocals {
		return 0
	}
	next := &localTable{ids: maps.Clone(t.ids), addrs: append(slices.Clone(t.addrs), a)}
	id := uint16(len(t.addrs))
	next.ids[a] = id
	l.table.Store(next)
	return id
}
