package utp

// queue holds values with bytes of theirs, which lie in one reused buffer.
type queue[T any] struct {
	limit int // values; close does not ask for it
	list  []queued[T]
	next  int // the first that has not been taken
	buf   []byte
	from  int // where the bytes of the first that has not been taken begin in buf
}

type queued[T any] struct {
	value T
	end   int // of its bytes in the buffer
}

func (q *queue[T]) room(n int) bool { return len(q.list)-q.next+n <= q.limit }

// open returns the buffer to append the bytes of a value to, for close. What take has returned
// may lose its bytes.
func (q *queue[T]) open() []byte {
	if q.next == len(q.list) || q.next >= q.limit {
		q.compact()
	}
	return q.buf
}

// compact keeps the buffer from growing for a caller that never takes everything.
func (q *queue[T]) compact() {
	rest := copy(q.list, q.list[q.next:])
	clear(q.list[rest:])
	q.list = q.list[:rest]
	for i := range q.list {
		q.list[i].end -= q.from
	}
	q.buf = q.buf[:copy(q.buf, q.buf[q.from:])]
	q.next, q.from = 0, 0
}

func (q *queue[T]) close(v T, buf []byte) int {
	size := len(buf) - len(q.buf)
	q.buf = buf
	q.list = append(q.list, queued[T]{v, len(buf)})
	return size
}

// take returns the first value, which keeps its bytes until the next open or compact.
func (q *queue[T]) take() (v T, data []byte, ok bool) {
	if q.next == len(q.list) {
		return v, nil, false
	}
	first := q.list[q.next]
	data = q.buf[q.from:first.end:first.end]
	q.next++
	q.from = first.end
	return first.value, data, true
}
