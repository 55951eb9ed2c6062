package bench

import (
	"crypto/tls"
	"fmt"
	"net/netip"

	"github.com/ferryrelay/ferry/internal/benchrig"
)

// Dialect is one kind of relay, which [NewDialect] chooses by name. It serves one run at a time, and
// the zero value is none.
type Dialect struct{ relay benchrig.Dialect }

// Name returns the name for tables, "" for the zero value.
func (d Dialect) Name() string {
	if d.relay == nil {
		return ""
	}
	return d.relay.Name()
}

// The names of dialects.
const (
	dialectFerry  = "ferry"  // this project's relay, which the load reaches through its Allocations API
	dialectTURN   = "turn"   // a TURN server (RFC 8656): players have allocations, hosts are plain peers
	dialectSwap   = "swap"   // a relay that computes destinations from source addresses, as that of ferry bench null
	dialectDirect = "direct" // no relay: what this machine costs
)

// DialectConfig is a relay and how the load reaches it.
type DialectConfig struct {
	// Name is that of a dialect. Default DialectFerry.
	Name string
	// BaseURL of the API, such as "http://127.0.0.1:7777". Required for ferry, as the fields below are for it.
	BaseURL string
	// Token is the bearer token. Empty for a server that admits anonymous callers.
	Token string
	// Region that allocations ask for. Empty lets the server choose.
	Region string
	// AllowRemote permits a BaseURL outside of loopback.
	AllowRemote bool
	// TLS is for an API over https and a relay over wss. Nil: the system's authorities are trusted.
	TLS *tls.Config
	// Relay is the address of a relay of another dialect. That of ferry it replaces. Zero: as the API advertises.
	Relay netip.AddrPort
	// User and Password are long-term credentials for turn. Empty for a server that asks for none.
	User, Password string
}

// NewDialect returns a dialect. Errors wrap [ErrConfig] or [ErrRemote].
func NewDialect(cfg DialectConfig) (Dialect, error) {
	switch cfg.Name {
	case "", dialectFerry:
		f, err := benchrig.NewFerry(benchrig.FerryConfig{
			BaseURL: cfg.BaseURL, Token: cfg.Token, Region: cfg.Region, Relay: cfg.Relay, AllowRemote: cfg.AllowRemote, TLS: cfg.TLS,
		})
		if err != nil {
			return Dialect{}, err
		}
		return Dialect{f}, nil
	case dialectSwap, dialectTURN:
		if !cfg.Relay.IsValid() {
			return Dialect{}, fmt.Errorf("%w: the dialect %s needs the address of the relay", ErrConfig, cfg.Name)
		}
		if cfg.Name == dialectTURN {
			return Dialect{benchrig.NewTURN(benchrig.TURNConfig{Server: cfg.Relay, User: cfg.User, Password: cfg.Password})}, nil
		}
		return Dialect{benchrig.Swap{Relay: cfg.Relay}}, nil
	case dialectDirect:
		return Dialect{benchrig.Direct{Header: benchrig.DefaultHeader}}, nil
	}
	return Dialect{}, fmt.Errorf("%w: the dialect %q is none of ferry, turn, swap and direct", ErrConfig, cfg.Name)
}
