package httpapi

import (
	"context"
	"errors"
	"log/slog"
	"net/http"
	"net/netip"
	"strings"
	"time"

	"github.com/google/uuid"

	"github.com/ferryrelay/ferry/alloc"
	"github.com/ferryrelay/ferry/alloc/api"
)

// serviceTimeout bounds the service's part of a request. It leaves time to
// answer before the SDK gives up (10 s).
const serviceTimeout = 8 * time.Second

// callName names a call in limits, metrics and logs.
type callName string

// The names of calls. The last two are no calls of the API.
const (
	callAllocate  callName = "allocate"
	callJoinCode  callName = "joincode"
	callJoin      callName = "join"
	callRegions   callName = "regions"
	callSpec      callName = "openapi"
	callPreflight callName = "preflight"
	callOther     callName = "other"
)

// call is one thing that the API does.
type call struct {
	name   callName
	method string
	serve  func(ctx context.Context, r request) (answer, *api.Problem)
}

// request is what a call gets to see.
type request struct {
	id     string
	from   from
	caller alloc.Caller
	body   []byte
}

// answer is what a call returns when it succeeds.
type answer struct {
	status int
	body   any
}

// Handler serves the API. It does not change after [New], except for its
// limits, which have locks of their own; many goroutines may use it.
type Handler struct {
	service *alloc.Service
	calls   map[string]call // by path
	tokens  tokenTable
	limits  *limits // nil means unlimited
	origins origins
	proxies []netip.Prefix
	cfg     Config
	log     *slog.Logger
	now     func() time.Time
}

// New returns a handler. It refuses a configuration that nobody could call,
// tokens without project or environment, and secrets that are too short, not
// printable or given twice.
func New(cfg Config) (*Handler, error) {
	if err := cfg.validate(); err != nil {
		return nil, err
	}
	tokens, err := newTokenTable(cfg.Tokens)
	if err != nil {
		return nil, err
	}
	h := &Handler{
		service: cfg.Service,
		tokens:  tokens,
		origins: newOrigins(cfg.AllowOrigins),
		proxies: cfg.TrustedProxies,
		cfg:     cfg,
		log:     cfg.Logger,
		now:     time.Now,
	}
	h.cfg.Tokens = nil
	if h.log == nil {
		h.log = slog.New(slog.DiscardHandler)
	}
	switch {
	case cfg.Unlimited:
	case cfg.Counts != nil:
		h.limits = cfg.Counts.of
	default:
		h.limits = newLimits()
	}
	h.calls = map[string]call{
		"/v1/allocate":  {callAllocate, http.MethodPost, h.allocate},
		"/v1/joincode":  {callJoinCode, http.MethodPost, h.joinCode},
		"/v1/join":      {callJoin, http.MethodPost, h.join},
		"/v1/regions":   {callRegions, http.MethodGet, h.regions},
		"/openapi.yaml": {callSpec, http.MethodGet, nil},
	}
	return h, nil
}

// ServeHTTP answers one request.
func (h *Handler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	start := h.now()
	id := uuid.NewString()
	header := w.Header()
	header.Set(headerRequestID, id)
	header.Set("Cache-Control", "no-store")
	header.Set("X-Content-Type-Options", "nosniff")
	h.origins.decorate(header, r.Header.Get("Origin"))

	name, status := h.dispatch(w, r, id)
	took := h.now().Sub(start)
	if h.cfg.OnRequest != nil {
		h.cfg.OnRequest(string(name), status, took)
	}
	h.log.Debug("request", "call", string(name), "status", status, "took", took, "requestId", id)
}

// RoutePath returns the path by which requests are routed. The SDK joins strings,
// so a base path with a trailing slash makes its paths begin with two slashes:
// RoutePath removes the first of these. It changes nothing else, and leaves
// "//" that was percent-encoded. A program that serves other paths next to those
// of a [Handler] can use it for them.
func RoutePath(r *http.Request) string {
	if r.URL.RawPath == "" && strings.HasPrefix(r.URL.Path, "//") {
		return r.URL.Path[1:]
	}
	return r.URL.Path
}

// dispatch does what needs no principal, and hands over the rest.
func (h *Handler) dispatch(w http.ResponseWriter, r *http.Request, id string) (callName, int) {
	c, ok := h.calls[RoutePath(r)]
	switch {
	case !ok:
		return callOther, writeProblem(w, statusProblem(http.StatusNotFound, "there is no such path"))
	case r.Method == http.MethodOptions:
		return callPreflight, preflight(w, r, c.method)
	case r.Method != c.method:
		w.Header().Set("Allow", allow(c.method))
		return c.name, writeProblem(w, statusProblem(http.StatusMethodNotAllowed, "method not allowed"))
	case c.name == callSpec:
		return c.name, writeSpec(w)
	}
	a, problem := h.perform(w, r, c, id)
	if problem != nil {
		return c.name, writeProblem(w, problem)
	}
	return c.name, writeJSON(w, a.status, a.body)
}

// perform admits the caller, reads the body and does the call.
func (h *Handler) perform(w http.ResponseWriter, r *http.Request, c call, id string) (answer, *api.Problem) {
	f, problem := h.admit(w.Header(), r, c.name)
	if problem != nil {
		return answer{}, problem
	}
	body, problem := readBody(w, r)
	if problem != nil {
		return answer{}, problem
	}
	ctx, cancel := context.WithTimeout(r.Context(), serviceTimeout)
	defer cancel()
	return c.serve(ctx, request{id: id, from: f, caller: f.principal.caller(c.name), body: body})
}

// admit finds out who is calling and whether it is within its rates. The header
// is that of the answer.
func (h *Handler) admit(header http.Header, r *http.Request, name callName) (from, *api.Problem) {
	address, own := clientAddress(r, h.proxies)
	p, err := h.identify(r, address, own)
	var problem *api.Problem
	switch {
	case err == nil:
	case errors.As(err, &problem):
		return from{}, problem
	case h.cfg.Anonymous:
		p = anonymousFrom(address)
	default:
		h.log.Debug("no caller", "call", string(name), "why", err)
		if own {
			if problem := h.strange(address, err); problem != nil {
				return from{}, problem
			}
		}
		problem = unauthorized(err)
		if problem.Status == http.StatusUnauthorized {
			header.Set("WWW-Authenticate", challenge(err))
		}
		return from{}, problem
	}
	f := from{principal: p, address: address, counted: own && p.kind != KindServer}
	return f, h.admitted(r.Context(), f, name)
}
