package netcode

import (
	"encoding/binary"
	"fmt"
)

// Protocol is the version of what this package says over the transport. It is
// compatible with nothing but itself.
const Protocol = 1

// ProtocolVersion is what two sides must have in common.
type ProtocolVersion struct {
	Protocol   int32  // Protocol
	Game       int32  // Config.GameVersion
	RPCs       uint64 // a hash over the names and options of all RPCs
	Components uint64 // Config.ComponentsHash
}

// versionLen is the size of the version RPC: the four fields and 4 bytes that
// are reserved for an identity that survives a reconnect.
const versionLen = 4 + 4 + 8 + 8 + 4

func (v ProtocolVersion) append(dst []byte) []byte {
	dst = binary.LittleEndian.AppendUint32(dst, uint32(v.Protocol))
	dst = binary.LittleEndian.AppendUint32(dst, uint32(v.Game))
	dst = binary.LittleEndian.AppendUint64(dst, v.RPCs)
	dst = binary.LittleEndian.AppendUint64(dst, v.Components)
	return append(dst, 0, 0, 0, 0)
}

// parseVersion reads versionLen bytes.
func parseVersion(b []byte) ProtocolVersion {
	return ProtocolVersion{
		Protocol:   int32(binary.LittleEndian.Uint32(b)),
		Game:       int32(binary.LittleEndian.Uint32(b[4:])),
		RPCs:       binary.LittleEndian.Uint64(b[8:]),
		Components: binary.LittleEndian.Uint64(b[16:]),
	}
}

// mismatch says in which field the peer's version differs, "" if in none.
func (v ProtocolVersion) mismatch(peer ProtocolVersion, relaxed bool) string {
	switch {
	case v.Protocol != peer.Protocol:
		return fmt.Sprintf("protocol version is %d, the peer's is %d", v.Protocol, peer.Protocol)
	case v.Game != peer.Game:
		return fmt.Sprintf("game version is %d, the peer's is %d", v.Game, peer.Game)
	case relaxed:
		return ""
	case v.RPCs != peer.RPCs:
		return fmt.Sprintf("RPC collection is %016x, the peer's is %016x", v.RPCs, peer.RPCs)
	case v.Components != peer.Components:
		return fmt.Sprintf("components hash is %016x, the peer's is %016x", v.Components, peer.Components)
	}
	return ""
}
