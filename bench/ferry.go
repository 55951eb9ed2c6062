package bench

import (
	"crypto/tls"
	"net/netip"

	"github.com/ferryrelay/ferry/internal/benchrig"
)

// Dialect is one kind of relay; [NewFerry] returns that of this project's relay, and
// others are refused. It serves one run at a time.
type Dialect interface {
	// Name is a short word for tables, such as "ferry".
	Name() string
}

// FerryConfig is a relay that the load reaches through its Allocations API.
type FerryConfig struct {
	// BaseURL of the API, such as "http://127.0.0.1:7777". Required.
	BaseURL string
	// Token is the bearer token. Empty for a server that admits anonymous callers.
	Token string
	// Region that allocations ask for. Empty lets the server choose.
	Region string
	// Relay replaces the UDP address that the API advertises. Zero: as advertised.
	Relay netip.AddrPort
	// AllowRemote permits a BaseURL outside of loopback.
	AllowRemote bool
	// TLS is for an API over https and a relay over wss. Nil: the system's authorities are trusted.
	TLS *tls.Config
}

// NewFerry returns the Dialect of a relay. Errors wrap [ErrConfig] or [ErrRemote].
func NewFerry(cfg FerryConfig) (Dialect, error) {
	d, err := benchrig.NewFerry(benchrig.FerryConfig(cfg))
	if err != nil {
		return nil, err
	}
	return d, nil
}
