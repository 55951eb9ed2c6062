//go:build !linux

package sock

import (
	"errors"
	"net"
)

// Stream is a TCP connection that is read and written without blocking. There is none on
// this system.
type Stream struct{}

// AdoptStream returns errors.ErrUnsupported.
func AdoptStream(*net.TCPConn) (*Stream, error) { return nil, errors.ErrUnsupported }

// TryRead returns errors.ErrUnsupported.
func (*Stream) TryRead([]byte) (int, error) { return 0, errors.ErrUnsupported }

// TryWrite returns errors.ErrUnsupported.
func (*Stream) TryWrite([]byte) (int, error) { return 0, errors.ErrUnsupported }

// Unread returns 0.
func (*Stream) Unread() int { return 0 }

// ReadBuffer returns 0.
func (*Stream) ReadBuffer() int { return 0 }

// Info returns the zero value.
func (*Stream) Info() StreamInfo { return StreamInfo{} }

// Close returns nil.
func (*Stream) Close() error { return nil }

// Poller reports which of many sockets can be read. There is none on this system.
type Poller struct{}

// NewPoller returns errors.ErrUnsupported.
func NewPoller() (*Poller, error) { return nil, errors.ErrUnsupported }

// AddStream returns errors.ErrUnsupported.
func (*Poller) AddStream(*Stream, int32) error { return errors.ErrUnsupported }

// AddConn returns errors.ErrUnsupported.
func (*Poller) AddConn(*Conn, int32) error { return errors.ErrUnsupported }

// AwaitWritable returns errors.ErrUnsupported.
func (*Poller) AwaitWritable(*Stream, int32, bool) error { return errors.ErrUnsupported }

// Ready returns errors.ErrUnsupported.
func (*Poller) Ready(list []int32) ([]int32, error) { return list, errors.ErrUnsupported }

// Close returns nil.
func (*Poller) Close() error { return nil }
