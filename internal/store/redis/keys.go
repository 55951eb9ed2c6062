package redisstore

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"

	"github.com/ferryrelay/ferry/proto"
)

// keys names what is in the store. Braces decide which shard of a cluster has
// a key: those that one script touches have the same text between them.
type keys struct{ prefix string }

// tenantText is the hash of a tenant as keys have it.
func tenantText(hash uint64) string { return fmt.Sprintf("%016x", hash) }

// code is the key of a join code, and codes that of the list of all codes of
// its tenant.
func (k keys) code(tenant uint64, code string) string {
	return k.prefix + "code:{" + tenantText(tenant) + "}:" + code
}

func (k keys) codes(tenant uint64) string { return k.prefix + "codes:{" + tenantText(tenant) + "}" }

// host is the key of a host.
func (k keys) host(id proto.AllocationID) string { return k.prefix + "host:" + id.String() }

// nodes is the key of the entries of relays, and nodesEnd that of the times at
// which they go.
func (k keys) nodes() string    { return k.prefix + "{nodes}" }
func (k keys) nodesEnd() string { return k.prefix + "{nodes}:end" }

// lease is the key of what holders use of a scope.
func (k keys) lease(scope string) string { return k.prefix + "lease:" + digest(scope) }

// bucket is the key of a token bucket.
func (k keys) bucket(name string) string { return k.prefix + "bucket:" + digest(name) }

// digest is the name of something that others named, and may have named as they
// liked: of a known length, without braces, and without saying who it is.
func digest(name string) string {
	sum := sha256.Sum256([]byte(name))
	return hex.EncodeToString(sum[:16])
}
