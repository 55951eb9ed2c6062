//go:build unix

package websocket

import (
	"os"
	"syscall"
)

// linkBuffer is the size in bytes that is asked of the kernel for each direction of a link: it
// holds what players send while another process takes over.
const linkBuffer = 1 << 20

// packetPair returns the two ends of a link.
func packetPair() (near, far *os.File, err error) {
	syscall.ForkLock.RLock()
	pair, err := syscall.Socketpair(syscall.AF_UNIX, syscall.SOCK_SEQPACKET, 0)
	if err == nil {
		syscall.CloseOnExec(pair[0])
		syscall.CloseOnExec(pair[1])
	}
	syscall.ForkLock.RUnlock()
	if err != nil {
		return nil, nil, os.NewSyscallError("socketpair", err)
	}
	for _, fd := range pair {
		_ = syscall.SetsockoptInt(fd, syscall.SOL_SOCKET, syscall.SO_SNDBUF, linkBuffer) // The default works as well.
	}
	return os.NewFile(uintptr(pair[0]), "link"), os.NewFile(uintptr(pair[1]), "link"), nil
}

// sendPacket sends a packet over a socket that does not block.
func sendPacket(fd uintptr, packet []byte) error {
	_, err := syscall.Write(int(fd), packet)
	return err
}
