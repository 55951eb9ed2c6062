package netcode

import (
	"encoding/binary"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/ferryrelay/ferry/client/netcode/utp"
)

// Indices of RPCs that no registry has. All bodies are little-endian.
const (
	indexNamed       = 0xFFFF // a game's RPC by its hash, u64 before the payload
	indexVersion     = 0xFFFE // ProtocolVersion
	indexGetApproved = 0xFFFD // no body: the server asks the client to be approved
	indexApproved    = 0xFFFC // i32 NetworkID, u32 reserved, u32 handshake and approval timeout in ms
	indexClose       = 0xFFFB // u8 reason, up to MaxCloseText bytes of text

	firstSystem = indexClose
	approvedLen = 12
	hashLen     = 8
)

// appendSystem appends an RPC of this package to a queue.
func appendSystem(q *rpcQueue, index uint16, body []byte) {
	q.add(utp.RPC{Index: index, Bits: uint16(8 * len(body)), Payload: body})
}

func appendApproved(dst []byte, id NetworkID, limit time.Duration) []byte {
	dst = binary.LittleEndian.AppendUint32(dst, uint32(id))
	dst = binary.LittleEndian.AppendUint32(dst, 0)
	return binary.LittleEndian.AppendUint32(dst, uint32(min(limit.Milliseconds(), 1<<32-1)))
}

// parseApproved reads the id, and false if it can not be one.
func parseApproved(b []byte) (NetworkID, bool) {
	if len(b) != approvedLen {
		return 0, false
	}
	id := NetworkID(binary.LittleEndian.Uint32(b))
	return id, id > 0
}

func appendClose(dst []byte, r DisconnectReason, text string) []byte {
	return append(append(dst, byte(r)), cut(text)...)
}

func parseClose(b []byte) (CloseInfo, bool) {
	if len(b) == 0 || len(b) > 1+MaxCloseText {
		return CloseInfo{}, false
	}
	return CloseInfo{Reason: DisconnectReason(b[0]), Text: strings.ToValidUTF8(string(b[1:]), "?")}, true
}

// cut shortens a text to MaxCloseText bytes of whole characters.
func cut(text string) string {
	if len(text) <= MaxCloseText {
		return text
	}
	end := MaxCloseText
	for end > 0 && !utf8.RuneStart(text[end]) {
		end--
	}
	return text[:end]
}
