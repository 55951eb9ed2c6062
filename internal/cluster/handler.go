package cluster

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"net/http"
	"slices"
	"strconv"
	"time"
)

// maxDeadline is the longest that a caller may ask a relay to try.
const maxDeadline = 10 * time.Second

// call is one thing that a relay does for the cluster.
type call struct {
	path  string
	roles []Role // permitted callers
	serve func(s *Server, ctx context.Context, q query) (any, error)
}

// query is what a call gets to see.
type query struct {
	path   string
	key    string
	due    time.Time // when its caller waits no longer
	body   []byte
	caller caller
}

// caller identifies the caller in the log.
type caller struct {
	name string // what the certificate says for people
	role Role
	from string // host:port
}

// calls are all there are.
var calls = []call{
	{pathReserveHost, []Role{RoleAPI}, (*Server).reserveHost},
	{pathReserveJoiner, []Role{RoleAPI}, (*Server).reserveJoiner},
	{pathDescribe, []Role{RoleAPI, RoleAdmin}, (*Server).describe},
	{pathKeepCode, []Role{RoleAPI}, (*Server).keepCode},
	{pathEnd, []Role{RoleAPI}, (*Server).endOne},
	{pathCancel, []Role{RoleAPI}, (*Server).cancel},
	{pathDrain, []Role{RoleAPI, RoleAdmin}, (*Server).drain},
	{pathUndrain, []Role{RoleAPI, RoleAdmin}, (*Server).undrain},
	{pathKick, []Role{RoleAPI, RoleAdmin}, (*Server).kick},
	{pathClose, []Role{RoleAPI, RoleAdmin}, (*Server).closeOne},
	{pathPage, []Role{RoleAPI, RoleAdmin}, (*Server).page},
}

// ServeHTTP answers one call: path, method, role, headers and body, in the
// order of what they cost.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	since, known := r.Context().Value(connSince{}).(time.Time)
	if known && time.Since(since) > connAge {
		w.Header().Set("Connection", "close")
	}
	answer, err := s.dispatch(w, r)
	if err != nil {
		refused := refusalOf(err)
		s.counts.refused(refused.name)
		if refused.name == forbidden.name {
			w.Header().Set("Connection", "close") // the next one may have another certificate
		}
		if refused.name == internal.name {
			s.logger.Error("a call of the cluster failed", "path", r.URL.Path, "error", err)
		}
		write(w, refused.status, refusalAnswer{Error: refused.name, Detail: refused.detail})
		return
	}
	s.counts.answered.Add(1)
	write(w, http.StatusOK, answer)
}

func (s *Server) dispatch(w http.ResponseWriter, r *http.Request) (any, error) {
	i := slices.IndexFunc(calls, func(c call) bool { return c.path == r.URL.Path })
	switch {
	case i < 0:
		return nil, noCall.withDetail("there is no such call in this version")
	case r.Method != http.MethodPost:
		return nil, noMethod.withDetail("all calls are POST")
	}
	by, err := authorize(r, calls[i].roles)
	if err != nil {
		return nil, err
	}
	deadline, err := parseDeadline(r.Header.Get(headerDeadline))
	if err != nil {
		return nil, err
	}
	due := time.Now().Add(deadline)
	body, err := readBody(w, r)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithDeadline(r.Context(), due)
	defer cancel()
	return calls[i].serve(s, ctx, query{
		path: r.URL.Path, key: r.Header.Get(headerKey), due: due, body: body, caller: by,
	})
}

// authorize checks the role of the caller, whose certificate the handshake has
// checked.
func authorize(r *http.Request, roles []Role) (caller, error) {
	if r.TLS == nil || len(r.TLS.PeerCertificates) == 0 {
		return caller{}, forbidden.withDetail("no certificate")
	}
	leaf := r.TLS.PeerCertificates[0]
	role, err := roleOf(leaf)
	switch {
	case err != nil:
		return caller{}, forbidden.withDetail("%v", err)
	case !slices.Contains(roles, role):
		return caller{}, forbidden.withDetail("a certificate for %q may not do this", role)
	case time.Now().After(leaf.NotAfter):
		return caller{}, forbidden.withDetail("the certificate has ended since the connection began")
	}
	return caller{name: leaf.Subject.CommonName, role: role, from: r.RemoteAddr}, nil
}

// parseDeadline reads the time that the caller waits.
func parseDeadline(s string) (time.Duration, error) {
	ms, err := strconv.ParseUint(s, 10, 16)
	d := time.Duration(ms) * time.Millisecond
	if err != nil || d < time.Millisecond || d > maxDeadline {
		return 0, malformed.withDetail("%s is not within 1 to %d", headerDeadline, maxDeadline.Milliseconds())
	}
	return d, nil
}

func (s *Server) reserveHost(ctx context.Context, q query) (any, error) {
	var in reserveHostCall
	if err := decode(q.body, &in); err != nil {
		return nil, err
	}
	r, err := in.request()
	if err != nil {
		return nil, err
	}
	return s.reserve(ctx, q, func(ctx context.Context) (o outcome) {
		return outcomeOf(s.relay.ReserveHost(ctx, r))
	})
}

func (s *Server) reserveJoiner(ctx context.Context, q query) (any, error) {
	var in reserveJoinerCall
	if err := decode(q.body, &in); err != nil {
		return nil, err
	}
	r, err := in.request()
	if err != nil {
		return nil, err
	}
	return s.reserve(ctx, q, func(ctx context.Context) outcome {
		return outcomeOf(s.relay.ReserveJoiner(ctx, r))
	})
}

func (s *Server) describe(ctx context.Context, q query) (any, error) {
	id, err := decodeID(q.body)
	if err != nil {
		return nil, err
	}
	d, err := s.relay.Describe(ctx, id)
	if err != nil {
		return nil, err
	}
	return descriptionAnswer{
		Tenant: d.Tenant, Player: hex.EncodeToString(d.Player[:]), Role: d.Role.String(), Bound: d.Bound,
	}, nil
}

func (s *Server) keepCode(ctx context.Context, q query) (any, error) {
	var in keepCodeCall
	if err := decode(q.body, &in); err != nil {
		return nil, err
	}
	host, err := parseID("host", in.Host)
	if err != nil {
		return nil, err
	}
	return emptyAnswer{}, s.relay.KeepCode(ctx, host, in.Code)
}

// endOne ends a reservation that its API process got and cannot use.
func (s *Server) endOne(ctx context.Context, q query) (any, error) {
	id, err := decodeID(q.body)
	if err != nil {
		return nil, err
	}
	return emptyAnswer{}, s.relay.End(ctx, id)
}

// digest tells one call of a key from another.
func (q query) digest() [sha256.Size]byte {
	return sha256.Sum256(append([]byte(q.path+"\x00"), q.body...))
}

// write writes an answer. An error of writing means that the caller has gone,
// who then cancels.
func write(w http.ResponseWriter, status int, v any) {
	body, err := json.Marshal(v)
	if err != nil { // our own types, all of which can be marshalled
		status, body = http.StatusInternalServerError, nil
	}
	h := w.Header()
	h.Set("Content-Type", "application/json")
	h.Set("Content-Length", strconv.Itoa(len(body)))
	w.WriteHeader(status)
	_, _ = w.Write(body)
}
