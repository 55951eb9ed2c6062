package bench

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"time"

	"github.com/ferryrelay/ferry/alloc/api"
	"github.com/ferryrelay/ferry/client"
	"github.com/ferryrelay/ferry/proto"
)

// FerryConfig is a relay of the Unity Relay message protocol, reached as a game
// does: through its Allocations API.
type FerryConfig struct {
	// BaseURL of the API, such as "http://127.0.0.1:7777". Required.
	BaseURL string
	// Token is the bearer token. Empty for a server that admits anonymous callers.
	Token string
	// Region is asked for. Empty lets the server choose.
	Region string
	// Relay replaces the address that the API advertises. Zero: as advertised.
	Relay netip.AddrPort
	// Workers is how many matches are reserved at a time. 0 = 4, at most 256.
	Workers int
	// AllowRemote permits a BaseURL outside of loopback.
	AllowRemote bool
	// Secure makes the way of an endpoint to the relay an encrypted one and sets
	// its Cipher, before its BIND. What arrives for other endpoints meanwhile goes
	// to others. Nil: plain UDP.
	Secure func(ctx context.Context, r *Rig, ep int, t client.Ticket, others Handler) error
}

// Handler takes a datagram that came to an endpoint; it is valid during the call.
type Handler func(ep int, from netip.AddrPort, pkt []byte)

// Ferry is the Dialect of this project's relay. Its fields are not changed
// after NewFerry; one rig at a time may be open.
type Ferry struct {
	cfg  FerryConfig
	api  *api.Client
	http *http.Transport
}

var (
	_ Churner  = (*Ferry)(nil)
	_ Reserver = (*Ferry)(nil)
)

// NewFerry checks the configuration; nothing is sent yet.
func NewFerry(cfg FerryConfig) (*Ferry, error) {
	setDefault(&cfg.Workers, 4)
	if cfg.Workers < 1 || cfg.Workers > 256 {
		return nil, fmt.Errorf("%w: %d workers", ErrConfig, cfg.Workers)
	}
	u, err := url.Parse(cfg.BaseURL)
	if err != nil || u.Hostname() == "" {
		return nil, fmt.Errorf("%w: base URL %q", ErrConfig, cfg.BaseURL)
	}
	if !cfg.AllowRemote && !isLoopback(u.Hostname()) {
		return nil, fmt.Errorf("%w: %s", ErrRemote, cfg.BaseURL)
	}
	transport := &http.Transport{
		MaxIdleConnsPerHost: 256, IdleConnTimeout: time.Minute,
		DialContext: (&net.Dialer{Timeout: 5 * time.Second}).DialContext,
	}
	return &Ferry{
		cfg: cfg, http: transport,
		api: &api.Client{BaseURL: cfg.BaseURL, Token: cfg.Token, HTTP: &http.Client{
			Timeout: api.DefaultTimeout, Transport: transport,
			CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
		}},
	}, nil
}

func isLoopback(host string) bool {
	addr, err := netip.ParseAddr(host)
	return host == "localhost" || err == nil && addr.Unmap().IsLoopback()
}

// Name is "ferry".
func (f *Ferry) Name() string { return "ferry" }

// Open reserves a match for each host and its players, and binds and connects
// them from the very endpoints that the load will come from.
func (f *Ferry) Open(ctx context.Context, p Plan) (*Rig, error) {
	r, err := NewRig(p)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	s := newFerrySetup(f, r)
	tickets, wait := s.reserve(ctx, cancel)
	err = s.bindAll(ctx, tickets)
	cancel()
	if failure := wait(); failure != nil {
		err = failure
	}
	if err != nil {
		f.http.CloseIdleConnections()
		return nil, errors.Join(err, r.close())
	}
	s.finish()
	return r, nil
}

// Reserve asks for an allocation of a host with one player. The relay takes it
// back when nobody binds it.
func (f *Ferry) Reserve(ctx context.Context) error {
	_, err := client.Reserve(ctx, f.api, 1, f.cfg.Region)
	return err
}

// explainFerry names what a relay says apart from RELAY.
func explainFerry(pkt []byte) string {
	switch t, err := proto.ParseType(pkt); {
	case err != nil:
		return "foreign"
	case t == proto.TypeBindReceived:
		return Answer
	case t == proto.TypePing, t == proto.TypeAccepted, t == proto.TypeDisconnect:
		return ""
	case t == proto.TypeError:
		if e, err := proto.ParseError(pkt); err == nil && int(e.Code) < len(ferryErrors) {
			return ferryErrors[e.Code]
		}
		return "ERROR of an unknown code"
	case t == proto.TypeRelay:
		return "RELAY of something else"
	case t == proto.TypeRejected:
		return "REJECTED"
	}
	return "message of another type"
}

// ferryErrors are names for Result.Errors, by code.
var ferryErrors = [...]string{
	proto.ErrorVersion: "ERROR 0 version", proto.ErrorTimeout: "ERROR 1 timed out",
	proto.ErrorUnauthorized: "ERROR 2 unauthorized", proto.ErrorMismatch: "ERROR 3 endpoint mismatch",
	proto.ErrorNotFound: "ERROR 4 not found", proto.ErrorNotConnected: "ERROR 5 not connected",
	proto.ErrorSelfConnect: "ERROR 6 connect to self",
}
