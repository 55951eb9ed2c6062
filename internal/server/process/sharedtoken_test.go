package process

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ferryrelay/ferry/alloc/api"
	"github.com/ferryrelay/ferry/client"
	"github.com/ferryrelay/ferry/internal/server/config"
)

// viaProxy calls as a client of a trusted proxy does.
type viaProxy struct {
	client string // its address
	proxy  http.RoundTripper
}

func (p viaProxy) RoundTrip(r *http.Request) (*http.Response, error) {
	r = r.Clone(r.Context())
	r.Header.Set("X-Forwarded-For", p.client)
	return p.proxy.RoundTrip(r)
}

func (r running) callerFrom(address string) *api.Client {
	c := r.caller(secret)
	c.HTTP.Transport = viaProxy{address, c.HTTP.Transport}
	return c
}

// TestSharedToken: six players that all have one static token lose their host, and each asks for its
// place. Within the same minute the next match of that token is set up. Players in networks of their
// own may ask four times a second, as games did that did not heed Retry-After; those behind one
// address heed it.
func TestSharedToken(t *testing.T) {
	t.Parallel()
	const joiners = 6
	for name, where := range map[string]struct {
		address func(i int) string
		patient bool
	}{
		"networks":       {address: func(i int) string { return fmt.Sprintf("198.51.100.%d", i+1) }},
		"IPv6":           {address: func(i int) string { return fmt.Sprintf("2001:db8:0:%x00::1", i+1) }},
		"behind one NAT": {address: func(int) string { return "203.0.113.7" }, patient: true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := local()
			migration(&c, crashy)
			c.PlayerPerMinute, c.TrustedProxies = config.Serve().PlayerPerMinute, []config.Network{network("127.0.0.0/8")}
			r := start(t, options(c, Serve))
			players, code := newMatch(t, joiners, func(i int) *api.Client { return r.callerFrom(where.address(i)) })
			began := time.Now()
			rest := leaveHost(t, players, crashes)
			ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
			defer cancel()
			var calls atomic.Int32
			var asking sync.WaitGroup
			for _, p := range rest {
				asking.Go(func() {
					for ctx.Err() == nil && !t.Failed() {
						calls.Add(1)
						if wait, done := p.askOnce(ctx, t, code); done {
							return
						} else if where.patient {
							time.Sleep(wait)
						}
						time.Sleep(250 * time.Millisecond)
					}
				})
			}
			asking.Wait()
			if t.Failed() {
				t.FailNow()
			}
			exchange(t, rest)
			t.Logf("%d calls of migrate, %v until all play again", calls.Load(), time.Since(began))
			newMatch(t, joiners, func(i int) *api.Client { return r.callerFrom(where.address(i)) })
		})
	}
}

// askOnce calls migrate, and then enters the match that goes on if it can, as docs/unity.md says.
func (p *participant) askOnce(ctx context.Context, t *testing.T, code string) (wait time.Duration, done bool) {
	status, answer, after := post(t, p.api, "/v1/migrate",
		map[string]any{"joinCode": code, "hostConnectionData": p.ticket.HostConnectionData})
	var ticket client.Ticket
	var err error
	switch {
	case status == http.StatusCreated:
		ticket, err = ticketOf(answer)
	case status == http.StatusConflict && answer["details"] != nil:
		ticket, err = client.Redeem(ctx, p.api, code)
	case status != http.StatusConflict:
		err = fmt.Errorf("migrate: %d %v", status, answer)
	default:
		return time.Duration(after) * time.Second, false
	}
	if err != nil {
		t.Error(err)
		return 0, true
	}
	next := &participant{api: p.api}
	next.play(t, ticket)
	if err := next.enter(ctx); err != nil {
		next.stop() // Another player was first.
		return 0, false
	}
	p.stop()
	*p = *next
	return 0, true
}

func ticketOf(answer map[string]any) (client.Ticket, error) {
	encoded, _ := json.Marshal(answer)
	var parsed struct {
		Data struct{ Allocation api.Allocation }
	}
	if err := json.Unmarshal(encoded, &parsed); err != nil {
		return client.Ticket{}, err
	}
	return client.TicketFrom(parsed.Data.Allocation)
}
