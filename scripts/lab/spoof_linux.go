package lab

import (
	"context"
	"fmt"
	"net/netip"
	"time"

	"golang.org/x/sys/unix"
)

const (
	// pace is how often a flood sends what has become due.
	pace = time.Millisecond
	// catchUp is how much a flood that was held up sends late; the rest it skips.
	catchUp = 50 * time.Millisecond
)

// Spoofer sends datagrams with forged sources from a namespace. One goroutine
// owns it.
type Spoofer struct {
	fd int
}

// NewSpoofer opens a raw socket in a namespace, towards one address.
func NewSpoofer(ns Namespace, to netip.Addr) (*Spoofer, error) {
	s := &Spoofer{fd: -1}
	err := ns.Do(func() (err error) {
		s.fd, err = unix.Socket(unix.AF_INET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.IPPROTO_RAW)
		if err != nil {
			return err
		}
		return unix.Connect(s.fd, &unix.SockaddrInet4{Addr: to.As4()})
	})
	if err != nil {
		s.Close()
		return nil, fmt.Errorf("lab: raw socket: %w", err)
	}
	return s, nil
}

// Send sends one packet of AppendIPv4UDP.
func (s *Spoofer) Send(packet []byte) error {
	_, err := unix.Write(s.fd, packet)
	return err
}

// Close closes the socket. It may be called more than once.
func (s *Spoofer) Close() {
	if s.fd >= 0 {
		unix.Close(s.fd)
		s.fd = -1
	}
}

// Offered is what a flood has sent.
type Offered struct {
	Sent, Failed uint64
	Took         time.Duration
}

// PerSecond is the rate of what was sent.
func (o Offered) PerSecond() float64 { return float64(o.Sent) / o.Took.Seconds() }

// Flood sends packets at a rate per second until ctx ends. next returns the
// n-th one, which it may overwrite with the following one.
func (s *Spoofer) Flood(ctx context.Context, rate int, next func(n uint64) []byte) (o Offered) {
	begin := time.Now()
	due := begin
	gap := time.Second / time.Duration(rate)
	for ctx.Err() == nil {
		now := time.Now()
		if late := now.Sub(due); late > catchUp {
			due = now.Add(-catchUp)
		}
		for ; due.Before(now); due = due.Add(gap) {
			if s.Send(next(o.Sent+o.Failed)) != nil {
				o.Failed++
			} else {
				o.Sent++
			}
		}
		time.Sleep(pace)
	}
	o.Took = time.Since(begin)
	return o
}
