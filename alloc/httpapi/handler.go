package httpapi

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"net/http"
	"net/netip"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/google/uuid"

	"github.com/ferryrelay/ferry/alloc"
	"github.com/ferryrelay/ferry/alloc/api"
	"github.com/ferryrelay/ferry/internal/base/origin"
	"github.com/ferryrelay/ferry/internal/base/urlpath"
	"github.com/ferryrelay/ferry/internal/net/forwarded"
)

// serviceTimeout bounds the service call of a request. It is shorter than the
// timeout of the SDK (10 s), so that the client gets the answer.
const serviceTimeout = 8 * time.Second

type callName string

// The names of calls. The last two are not calls of the API.
const (
	callAllocate  callName = "allocate"
	callJoinCode  callName = "joincode"
	callJoin      callName = "join"
	callMigrate   callName = "migrate"
	callLeave     callName = "leave"
	callRegions   callName = "regions"
	callChoose    callName = "chooseregion"
	callSpec      callName = "openapi"
	callPreflight callName = "preflight"
	callOther     callName = "other"
)

type call struct {
	name   callName
	method string
	serve  func(ctx context.Context, r request) (answer, *api.Problem)
	// maxBody is the largest body in bytes. 0: maxBody.
	maxBody int64
}

type request struct {
	id     string
	trace  slog.Attr // see traceOf
	source source
	caller alloc.Caller
	body   []byte
}

// answer is the result of a successful call. A body that is nil is not sent.
type answer struct {
	status int
	body   any
}

// Handler serves the API. It may be used concurrently: it is immutable after [New],
// except for its limits, which have locks.
type Handler struct {
	service *alloc.Service
	calls   map[string]call // by path
	tokens  tokenTable
	limits  *limits
	origins origin.List // whose pages may read answers
	proxies []netip.Prefix
	cfg     Config
	log     *slog.Logger
	wrong   atomic.Int64 // Unix time of the last line about a TokenError

	largeBodies largeBodies

	hooks *hooks

	now func() time.Time
}

// New returns a handler, or one of the errors of this package. It continues the counts of the handler
// that it replaces, if there is one, so that a new configuration resets no limit.
func New(cfg Config, replaced ...*Handler) (*Handler, error) {
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
		proxies: cfg.TrustedProxies,
		cfg:     cfg,
		log:     cfg.Logger,
		hooks:   newHooks(cfg.Logger),
		now:     time.Now,
	}
	h.origins, _ = newOrigins(cfg.AllowOrigins) // valid
	if h.log == nil {
		h.log = slog.New(slog.DiscardHandler)
	}
	migrate, leave := h.migrate, h.leave
	if !cfg.Service.HostMigration() {
		migrate, leave = refuseMigration, refuseMigration
	}
	h.calls = map[string]call{
		"/v1/allocate":       {callAllocate, http.MethodPost, h.allocate, 0},
		"/v1/joincode":       {callJoinCode, http.MethodPost, h.joinCode, 0},
		"/v1/join":           {callJoin, http.MethodPost, h.join, 0},
		"/v1/regions":        {callRegions, http.MethodGet, h.regions, 0},
		"/v1/regions/choose": {callChoose, http.MethodPost, h.chooseRegion, maxChooseBody},
		"/v1/migrate":        {callMigrate, http.MethodPost, migrate, 0},
		"/v1/leave":          {callLeave, http.MethodPost, leave, 0},
		"/openapi.yaml":      {callSpec, http.MethodGet, nil, 0},
	}
	h.limits = newLimits(&h.cfg, len(h.calls), h.log, h.now, replaced)
	h.cfg.Tokens = nil
	return h, nil
}

// ServeHTTP answers one request.
func (h *Handler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	start := h.now()
	id := uuid.NewString()
	defer h.hooks.recoverPanic(w, r, id)
	header := w.Header()
	header.Set(headerRequestID, id)
	header.Set("Cache-Control", "no-store")
	header.Set("X-Content-Type-Options", "nosniff")
	setOriginHeaders(header, h.origins, r.Header.Get("Origin"))

	done := h.dispatch(w, r, id)
	done.Took = h.now().Sub(start)
	if h.cfg.OnRequest != nil {
		guard(h.hooks.log, &h.hooks.onRequest, func() { h.cfg.OnRequest(done) })
	}
	h.log.Debug("request", "call", done.Call, "status", done.Status, "took", done.Took, "requestId", id, traceOf(r.Header))
}

func (h *Handler) dispatch(w http.ResponseWriter, r *http.Request, id string) Request {
	c, ok := h.calls[urlpath.Of(r)]
	switch {
	case !ok:
		return refuse(w, callOther, alloc.Tenant{}, statusProblem(http.StatusNotFound, "there is no such path"))
	case r.Method == http.MethodOptions:
		return Request{Call: string(callPreflight), Status: preflight(w, r, c.method)}
	case r.Method != c.method && !(r.Method == http.MethodHead && c.method == http.MethodGet):
		w.Header().Set("Allow", allow(c.method))
		return refuse(w, c.name, alloc.Tenant{}, statusProblem(http.StatusMethodNotAllowed, "method not allowed"))
	case c.name == callSpec:
		status, problem := h.serveSpec(w, r)
		if problem != nil {
			return refuse(w, c.name, alloc.Tenant{}, problem)
		}
		return Request{Call: string(c.name), Status: status}
	}
	a, tenant, problem := h.serveCall(w, r, c, id)
	switch {
	case problem != nil:
		return refuse(w, c.name, tenant, problem)
	case a.body == nil:
		w.WriteHeader(a.status)
	default:
		a.status = writeJSON(w, a.status, a.body)
	}
	return Request{Call: string(c.name), Status: a.status}
}

// serveCall authenticates the caller and serves its call. A request without a valid token has no tenant.
func (h *Handler) serveCall(w http.ResponseWriter, r *http.Request, c call, id string) (answer, alloc.Tenant, *api.Problem) {
	f, problem := h.identify(w.Header(), r, c.name)
	if problem != nil {
		return answer{}, alloc.Tenant{}, problem
	}
	a, problem := h.serveIdentified(w, r, c, id, f)
	return a, f.principal.tenant, problem
}

func (h *Handler) serveIdentified(w http.ResponseWriter, r *http.Request, c call, id string, f source) (answer, *api.Problem) {
	if problem := h.limits.checkRates(r.Context(), f, c.name); problem != nil {
		return answer{}, problem
	}
	if c.maxBody > maxBody && (r.ContentLength < 0 || r.ContentLength > maxBody) {
		if problem := h.largeBodies.begin(&f.principal); problem != nil {
			return answer{}, problem
		}
		defer h.largeBodies.end(&f.principal)
	}
	body, problem := readBody(w, r, cmp.Or(c.maxBody, maxBody))
	if problem != nil {
		return answer{}, problem
	}
	ctx, cancel := context.WithTimeout(r.Context(), serviceTimeout)
	defer cancel()
	caller := f.principal.caller(c.name)
	caller.Address = f.clientAddress()
	return c.serve(ctx, request{id: id, trace: traceOf(r.Header), source: f, caller: caller, body: body})
}

func (h *Handler) identify(header http.Header, r *http.Request, name callName) (source, *api.Problem) {
	client := forwarded.Find(r, h.proxies)
	p, err := h.authenticate(r, client.Prefix)
	var problem *api.Problem
	switch {
	case err == nil:
		p.limitByNetwork(client.Prefix)
		protectConn(r.Context(), p)
	case errors.As(err, &problem):
		return source{}, problem
	case h.cfg.Anonymous:
		p = anonymousPrincipal(client.Prefix, r.Header)
		problem = h.limits.countUnauthenticated(client.Prefix)
	default:
		h.log.Debug("caller not authenticated", "call", string(name), "error", err)
		h.logWrongToken(err)
		problem = h.refuseUnauthenticated(header, client.Prefix, err)
	}
	if problem != nil {
		return source{}, problem
	}
	return source{principal: p, client: client}, nil
}

// logWrongToken reports that an issuer's tokens do not fit, which the operator has to change:
// one a minute.
func (h *Handler) logWrongToken(err error) {
	wrong, ok := errors.AsType[TokenError](err)
	now, last := h.now().Unix(), h.wrong.Load()
	if ok && now-last >= int64(refusalLogEvery/time.Second) && h.wrong.CompareAndSwap(last, now) {
		h.log.Warn("a token of a trusted issuer is not accepted", "error", wrong.Reason)
	}
}

func (h *Handler) refuseUnauthenticated(header http.Header, address netip.Prefix, why error) *api.Problem {
	// The holder of an expired token must learn in any case that it needs a new one.
	if problem := h.limits.countUnauthenticated(address); problem != nil && !errors.Is(why, ErrTokenExpired) {
		return problem
	}
	problem := authProblem(why)
	if problem.Status == http.StatusUnauthorized {
		header.Set("WWW-Authenticate", challenge(why))
	}
	return problem
}

// headerRequestID has the same value as meta.requestId.
const headerRequestID = "X-Request-Id"

const (
	typeJSON    = "application/json"
	typeProblem = "application/problem+json"
	typeYAML    = "application/yaml"
)

// Errors of writing are ignored: the client has disconnected.
func writeJSON(w http.ResponseWriter, status int, v any) int {
	return write(w, status, typeJSON, v)
}

func refuse(w http.ResponseWriter, call callName, tenant alloc.Tenant, p *api.Problem) Request {
	done := Request{Call: string(call), Tenant: tenant, Refusal: p.Detail}
	for _, d := range p.Details {
		done.Refusal += ": " + d.Key + " " + d.Value
	}
	if p.RetryAfter > 0 {
		w.Header().Set("Retry-After", strconv.FormatInt(ceilSeconds(p.RetryAfter), 10))
	}
	done.Status = write(w, p.Status, typeProblem, p)
	return done
}

func write(w http.ResponseWriter, status int, mediaType string, v any) int {
	body, err := json.Marshal(v)
	if err != nil {
		http.Error(w, "", http.StatusInternalServerError)
		return http.StatusInternalServerError
	}
	h := w.Header()
	h.Set("Content-Type", mediaType)
	h.Set("Content-Length", strconv.Itoa(len(body)))
	w.WriteHeader(status)
	_, _ = w.Write(body)
	return status
}

// ceilSeconds rounds up, so that a client that waits this long is not too early.
func ceilSeconds(d time.Duration) int64 {
	return int64((d + time.Second - 1) / time.Second)
}
