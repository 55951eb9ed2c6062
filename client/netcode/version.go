package netcode

import (
	"encoding/binary"
	"fmt"
)

// wireVersion is compatible with nothing but itself.
const wireVersion = 3

type version struct {
	Protocol   int32  // wireVersion
	Game       int32  // Config.GameVersion
	RPCs       uint64 // a hash over the names and options of all RPCs
	Components uint64 // Config.ComponentsHash
}

// versionLen is the size of the version RPC: the four fields and 4 bytes that
// are reserved for an identity that survives a reconnect.
const versionLen = 4 + 4 + 8 + 8 + 4

func (v version) append(dst []byte) []byte {
	dst = binary.LittleEndian.AppendUint32(dst, uint32(v.Protocol))
	dst = binary.LittleEndian.AppendUint32(dst, uint32(v.Game))
	dst = binary.LittleEndian.AppendUint64(dst, v.RPCs)
	dst = binary.LittleEndian.AppendUint64(dst, v.Components)
	return append(dst, 0, 0, 0, 0)
}

func parseVersion(b []byte) version {
	return version{
		Protocol:   int32(binary.LittleEndian.Uint32(b)),
		Game:       int32(binary.LittleEndian.Uint32(b[4:])),
		RPCs:       binary.LittleEndian.Uint64(b[8:]),
		Components: binary.LittleEndian.Uint64(b[16:]),
	}
}

// VersionError is the Cause of ReasonBadProtocolVersion on a side that received
// the other's version.
type VersionError struct {
	// Field is what differs: protocol version (of this package), game version, RPC
	// collection (the names and options of all RPCs), or components hash.
	Field string
	// Local is this side's value, Remote the peer's, negative versions
	// sign-extended.
	Local, Remote uint64
}

// Error names the field with both values: "game version is 0, the peer's is 7".
func (e *VersionError) Error() string {
	if e.Field == fieldRPCs || e.Field == fieldComponents {
		return fmt.Sprintf("%s is %016x, the peer's is %016x", e.Field, e.Local, e.Remote)
	}
	return fmt.Sprintf("%s is %d, the peer's is %d", e.Field, int64(e.Local), int64(e.Remote))
}

const (
	fieldRPCs       = "RPC collection"
	fieldComponents = "components hash"
)

// mismatch returns in what the peer's version differs, nil if in nothing that matters.
func (v version) mismatch(peer version, relaxed bool) *VersionError {
	switch {
	case v.Protocol != peer.Protocol:
		return &VersionError{"protocol version", uint64(v.Protocol), uint64(peer.Protocol)}
	case v.Game != peer.Game:
		return &VersionError{"game version", uint64(v.Game), uint64(peer.Game)}
	case relaxed:
		return nil
	case v.RPCs != peer.RPCs:
		return &VersionError{fieldRPCs, v.RPCs, peer.RPCs}
	case v.Components != peer.Components:
		return &VersionError{fieldComponents, v.Components, peer.Components}
	}
	return nil
}
