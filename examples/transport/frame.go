package main

import (
	"encoding/binary"
	"fmt"
	"io"

	"github.com/ferryrelay/ferry/proto"
)

// maxMessage is the size in bytes of the largest message of the relay protocol.
const maxMessage = proto.RelayOverhead + proto.MaxContent

// frame returns a message with its length before it, two bytes in big endian. It copies the message.
func frame(msg []byte) []byte {
	return append(binary.BigEndian.AppendUint16(make([]byte, 0, 2+len(msg)), uint16(len(msg))), msg...)
}

// readFrame reads a message into buf, which has room for maxMessage bytes.
func readFrame(r io.Reader, buf []byte) ([]byte, error) {
	if _, err := io.ReadFull(r, buf[:2]); err != nil {
		return nil, err
	}
	n := int(binary.BigEndian.Uint16(buf))
	if n > maxMessage {
		return nil, fmt.Errorf("message of %d bytes, limit %d", n, maxMessage)
	}
	_, err := io.ReadFull(r, buf[:n])
	return buf[:n], err
}
