package netcode

import (
	"encoding/binary"
	"fmt"
)

// WireVersion is the version of this package's messages. It is
// compatible with nothing but itself.
const WireVersion = 3

// ProtocolVersion is what two sides must have in common.
type ProtocolVersion struct {
	Protocol   int32  // WireVersion
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

// VersionError is a difference of the versions of two sides. It is the Cause of
// ReasonBadProtocolVersion on each side that received the other's version.
type VersionError struct {
	Local, Remote ProtocolVersion
}

// Field returns the name of the first field of [ProtocolVersion] that differs, "" if none does.
func (e *VersionError) Field() string {
	switch l, r := e.Local, e.Remote; {
	case l.Protocol != r.Protocol:
		return "Protocol"
	case l.Game != r.Game:
		return "Game"
	case l.RPCs != r.RPCs:
		return "RPCs"
	case l.Components != r.Components:
		return "Components"
	}
	return ""
}

// Error names the field with both values: "game version is 0, the peer's is 7".
func (e *VersionError) Error() string {
	switch l, r := e.Local, e.Remote; e.Field() {
	case "Protocol":
		return fmt.Sprintf("protocol version is %d, the peer's is %d", l.Protocol, r.Protocol)
	case "Game":
		return fmt.Sprintf("game version is %d, the peer's is %d", l.Game, r.Game)
	case "RPCs":
		return fmt.Sprintf("RPC collection is %016x, the peer's is %016x", l.RPCs, r.RPCs)
	case "Components":
		return fmt.Sprintf("components hash is %016x, the peer's is %016x", l.Components, r.Components)
	}
	return "the versions are the same"
}

// mismatch returns in what the peer's version differs, nil if in nothing that matters.
func (v ProtocolVersion) mismatch(peer ProtocolVersion, relaxed bool) *VersionError {
	e := &VersionError{Local: v, Remote: peer}
	if f := e.Field(); f == "" || relaxed && f != "Protocol" && f != "Game" {
		return nil
	}
	return e
}
