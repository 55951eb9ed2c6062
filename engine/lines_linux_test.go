//go:build linux && !sockportable

package engine

import (
	"fmt"
	"reflect"
	"strings"
	"testing"

	"github.com/ferryrelay/ferry/engine/internal/table"
	"github.com/ferryrelay/ferry/internal/net/sock"
	"github.com/ferryrelay/ferry/proto"
)

// TestCacheLinesOfARelay says which cache lines of data a RELAY of 150 bytes that comes alone, from a host to its joiner,
// touches between the return of one receive call and the next call, and why: after a sleep none may be in a cache. Not in
// it are the stack, the code, the closure and the variable of the clock, and what the kernel reads and writes of its own.
func TestCacheLinesOfARelay(t *testing.T) {
	rx, tx := reflect.TypeFor[sock.RecvBatch](), reflect.TypeFor[sock.SendBatch]()
	conn, merger := reflect.TypeFor[sock.Conn](), typeOf(tx, "merger")
	relayed := fmt.Sprintf("counts.outcomes[%d]", outRelayed)
	sum := 0
	for _, c := range []struct {
		what   string
		typ    reflect.Type
		lines  int
		fields string // that are touched; none: all
	}{
		{"worker: its parts, the batch and the counts", reflect.TypeFor[worker](), 7, "shared conn rx epoch records traffic tap " +
			"next current batchSize lastPublished stop pacer.bound out.conns out.tx out.queue out.used " +
			"counts.received counts.receivedBytes counts.sentDatagrams counts.sentBytes counts.sendFailed counts.sendDown " +
			"counts.dirty counts.batches[0] " + relayed},
		{"epoch, which control reads", reflect.TypeFor[epoch](), 1, ""},
		{"traffic: what the tenant's row has relayed", reflect.TypeFor[trafficRow](), 2, ""},
		{"socket: users of the descriptor", conn, 2, "gate sock kernel segments"},
		{"socket: the descriptor", typeOf(conn, "sock"), 1, "fd held"},
		{"receive batch", rx, 3, "hdrs names buf used nameLen ctrlLen tail errors v4 idle"},
		{"receive batch: message header, for recvmmsg", typeOf(rx, "hdrs"), 1, ""},
		{"receive batch: iovec, for recvmmsg", typeOf(rx, "iovs"), 1, ""},
		{"receive batch: address of the sender", nil, 1, ""},
		{"message; the worker itself reads the first line", nil, (proto.RelayOverhead + 112 + 63) / 64, ""},
		{"shared: what it points at, and sizes", reflect.TypeFor[shared](), 3, "clock tap table limits grace " +
			"rules.maxContent rules.messages.safe"},
		{"limits of the role", reflect.TypeFor[limitRates](), 2, "quotas[1] unvalidatedRatio"},
		{"grace: whether control waits", reflect.TypeFor[grace](), 1, "workersMustWake"},
		{"table: secret of the hashes, slabs", reflect.TypeFor[table.Table](), 2, "secret slabs"},
		{"table: shard of the sender's endpoint", nil, 1, ""},
		{"table: shard of the receiver's id", nil, 1, ""},
		{"table: lengths of the two shards' cells", nil, 2, ""},
		{"table: lines of cells, if they hold the keys", nil, 2, ""},
		{"table: address of the slab", nil, 1, ""},
		{"table: identities of sender and receiver, activity of the sender", nil, 3, ""}, // TestLinesOfARelay there
		{"send batch", tx, 3, "hdrs iovs names n refused merger nameLen infoLen v4"},
		{"send batch: message header, for sendmmsg", typeOf(tx, "hdrs"), 1, ""},
		{"send batch: iovec, for sendmmsg", typeOf(tx, "iovs"), 1, ""},
		{"send batch: address of the receiver", nil, 1, ""},
		{"merger: its parts", merger, 3, "limit runs cells round secret joined"},
		{"merger: run of the receiver", typeOf(merger, "runs"), 2, ""},
		{"merger: cell of the receiver", nil, 1, ""},
	} {
		lines := c.lines
		if c.typ != nil {
			lines = mostLines(c.typ, strings.Fields(c.fields)...)
		}
		if lines != c.lines {
			t.Errorf("%s: %d lines, want %d", c.what, lines, c.lines)
		}
		sum += lines
	}
	t.Logf("%d lines of data", sum)
}

// typeOf returns what a field, a slice or a pointer, holds.
func typeOf(typ reflect.Type, field string) reflect.Type {
	f, _ := typ.FieldByName(field)
	return f.Type.Elem()
}

// mostLines returns in how many lines the fields lie wherever the object may begin: "a.b" is a field of a field,
// "a[3]" an element. No fields are all of it.
func mostLines(typ reflect.Type, fields ...string) (most int) {
	step, size := uintptr(8), typ.Size()
	switch { // as Go's allocator places them, and elements of an array
	case size%64 == 0, size > 32<<10, size > 48 && size < 64:
		step = 64
	case 64%size == 0:
		step = size
	}
	for begin := uintptr(0); begin < 64; begin += step {
		lines := make(map[uintptr]bool)
		add := func(at, size uintptr) {
			for line := at / 64; line <= (at+size-1)/64; line++ {
				lines[line] = true
			}
		}
		if len(fields) == 0 {
			add(begin, size)
		}
		for _, path := range fields {
			at, size := place(typ, path)
			add(begin+at, size)
		}
		most = max(most, len(lines))
	}
	return most
}

func place(typ reflect.Type, path string) (at, size uintptr) {
	for name := range strings.SplitSeq(path, ".") {
		name, index, isElement := strings.Cut(name, "[")
		f, ok := typ.FieldByName(name)
		if !ok {
			panic(fmt.Sprintf("%v has no %s", typ, name))
		}
		at, typ = at+f.Offset, f.Type
		if isElement {
			var i uintptr
			_, _ = fmt.Sscan(strings.TrimSuffix(index, "]"), &i)
			typ = typ.Elem()
			at += i * typ.Size()
		}
	}
	return at, typ.Size()
}
