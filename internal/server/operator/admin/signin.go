package admin

import (
	"context"
	"errors"
	"log/slog"
	"net/http"
	"net/netip"
	"strconv"
	"sync"
	"time"

	"github.com/ferryrelay/ferry/internal/net/forwarded"
)

const (
	// maxFailedSignIns is how many sign-ins of an address may fail in a minute. Beyond it, the
	// answer to a wrong credential is 429. A right one is good at any time: other people may
	// be at that address, and behind a tunnel everybody is.
	maxFailedSignIns = 10
	// failedAddresses bounds the addresses that are counted. Others count as beyond the rate.
	failedAddresses = 4096
	failedFor       = time.Minute
	// maxExchanges bounds the requests to the issuer of OpenID Connect at once, and
	// addressExchanges those by one address: anybody can come with an invented code.
	maxExchanges     = 16
	addressExchanges = 4
)

// failedSignIns counts sign-ins that failed. Any goroutine may use it.
type failedSignIns struct {
	mu        sync.Mutex // guards what follows
	began     time.Time  // of the minute that counts
	byAddress map[netip.Prefix]int
	unlogged  int
	logged    time.Time
}

func clientAddress(r *http.Request) netip.Prefix { return forwarded.Find(r, nil).Prefix }

// count counts a failure at an address. wait is how long the address is beyond its rate, and
// unlogged how many have failed since the last line of the log, if there is to be one now.
func (f *failedSignIns) count(address netip.Prefix, now time.Time) (wait time.Duration, unlogged int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.byAddress == nil || now.Sub(f.began) >= failedFor {
		f.began, f.byAddress = now, make(map[netip.Prefix]int)
	}
	n, known := f.byAddress[address]
	if known || len(f.byAddress) < failedAddresses {
		f.byAddress[address] = n + 1
	}
	if n >= maxFailedSignIns || !known && len(f.byAddress) >= failedAddresses {
		wait = f.began.Add(failedFor).Sub(now)
	}
	if f.unlogged++; f.logged.IsZero() || now.Sub(f.logged) >= failedFor {
		f.logged, unlogged, f.unlogged = now, f.unlogged, 0
	}
	return wait, unlogged
}

// refuseSignIn answers a sign-in that failed, and logs one such a minute.
func refuseSignIn(w http.ResponseWriter, r *http.Request, sessions *Sessions, log *slog.Logger, status int, person string, err error) {
	wait, unlogged := sessions.failed.count(clientAddress(r), sessions.now())
	if unlogged > 0 {
		log.Warn("operator: sign-in refused", "path", r.URL.Path, "from", r.RemoteAddr, "person", person, "error", err,
			"refused_since_last_line", unlogged)
	}
	text := err.Error()
	if wait > 0 {
		status, text = http.StatusTooManyRequests, "admin: too many sign-ins from this address have failed"
		w.Header().Set("Retry-After", strconv.Itoa(int((wait+time.Second-1)/time.Second)))
	}
	w.Header().Set("Referrer-Policy", "no-referrer") // The URL may have a code.
	w.Header().Set("Cache-Control", "no-store")
	http.Error(w, text, status)
}

// errIssuerBusy: the issuer has not answered the codes that came before.
var errIssuerBusy = errors.New("admin: too many sign-ins wait for the issuer")

// exchangeGate bounds requests to the issuer. Any goroutine may use it.
type exchangeGate struct {
	all chan struct{}

	mu        sync.Mutex // guards byAddress
	byAddress map[netip.Prefix]*addressGate
}

type addressGate struct {
	slots chan struct{}
	calls int
}

// enter waits until the caller may ask the issuer, or for ctx.
func (g *exchangeGate) enter(ctx context.Context, address netip.Prefix) (leave func(), err error) {
	g.mu.Lock()
	own := g.byAddress[address]
	if own == nil {
		own = &addressGate{slots: make(chan struct{}, addressExchanges)}
		g.byAddress[address] = own
	}
	own.calls++
	g.mu.Unlock()
	forget := func() {
		g.mu.Lock()
		defer g.mu.Unlock()
		if own.calls--; own.calls == 0 {
			delete(g.byAddress, address)
		}
	}
	for _, slots := range []chan struct{}{own.slots, g.all} { // One address waits here first.
		select {
		case slots <- struct{}{}:
		case <-ctx.Done():
			if slots == g.all {
				<-own.slots
			}
			forget()
			return nil, errIssuerBusy
		}
	}
	return func() { <-g.all; <-own.slots; forget() }, nil
}
