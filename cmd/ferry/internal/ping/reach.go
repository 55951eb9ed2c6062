package ping

import (
	"context"
	"crypto/tls"
	"errors"
	"net"
	"net/http"
	"net/url"
	"time"

	"github.com/ferryrelay/ferry/client"
)

// Reach is what the way from this machine to an address of a relay does to UDP and TCP.
type Reach struct {
	Addr string
	UDP  client.Quality // Err says why there may be no answer
	// Scheme is that of the WebSocket that opens, wss or ws, and Opened is how long it took. WebSocket is why none
	// does.
	Scheme    string
	Opened    time.Duration
	WebSocket error
}

// ReachOf tries the first address of host:port in each family: UDP of both at once, then TCP. An error is that of
// the name.
func ReachOf(ctx context.Context, addr string) (all []Reach, err error) {
	host, port, err := net.SplitHostPort(addr)
	if err != nil {
		return nil, err
	}
	found, err := net.DefaultResolver.LookupNetIP(ctx, "ip", host)
	if err != nil {
		return nil, err
	}
	var sites []client.Site
	families := map[bool]bool{}
	for _, ip := range found {
		if is4 := ip.Unmap().Is4(); !families[is4] {
			families[is4] = true
			sites = append(sites, client.Site{Addr: net.JoinHostPort(ip.Unmap().String(), port)})
		}
	}
	for _, q := range measure(ctx, sites) {
		r := Reach{Addr: q.Addr, UDP: q}
		r.openWebSocket(ctx, host)
		all = append(all, r)
	}
	return all, nil
}

// openWebSocket opens one as a player does, with TLS or without.
func (r *Reach) openWebSocket(ctx context.Context, name string) {
	ctx, cancel := context.WithTimeout(ctx, answerTimeout)
	defer cancel()
	var c client.Conn
	for _, scheme := range []string{"wss", "ws"} {
		began := time.Now()
		c, r.WebSocket = openWebSocket(ctx, scheme+"://"+r.Addr+"/", &tls.Config{ServerName: name})
		if r.WebSocket == nil {
			r.Scheme, r.Opened = scheme, time.Since(began)
			_ = c.Close() // It has shown what it is for.
			return
		}
		if !errors.Is(r.WebSocket, http.ErrSchemeMismatch) {
			break
		}
	}
	if failed, ok := errors.AsType[*url.Error](r.WebSocket); ok {
		r.WebSocket = failed.Err // without the steps of a handshake
	}
}
