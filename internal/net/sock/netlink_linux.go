package sock

import (
	"errors"
	"os"

	"golang.org/x/sys/unix"
)

// netlinkBuffer holds the messages of a machine that changes thousands of routes at once. Where messages
// were lost, a read returns ENOBUFS.
const netlinkBuffer = 4 << 20

// SubscribeNetlink returns a socket that receives the messages of groups of a protocol of netlink(7). To
// close it ends a read.
func SubscribeNetlink(protocol int, groups ...int) (*os.File, error) {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, protocol)
	if err != nil {
		return nil, os.NewSyscallError("socket", err)
	}
	addr := &unix.SockaddrNetlink{Family: unix.AF_NETLINK}
	for _, group := range groups {
		addr.Groups |= 1 << (group - 1)
	}
	if err := unix.Bind(fd, addr); err != nil {
		return nil, errors.Join(os.NewSyscallError("bind", err), unix.Close(fd))
	}
	setBuffer(fd, unix.SO_RCVBUFFORCE, unix.SO_RCVBUF, netlinkBuffer)
	return os.NewFile(uintptr(fd), "netlink"), nil
}

// LinkChanges returns a channel that receives after interfaces of the machine have changed, until stop is
// called. It is closed where the system does not tell.
func LinkChanges() (changes <-chan struct{}, stop func()) {
	c := make(chan struct{}, 1)
	socket, err := SubscribeNetlink(unix.NETLINK_ROUTE, unix.RTNLGRP_LINK)
	if err != nil {
		close(c)
		return c, func() {}
	}
	go func() {
		defer close(c)
		for {
			if _, err := socket.Read(make([]byte, 1)); err != nil && !errors.Is(err, unix.ENOBUFS) {
				return
			}
			select {
			case c <- struct{}{}:
			default:
			}
		}
	}()
	return c, func() {
		socket.Close()
		for range c {
		}
	}
}
