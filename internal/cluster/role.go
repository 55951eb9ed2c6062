package cluster

import (
	"crypto/x509"
	"errors"
	"fmt"
	"net/url"
	"strings"
)

// Role says what the holder of a certificate is in the cluster. It stands in
// the certificate as the URI "ferry:role:" and the role.
type Role string

// The roles.
const (
	// RoleAPI reserves: the process that answers players' calls. Operators reach
	// all relays through it, so it may do what RoleAdmin may.
	RoleAPI Role = "api"
	// RoleRelay is asked. Its certificate names its relay id as a DNS name.
	RoleRelay Role = "relay"
	// RoleAdmin looks, drains, kicks and closes, and reserves nothing.
	RoleAdmin Role = "admin"
)

// rolePrefix is what all role URIs begin with.
const rolePrefix = "ferry:role:"

// ErrRole is returned for a certificate that names no role, several, or
// another one than is needed.
var ErrRole = errors.New("cluster: the certificate has not the role that is needed")

func (r Role) known() bool { return r == RoleAPI || r == RoleRelay || r == RoleAdmin }

// uri returns what stands in a certificate.
func (r Role) uri() *url.URL { return &url.URL{Scheme: "ferry", Opaque: "role:" + string(r)} }

// usage is what a certificate of the role is good for besides: a relay is
// called and the others call, so that none of them passes for the other kind.
func (r Role) usage() x509.ExtKeyUsage {
	if r == RoleRelay {
		return x509.ExtKeyUsageServerAuth
	}
	return x509.ExtKeyUsageClientAuth
}

// roleOf returns the one role that a certificate names, or ErrRole.
func roleOf(c *x509.Certificate) (Role, error) {
	var roles []Role
	for _, u := range c.URIs {
		if name, ok := strings.CutPrefix(u.String(), rolePrefix); ok {
			roles = append(roles, Role(name))
		}
	}
	switch {
	case len(roles) == 0:
		return "", fmt.Errorf("%w: it names none (a URI %s...)", ErrRole, rolePrefix)
	case len(roles) > 1:
		return "", fmt.Errorf("%w: it names %d", ErrRole, len(roles))
	case !roles[0].known():
		return "", fmt.Errorf("%w: it names %q", ErrRole, roles[0])
	}
	return roles[0], nil
}
