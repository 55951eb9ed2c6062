package redisstore

import (
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/ferryrelay/ferry/alloc"
	"github.com/ferryrelay/ferry/internal/base/joincode"
	"github.com/ferryrelay/ferry/internal/fleet/placement"
	"github.com/ferryrelay/ferry/proto"
)

// maxValue bounds the bytes of one value: more than this package writes.
const maxValue = 16 << 10

// errDamaged is returned for a value that this program did not write.
var errDamaged = fmt.Errorf("redisstore: a value in the store is not one that ferry wrote: %w", alloc.ErrStoreUnavailable)

// parseID reads the output of proto.AllocationID.String, which is in lower case.
func parseID(text string) (id proto.AllocationID, ok bool) {
	id, err := proto.ParseAllocationID(text)
	return id, err == nil && id.String() == text
}

// parseHex reads 16 hexadecimal digits in lower case.
func parseHex(text string) (n uint64, ok bool) {
	if len(text) != 16 || strings.ToLower(text) != text {
		return 0, false
	}
	n, err := strconv.ParseUint(text, 16, 64)
	return n, err == nil
}

func parseMilliseconds(text string) (int64, bool) {
	n, err := strconv.ParseUint(text, 10, 53) // What a script can count.
	return int64(n), err == nil
}

// parseCodeValue reads the value of a code: "host:since:seal".
func parseCodeValue(text string) (host proto.AllocationID, sealed string, ok bool) {
	id, rest, _ := strings.Cut(text, ":")
	since, sealed, _ := strings.Cut(rest, ":")
	if _, ok := parseMilliseconds(since); !ok {
		return proto.AllocationID{}, "", false
	}
	host, ok = parseID(id)
	return host, sealed, ok
}

// cutSeal splits the value of a field of a host's entry, which has one colon, from its
// seal.
func cutSeal(text string) (value, sealed string) {
	first, rest, ok := strings.Cut(text, ":")
	if !ok {
		return text, ""
	}
	second, sealed, _ := strings.Cut(rest, ":")
	return first + ":" + second, sealed
}

// hostCode is the code of a host. Its entry has it as "tenant:code:seal".
type hostCode struct {
	tenant uint64
	code   string
}

func (c hostCode) String() string { return tenantText(c.tenant) + ":" + c.code }

func parseHostCode(text string) (c hostCode, ok bool) {
	tenant, code, _ := strings.Cut(text, ":")
	packed, ok := joincode.Pack(code)
	if !ok || joincode.Unpack(packed) != code {
		return hostCode{}, false
	}
	hash, ok := parseHex(tenant)
	if !ok {
		return hostCode{}, false
	}
	return hostCode{hash, code}, true
}

// homeText is the home of a host. Its entry has it as "relay:boot:seal".
func homeText(h placement.Home) string { return h.Relay.String() + ":" + bootText(h.Boot) }

func bootText(boot uint64) string { return fmt.Sprintf("%016x", boot) }

func parseHome(text string) (h placement.Home, ok bool) {
	relay, boot, _ := strings.Cut(text, ":")
	id, ok := parseID(relay)
	if !ok {
		return placement.Home{}, false
	}
	n, ok := parseHex(boot)
	if !ok {
		return placement.Home{}, false
	}
	return placement.Home{Relay: alloc.RelayID(id), Boot: n}, true
}

// milliseconds rounds up, so that nothing lasts for no time.
func milliseconds(d time.Duration) int64 {
	return int64((d + time.Millisecond - 1) / time.Millisecond)
}

// keys builds the keys of the store. In a cluster the text in braces determines the
// shard: keys of one script share it.
type keys struct{ prefix string }

func tenantText(hash uint64) string { return fmt.Sprintf("%016x", hash) }

func (k keys) code(tenant uint64, code string) string {
	return k.prefix + "code:{" + tenantText(tenant) + "}:" + code
}

func (k keys) codes(tenant uint64) string { return k.prefix + "codes:{" + tenantText(tenant) + "}" }

func (k keys) host(id proto.AllocationID) string { return k.prefix + "host:" + id.String() }

// signer is the key of a certificate. It is on the shard of the entries of relays, so that
// no other shard has to answer for a relay to announce itself.
func (k keys) signer(id placement.KeyID) string {
	return k.prefix + "signer:{nodes}:" + base64.RawURLEncoding.EncodeToString(id[:])
}

func (k keys) nodes() string    { return k.prefix + "{nodes}" }
func (k keys) nodesEnd() string { return k.prefix + "{nodes}:end" }

func (k keys) apis() string { return k.prefix + "{nodes}:api" }

func (k keys) lease(scope string) string { return k.prefix + "lease:" + digest(scope) }

func (k keys) regions() string { return k.prefix + "regions" }

func (k keys) bans() string { return k.prefix + "bans" }

func (k keys) bucket(name string) string { return k.prefix + "bucket:" + digest(name) }

// digest returns a hash of an arbitrary name: of fixed length, without braces, and
// without revealing the name.
func digest(name string) string {
	sum := sha256.Sum256([]byte(name))
	return hex.EncodeToString(sum[:16])
}
