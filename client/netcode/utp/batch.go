package utp

import (
	"encoding/binary"
	"errors"
)

// Netcode for GameObjects puts an i32 LE length before each of its messages.
// On its reliable pipeline the bytes are a stream, in which a message may
// straddle packets; on the others a packet holds whole messages.

// BatchHeaderLen is the size of the length before a message, in bytes.
const BatchHeaderLen = 4

// ErrBatch is a length that is negative or above the limit. What follows it
// can not be found, so the stream is lost.
var ErrBatch = errors.New("utp: batch has an impossible message length")

// AppendBatched appends a message with its length to dst.
func AppendBatched(dst, msg []byte) []byte {
	dst = binary.LittleEndian.AppendUint32(dst, uint32(len(msg)))
	return append(dst, msg...)
}

// ParseBatched reads the first message of at most limit bytes and returns what
// follows it. Both alias b.
// Errors: ErrShort if the message is not complete, ErrBatch.
func ParseBatched(b []byte, limit int) (msg, rest []byte, err error) {
	if len(b) < BatchHeaderLen {
		return nil, nil, ErrShort
	}
	size := int64(int32(binary.LittleEndian.Uint32(b)))
	if size < 0 || size > int64(limit) {
		return nil, nil, ErrBatch
	}
	if int64(len(b)-BatchHeaderLen) < size {
		return nil, nil, ErrShort
	}
	end := BatchHeaderLen + int(size)
	return b[BatchHeaderLen:end:end], b[end:], nil
}

// BatchReader cuts the stream of one reliable pipeline into messages. It keeps
// at most one incomplete message and what Add brought.
type BatchReader struct {
	// Limit is the largest message in bytes. Required: nothing else bounds what
	// a peer can make this side keep.
	Limit int

	buf  []byte
	next int
	lost bool
}

// Add takes the data of the next event. It keeps a copy.
func (r *BatchReader) Add(data []byte) {
	if r.lost {
		return
	}
	rest := copy(r.buf, r.buf[r.next:])
	r.buf = append(r.buf[:rest], data...)
	r.next = 0
}

// Next returns the next message, which is valid until the next Add, or false
// if none is complete. After ErrBatch it gives nothing but ErrBatch.
func (r *BatchReader) Next() (msg []byte, ok bool, err error) {
	msg, rest, err := ParseBatched(r.buf[r.next:], r.Limit)
	switch err {
	case nil:
		r.next = len(r.buf) - len(rest)
		return msg, true, nil
	case ErrShort:
		return nil, false, nil
	}
	r.lost = true
	return nil, false, err
}
