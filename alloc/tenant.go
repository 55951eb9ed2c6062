package alloc

import (
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"strings"
)

// MaxTenantName is the largest length in bytes of a project or environment
// name: both travel inside the sealed connection data, which has 255 bytes.
const MaxTenantName = 56

// ErrTenantName is returned for a project or environment name that is longer
// than [MaxTenantName] or holds a NUL byte.
var ErrTenantName = errors.New("alloc: project or environment name is longer than 56 bytes or holds a NUL")

// Tenant names whose allocation it is: a project and one of its environments.
// Allocations of different tenants never meet.
type Tenant struct {
	Project     string
	Environment string
}

// Validate reports whether both names can be sealed.
func (t Tenant) Validate() error {
	for _, name := range []string{t.Project, t.Environment} {
		if len(name) > MaxTenantName || strings.IndexByte(name, 0) >= 0 {
			return ErrTenantName
		}
	}
	return nil
}

// Hash returns a 64-bit digest of both names, which the relay compares instead
// of the names.
func (t Tenant) Hash() uint64 {
	sum := sha256.Sum256([]byte(t.Project + "\x00" + t.Environment))
	return binary.LittleEndian.Uint64(sum[:])
}

// String returns "project/environment".
func (t Tenant) String() string { return t.Project + "/" + t.Environment }
