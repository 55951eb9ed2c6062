//go:build !unix

package websocket

import (
	"errors"
	"os"
)

func packetPair() (near, far *os.File, err error) { return nil, nil, errors.ErrUnsupported }

func sendPacket(uintptr, []byte) error { return errors.ErrUnsupported }
