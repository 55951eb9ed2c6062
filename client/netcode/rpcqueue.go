package netcode

import (
	"encoding/binary"

	"github.com/ferryrelay/ferry/client/netcode/utp"
)

// rpcQueue holds encoded RPCs that wait for a packet.
type rpcQueue struct {
	buf  []byte
	head int
}

func (q *rpcQueue) reset() { q.buf, q.head = q.buf[:0], 0 }

func (q *rpcQueue) len() int { return len(q.buf) - q.head }

func (q *rpcQueue) add(r utp.RPC) { q.buf = r.Append(q.buf) }

// addNamed adds a game's RPC with its hash.
func (q *rpcQueue) addNamed(hash uint64, payload []byte) {
	q.buf = binary.LittleEndian.AppendUint16(q.buf, indexNamed)
	q.buf = binary.LittleEndian.AppendUint16(q.buf, uint16(8*(hashLen+len(payload))))
	q.buf = binary.LittleEndian.AppendUint64(q.buf, hash)
	q.buf = append(q.buf, payload...)
}

// next returns as many whole RPCs as fit into room bytes, at least one.
func (q *rpcQueue) next(room int) []byte {
	rest := q.buf[q.head:]
	if len(rest) <= room {
		return rest
	}
	n := 0
	for n < len(rest) {
		size := utp.RPCLen + (int(binary.LittleEndian.Uint16(rest[n+2:]))+7)/8
		if n > 0 && n+size > room {
			break
		}
		n += size
	}
	return rest[:n]
}

// drop forgets the first n bytes, which next has returned.
func (q *rpcQueue) drop(n int) {
	q.head += n
	if q.head == len(q.buf) {
		q.reset()
	} else if q.head > len(q.buf)/2 {
		q.buf = q.buf[:copy(q.buf, q.buf[q.head:])]
		q.head = 0
	}
}
