package outcall

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptrace"
	"net/netip"
	"net/url"
	"sync/atomic"
	"syscall"
	"time"
)

const DefaultTimeout = 5 * time.Second

// maxHeader bounds the headers of an answer, in bytes.
const maxHeader = 16 << 10

// Errors of calls and of [New]. Texts name the host of a URL and nothing else
// of it: a path or a query may hold a secret.
var (
	// ErrURL: not an absolute http or https URL, or one with a user or a fragment.
	ErrURL      = errors.New("outcall: not a usable URL")
	ErrPlain    = errors.New("outcall: plain HTTP is for loopback, and for admission_url and webhook_url in private networks (RFC 1918, 4193 and 6598): use https")
	ErrConnect  = errors.New("outcall: no connection")
	ErrTooLarge = errors.New("outcall: the answer is too large")
)

type Config struct {
	// URL is absolute, http or https. Plain http goes to loopback only.
	URL string
	// AllowPrivate lets plain http go to private networks too (RFC 1918,
	// 4193 and 6598).
	AllowPrivate bool
	// Timeout bounds one call with all that belongs to it; 0 means 5 s.
	Timeout time.Duration
	// KeepAlive is how many idle connections stay open for the next call. With
	// 0 each call has a connection of its own, and nothing outlives a call.
	KeepAlive int
	// Transport replaces the network in tests, and the rules for plain http. Nil:
	// one of its own.
	Transport http.RoundTripper
}

// Endpoint is one URL that can be called. It may be used concurrently.
type Endpoint struct {
	url      string
	host     string
	client   *http.Client
	replaced bool // Config.Transport is set: there are no connections
	closed   atomic.Bool
}

// New returns an endpoint, ErrURL or ErrPlain. It connects to nothing.
func New(cfg Config) (*Endpoint, error) {
	u, err := ParseURL(cfg.URL, cfg.AllowPrivate)
	if err != nil {
		return nil, err
	}
	cfg.Timeout = cmp.Or(cfg.Timeout, DefaultTimeout)
	transport := cfg.Transport
	if transport == nil {
		transport = newTransport(u.Scheme == "http", cfg)
	}
	return &Endpoint{
		url: u.String(), host: u.Host, replaced: cfg.Transport != nil,
		client: &http.Client{
			Transport: transport, Timeout: cfg.Timeout,
			// A redirect would lead to where the operator has not looked.
			CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
		},
	}, nil
}

func newTransport(plain bool, cfg Config) *http.Transport {
	dialer := &net.Dialer{Timeout: cfg.Timeout}
	t := &http.Transport{
		DialContext: dialer.DialContext, TLSHandshakeTimeout: cfg.Timeout, ResponseHeaderTimeout: cfg.Timeout,
		MaxResponseHeaderBytes: maxHeader,
		DisableKeepAlives:      cfg.KeepAlive == 0, MaxIdleConnsPerHost: cfg.KeepAlive, IdleConnTimeout: 30 * time.Second,
		Proxy: http.ProxyFromEnvironment,
	}
	t.Protocols = new(http.Protocols)
	t.Protocols.SetHTTP1(true)
	if plain {
		t.Proxy = nil // a proxy may be on another network
		dialer.Control = nearOnly(cfg.AllowPrivate)
	}
	return t
}

// Host returns the host of the URL, for messages.
func (e *Endpoint) Host() string { return e.host }

// Close closes idle connections. Calls after it, and those that are under way,
// still work, and leave no connection open.
func (e *Endpoint) Close() {
	e.closed.Store(true)
	e.client.CloseIdleConnections()
}

func (e *Endpoint) settle() {
	if e.closed.Load() {
		e.client.CloseIdleConnections()
	}
}

type Answer struct {
	Status int
	Body   []byte
}

// Get fetches the URL and takes up to limit bytes. An answer with any status is
// no error; a redirect is such an answer.
func (e *Endpoint) Get(ctx context.Context, accept string, limit int64) (Answer, error) {
	return e.do(ctx, http.MethodGet, http.Header{"Accept": {accept}}, nil, limit)
}

// Post sends a body as JSON with further headers and takes up to limit bytes of
// the answer.
func (e *Endpoint) Post(ctx context.Context, header http.Header, body []byte, limit int64) (Answer, error) {
	h := header.Clone()
	if h == nil {
		h = make(http.Header)
	}
	h.Set("Content-Type", "application/json")
	h.Set("Accept", "application/json")
	return e.do(ctx, http.MethodPost, h, body, limit)
}

func (e *Endpoint) do(ctx context.Context, method string, header http.Header, body []byte, limit int64) (Answer, error) {
	defer e.settle()
	var connected atomic.Bool
	connected.Store(e.replaced)
	ctx = httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{GotConn: func(httptrace.GotConnInfo) { connected.Store(true) }})
	req, err := http.NewRequestWithContext(ctx, method, e.url, bytes.NewReader(body))
	if err != nil {
		return Answer{}, e.fail(err)
	}
	req.Header = header
	req.Header.Set("User-Agent", "ferry")
	resp, err := e.client.Do(req)
	switch {
	case err != nil && !connected.Load():
		return Answer{}, fmt.Errorf("%w: %w", ErrConnect, e.fail(err))
	case err != nil:
		return Answer{}, e.fail(err)
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(io.LimitReader(resp.Body, limit+1))
	switch {
	case err != nil:
		return Answer{}, e.fail(err)
	case int64(len(text)) > limit:
		return Answer{}, e.fail(fmt.Errorf("%w: more than %d bytes", ErrTooLarge, limit))
	}
	return Answer{resp.StatusCode, text}, nil
}

// A URL may hold a secret, so the error names the host only.
func (e *Endpoint) fail(err error) error {
	var inner *url.Error
	if errors.As(err, &inner) {
		err = inner.Err
	}
	return fmt.Errorf("call %s: %w", e.host, err)
}

// ParseURL reads a URL and refuses what is not for us: anything but https, and http on
// loopback or, if allowed, in private networks. What a name stands for is looked at again when
// an [Endpoint] dials it.
func ParseURL(text string, allowPrivate bool) (*url.URL, error) {
	u, err := url.Parse(text)
	switch {
	case err != nil:
		return nil, ErrURL // The error would quote the text.
	case u.Scheme != "https" && u.Scheme != "http", u.Hostname() == "", u.User != nil, u.Fragment != "":
		return nil, fmt.Errorf("%w: it has to be https://HOST/PATH, without a user and a fragment", ErrURL)
	case u.Scheme == "https":
		return u, nil
	}
	ip, err := netip.ParseAddr(u.Hostname())
	switch {
	case err == nil && !near(ip, allowPrivate), err != nil && u.Hostname() != "localhost" && !allowPrivate:
		return nil, fmt.Errorf("%w (%s)", ErrPlain, u.Host)
	}
	return u, nil
}

// shared is the address space that providers and overlay networks share (RFC 6598).
var shared = netip.MustParsePrefix("100.64.0.0/10")

func near(ip netip.Addr, allowPrivate bool) bool {
	ip = ip.Unmap()
	return ip.IsLoopback() || allowPrivate && (ip.IsPrivate() || shared.Contains(ip))
}

// nearOnly returns a check of each address before it is dialled, so that a name
// which has come to lead elsewhere is refused.
func nearOnly(allowPrivate bool) func(network, address string, _ syscall.RawConn) error {
	return func(_, address string, _ syscall.RawConn) error {
		to, err := netip.ParseAddrPort(address)
		if err != nil || !near(to.Addr(), allowPrivate) {
			return ErrPlain
		}
		return nil
	}
}
