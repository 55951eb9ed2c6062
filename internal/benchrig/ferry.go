package benchrig

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"math"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/ferryrelay/ferry/alloc/api"
	"github.com/ferryrelay/ferry/client"
	"github.com/ferryrelay/ferry/proto"
)

// FerryConfig is that of package bench.
type FerryConfig struct {
	BaseURL, Token, Region string
	Relay                  netip.AddrPort
	AllowRemote            bool
	TLS                    *tls.Config
}

// Ferry is the Dialect of this project's relay. One rig at a time may be open.
type Ferry struct {
	cfg  FerryConfig
	api  *api.Client
	http *http.Transport

	transport string // of the plan of the last Open, as is family
	family    string
}

var (
	_ Churner   = (*Ferry)(nil)
	_ Replacer  = (*Ferry)(nil)
	_ Connector = (*Ferry)(nil)
)

// NewFerry sends nothing. Errors wrap ErrConfig or ErrRemote.
func NewFerry(cfg FerryConfig) (*Ferry, error) {
	u, err := url.Parse(cfg.BaseURL)
	if err != nil || u.Hostname() == "" {
		return nil, fmt.Errorf("%w: base URL %q", ErrConfig, cfg.BaseURL)
	}
	if !cfg.AllowRemote && !isLoopback(u.Hostname()) {
		return nil, fmt.Errorf("%w: %s", ErrRemote, cfg.BaseURL)
	}
	transport := &http.Transport{
		MaxIdleConnsPerHost: 256, IdleConnTimeout: time.Minute,
		DialContext: (&net.Dialer{Timeout: 5 * time.Second}).DialContext, TLSClientConfig: cfg.TLS,
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

// Carries returns true.
func (f *Ferry) Carries(string) bool { return true }

// reservation is an allocation, with the endpoint of the relay for the load, which is the
// ticket's as well.
type reservation struct {
	Arrival
	ticket client.Ticket
	server Server
}

func (f *Ferry) reserve(ctx context.Context, players int) (r reservation, err error) {
	a, err := f.api.Allocate(ctx, api.AllocateRequest{MaxConnections: players, Region: f.cfg.Region})
	if err != nil {
		return r, err
	}
	return f.newReservation(ctx, a)
}

func (f *Ferry) redeem(ctx context.Context, code string, host proto.AllocationID) (r reservation, err error) {
	a, err := f.api.Join(ctx, code)
	if err != nil {
		return r, err
	}
	r, err = f.newReservation(ctx, a)
	r.Connect = proto.ConnectRequest{ID: r.ID, ConnectionData: r.ticket.HostConnectionData}.Append(nil)
	r.Open = proto.Relay{From: r.ID, To: host}.Append(nil)
	return r, err
}

func (f *Ferry) newReservation(ctx context.Context, a api.Allocation) (r reservation, err error) {
	if r.server, err = f.server(ctx, a); err != nil {
		return r, err
	}
	a.ServerEndpoints = []api.ServerEndpoint{
		{ConnectionType: "udp", Host: r.server.Addr.Addr().String(), Port: int(r.server.Addr.Port())},
	}
	t, err := client.TicketFrom(a)
	if f.transport == TransportDTLS {
		r.server.DTLS = PSK(t.ID[:], t.Key[:])
	}
	var signer proto.Signer
	r.ticket = t
	r.Arrival = Arrival{
		ID: t.ID, Relay: t.Server, Keepalive: proto.Ping{ID: t.ID}.Append(nil),
		Bind: signer.Append(nil, proto.Bind{ConnectionData: t.ConnectionData}, &t.Key),
	}
	return r, err
}

// reserveMatch reserves a host and its players, and calls take with each of them at once: an
// allocation that is not bound ends soon.
func (f *Ferry) reserveMatch(ctx context.Context, players int, take func(place int, r reservation) error) error {
	r, err := f.reserve(ctx, players)
	if err != nil {
		return fmt.Errorf("allocate: %w", err)
	}
	host := r.ticket.ID
	code, err := f.api.JoinCode(ctx, host.String())
	if err != nil {
		return fmt.Errorf("joincode: %w", err)
	}
	for place := 0; ; place++ {
		if err := take(place, r); err != nil || place == players {
			return err
		}
		if r, err = f.redeem(ctx, code, host); err != nil {
			return fmt.Errorf("join: %w", err)
		}
	}
}

func (f *Ferry) server(ctx context.Context, a api.Allocation) (Server, error) {
	s, listed, other := Server{TLS: f.cfg.TLS}, []string{}, ""
	for _, e := range a.ServerEndpoints {
		listed = append(listed, e.ConnectionType+" "+net.JoinHostPort(e.Host, strconv.Itoa(e.Port)))
		if e.ConnectionType != f.transport {
			continue
		}
		if f.cfg.Relay.IsValid() { // The name of its certificate is that of the API's answer.
			s.Host = e.Host
			break
		}
		all, err := net.DefaultResolver.LookupNetIP(ctx, "ip", e.Host)
		if err != nil {
			return s, fmt.Errorf("bench: the relay's name: %w", err)
		}
		for _, addr := range all {
			if e.Port <= 0 || e.Port > math.MaxUint16 {
				continue
			}
			if FamilyOf(addr) == f.family {
				s.Addr, s.Host = netip.AddrPortFrom(addr.Unmap(), uint16(e.Port)), e.Host
				return s, nil
			}
			other = FamilyOf(addr)
		}
	}
	if f.cfg.Relay.IsValid() {
		s.Addr = f.cfg.Relay
		return s, nil
	}
	if other != "" {
		return s, &FamilyError{Transport: f.transport, Has: other, Listed: listed}
	}
	return s, fmt.Errorf("%w: the relay lists no endpoint for %s; it lists %s", ErrConfig, f.transport, strings.Join(listed, ", "))
}

// Open reserves a match for each host and its players, and binds and connects
// them from the endpoints that send the load.
func (f *Ferry) Open(ctx context.Context, p Plan) (*Rig, error) {
	f.transport, f.family = cmp.Or(p.Transport, TransportUDP), FamilyOf(p.Addr(0))
	r, err := NewRig(p)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	s := newFerrySetup(f, r)
	tickets := s.reserve(ctx, cancel)
	if err = s.bindAll(ctx, tickets); errors.Is(err, context.Canceled) {
		err = context.Cause(ctx)
	}
	cancel(nil)
	for range tickets { // It is closed when all goroutines have ended.
	}
	if err != nil {
		f.http.CloseIdleConnections()
		return nil, errors.Join(err, r.close())
	}
	s.finish()
	return r, nil
}

// NewMatch reserves a host and its players.
func (f *Ferry) NewMatch(ctx context.Context, players int) (match []Arrival, err error) {
	err = f.reserveMatch(ctx, players, func(_ int, r reservation) error {
		match = append(match, r.Arrival)
		return nil
	})
	return match, err
}

// Header writes the header of a RELAY. The length of the payload stays as it is.
func (f *Ferry) Header(prefix []byte, from, to *Arrival) {
	length := [2]byte(prefix[proto.RelayOverhead-2:])
	relay := proto.Relay{From: from.ID, To: to.ID}.Append(prefix[:0])
	copy(relay[proto.RelayOverhead-2:], length[:])
}

func explainFerry(pkt []byte) string {
	switch t, err := proto.ParseType(pkt); {
	case err != nil:
		return Foreign
	case t == proto.TypeBindReceived:
		return Answer
	case t == proto.TypeAccepted:
		return Accepted
	case t == proto.TypePing:
		return Alive
	case t == proto.TypeDisconnect:
		return ""
	case t == proto.TypeError:
		if e, err := proto.ParseError(pkt); err == nil && int(e.Code) < len(ferryErrors) {
			return ferryErrors[e.Code]
		}
		return "ERROR of an unknown code"
	case t == proto.TypeRelay && len(pkt) == proto.RelayOverhead:
		return "" // the first over a link
	case t == proto.TypeRelay:
		return OtherContent
	case t == proto.TypeRejected:
		return "REJECTED"
	}
	return "message of another type"
}

// ferryErrors are names for Result.Errors, by code.
var ferryErrors = [...]string{
	proto.ErrorVersion: "ERROR 0 version", proto.ErrorTimeout: TimedOut,
	proto.ErrorUnauthorized: "ERROR 2 unauthorized", proto.ErrorMismatch: Mismatch,
	proto.ErrorNotFound: "ERROR 4 not found", proto.ErrorNotConnected: "ERROR 5 not connected",
	proto.ErrorSelfConnect: "ERROR 6 connect to self",
}
