package bench

// arrival is what a sequence number tells of the datagram that carried it.
type arrival uint8

const (
	arrivedInOrder   arrival = iota
	arrivedReordered         // after a higher number: RFC 4737, 3.3
	arrivedTwice             // seen before
	arrivedLate              // so far behind that it may have been seen
	arrivedForeign           // never sent
)

// window remembers which of the newest sequence numbers of a flow have
// arrived, as a ring of bits. bits has a power of two of words.
type window struct {
	next uint32 // one above the highest number seen
	bits []uint64
}

// size is how many numbers the window remembers.
func (w *window) size() uint32 { return uint32(len(w.bits)) * 64 }

// arrive notes number seq of a flow that has sent numbers below sent. Numbers
// do not wrap around: 2^32 datagrams of one flow are more than a run has.
func (w *window) arrive(seq, sent uint32) arrival {
	switch {
	case seq >= sent:
		return arrivedForeign
	case seq >= w.next:
		w.advance(seq)
		w.set(seq)
		return arrivedInOrder
	case w.next-seq > w.size():
		return arrivedLate
	case w.has(seq):
		return arrivedTwice
	}
	w.set(seq)
	return arrivedReordered
}

// advance makes seq the newest number and forgets those that fall out.
func (w *window) advance(seq uint32) {
	if seq-w.next >= w.size() {
		clear(w.bits)
	} else {
		for i := w.next; i != seq; i++ {
			w.unset(i)
		}
	}
	w.next = seq + 1
}

func (w *window) at(seq uint32) (word *uint64, bit uint64) {
	return &w.bits[seq>>6&uint32(len(w.bits)-1)], 1 << (seq & 63)
}

func (w *window) set(seq uint32) {
	word, bit := w.at(seq)
	*word |= bit
}

func (w *window) unset(seq uint32) {
	word, bit := w.at(seq)
	*word &^= bit
}

func (w *window) has(seq uint32) bool {
	word, bit := w.at(seq)
	return *word&bit != 0
}

// windowWords chooses the words of a window so that all flows together stay
// near 8 MiB: 64 (4,096 numbers) when there are few, 4 when there are many.
func windowWords(flows int) int {
	words := 64
	for words > 4 && words*flows > 1<<20 {
		words /= 2
	}
	return words
}
