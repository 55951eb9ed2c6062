//go:build unix

package websocket

import (
	"os"
	"syscall"

	"github.com/ferryrelay/ferry/internal/net/sock"
)

// linkBuffer is the size in bytes that is asked of the kernel for each direction of a link: it
// holds what players send while another process takes over.
const linkBuffer = 1 << 20

func packetPair() (near, far *os.File, err error) {
	near, far, err = sock.SocketPair(syscall.SOCK_SEQPACKET, "link")
	if err != nil {
		return nil, nil, err
	}
	for _, f := range []*os.File{near, far} {
		_ = syscall.SetsockoptInt(int(f.Fd()), syscall.SOL_SOCKET, syscall.SO_SNDBUF, linkBuffer) // The default works as well.
	}
	return near, far, nil
}

func sendPacket(fd uintptr, packet []byte) error {
	_, err := syscall.Write(int(fd), packet)
	return err
}
