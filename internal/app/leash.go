package app

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net/http"
	"strconv"
	"sync/atomic"
	"time"
)

const (
	// authorityWithin bounds one request of the authority.
	authorityWithin = 30 * time.Second
	// maxAuthority bounds its answer in bytes: a chain of certificates.
	maxAuthority = 1 << 20
	// maxWait bounds for how long it may let us wait before we ask again, so that
	// the end of the process does not have to.
	maxWait = 5 * time.Second
)

// errUnleashed is for requests before and after run.
var errUnleashed = errors.New("app: acme: not running")

// leash is how the library of ACME, which takes no context from us, reaches the
// authority: while run runs, and not afterwards. Its methods may be called from
// several goroutines.
type leash struct {
	base *http.Transport
	ctx  atomic.Pointer[context.Context]
}

func newLeash() *leash {
	base := http.DefaultTransport.(*http.Transport).Clone()
	base.DisableKeepAlives = true // An idle connection has goroutines.
	return &leash{base: base}
}

// hold allows requests until ctx ends.
func (l *leash) hold(ctx context.Context) { l.ctx.Store(&ctx) }

func (l *leash) alive() (context.Context, bool) {
	p := l.ctx.Load()
	if p == nil || (*p).Err() != nil {
		return nil, false
	}
	return *p, true
}

// RoundTrip implements [http.RoundTripper]. It reads the answer before it returns.
func (l *leash) RoundTrip(r *http.Request) (*http.Response, error) {
	run, ok := l.alive()
	if !ok {
		return nil, errUnleashed
	}
	ctx, cancel := context.WithTimeout(r.Context(), authorityWithin)
	defer cancel()
	defer context.AfterFunc(run, cancel)()
	res, err := l.base.RoundTrip(r.WithContext(ctx))
	if err != nil {
		return nil, err
	}
	body, err := io.ReadAll(io.LimitReader(res.Body, maxAuthority))
	res.Body.Close()
	if err != nil {
		return nil, err
	}
	res.Body = io.NopCloser(bytes.NewReader(body))
	if s, err := strconv.Atoi(res.Header.Get("Retry-After")); err != nil || s > int(maxWait/time.Second) {
		res.Header.Del("Retry-After")
	}
	return res, nil
}

// backoff says for how long the library waits before it repeats a request, and
// with a negative time that it does not.
func (l *leash) backoff(n int, _ *http.Request, _ *http.Response) time.Duration {
	if _, ok := l.alive(); !ok || n > issuedTries {
		return -1
	}
	return min(time.Second<<n, maxWait)
}
