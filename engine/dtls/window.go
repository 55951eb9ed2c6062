package dtls

import "sync/atomic"

// The anti-replay window of RFC 6347 4.1.2.6, without a lock.
const (
	blockBits    = 4 // a block covers 16 sequence numbers
	blockSize    = 1 << blockBits
	windowBlocks = 16
	// windowSize is how far behind the newest record one may be and still be
	// taken, whatever came in between. It may be taken when it is further behind,
	// if nothing newer has come in its place; never twice.
	windowSize = (windowBlocks - 1) * blockSize
)

// window remembers which sequence numbers were received. The word at block
// modulo windowBlocks holds the newest block that was seen there, and a bit for
// each of its numbers: number of the block <<16 | bits. A number in an older
// block than that is refused, so none is ever taken twice.
//
// Every word is an atomic; any goroutine may use it.
type window [windowBlocks]atomic.Uint64

// seen reports whether seq was taken before or is too old. It is for dropping
// replayed records before they are decrypted.
func (w *window) seen(seq uint64) bool {
	block, bit := seq>>blockBits, uint64(1)<<(seq%blockSize)
	word := w[block%windowBlocks].Load()
	newest := word >> blockSize
	return newest > block || newest == block && word&bit != 0
}

// take marks the number of an authentic record, and reports false if it was
// taken before or is too old.
func (w *window) take(seq uint64) bool {
	block, bit := seq>>blockBits, uint64(1)<<(seq%blockSize)
	at := &w[block%windowBlocks]
	for {
		word := at.Load()
		newest := word >> blockSize
		next := block<<blockSize | bit
		switch {
		case newest > block:
			return false
		case newest == block:
			if word&bit != 0 {
				return false
			}
			next |= word
		}
		if at.CompareAndSwap(word, next) {
			return true
		}
	}
}
