package rpc

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"net/http"
	"slices"
	"strconv"
	"time"

	"github.com/ferryrelay/ferry/internal/fleet/placement"
	"github.com/ferryrelay/ferry/proto"
)

const maxDeadline = 10 * time.Second

type route struct {
	path  string
	roles []Role // permitted callers
	serve func(ctx context.Context, q request) (any, error)
}

type request struct {
	path     string
	key      string
	deadline time.Time // the caller waits until then
	body     []byte
	caller   caller
}

type caller struct {
	name string // the common name of the certificate
	role Role
	from string // host:port
}

func newRoutes(relay placement.Relay, r *reservations, o *operatorCalls) []route {
	leave := func(ctx context.Context, _ request, in *leaveCall) (any, error) {
		r, err := in.request()
		if err != nil {
			return nil, err
		}
		return emptyAnswer{}, relay.LeaveHost(ctx, r)
	}
	describe := func(ctx context.Context, _ request, in *idCall) (any, error) {
		d, err := relay.Describe(ctx, proto.AllocationID(in.ID))
		return descriptionAnswer{
			Tenant: d.Tenant, Player: hex.EncodeToString(d.Player[:]), Role: d.Role.String(), Bound: d.Bound, Code: d.Code,
		}, err
	}
	keepCode := func(ctx context.Context, _ request, in *keepCodeCall) (any, error) {
		return emptyAnswer{}, relay.KeepCode(ctx, proto.AllocationID(in.Host), in.Code)
	}
	end := func(ctx context.Context, _ request, in *idCall) (any, error) {
		return emptyAnswer{}, relay.End(ctx, proto.AllocationID(in.ID))
	}
	api, operators := []Role{RoleAPI}, []Role{RoleAPI, RoleAdmin}
	return []route{
		{pathReserveHost, api, reserving(r, (*reserveHostCall).request, relay.ReserveHost)},
		{pathReserveJoiner, api, reserving(r, (*reserveJoinerCall).request, relay.ReserveJoiner)},
		{pathMigrate, api, reserving(r, (*migrateCall).request, relay.MigrateHost)},
		{pathCancel, api, r.cancel},
		{pathDescribe, operators, answering(describe)},
		{pathKeepCode, api, answering(keepCode)},
		{pathEnd, api, answering(end)},
		{pathLeave, api, answering(leave)},
		{pathDrain, operators, answering(o.drain)},
		{pathUndrain, operators, answering(o.undrain)},
		{pathKick, operators, answering(o.kick)},
		{pathClose, operators, answering(o.close)},
		{pathPage, operators, answering(o.page)},
	}
}

// ServeHTTP answers one call. It checks path, method, role, headers and body in this
// order, by rising cost.
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
		write(w, refused.status, refused.answer())
		return
	}
	s.counts.answered.Add(1)
	write(w, http.StatusOK, answer)
}

func (s *Server) dispatch(w http.ResponseWriter, r *http.Request) (any, error) {
	i := slices.IndexFunc(s.routes, func(c route) bool { return c.path == r.URL.Path })
	switch {
	case i < 0:
		return nil, noCall.withDetail("there is no such call in this version")
	case r.Method != http.MethodPost:
		return nil, noMethod.withDetail("all calls are POST")
	}
	from, err := authorize(r, s.routes[i].roles, s.creds.current.Load().revoked)
	if err != nil {
		return nil, err
	}
	timeout, err := parseDeadline(r.Header.Get(headerDeadline))
	if err != nil {
		return nil, err
	}
	deadline := time.Now().Add(timeout)
	body, err := readBody(w, r)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithDeadline(r.Context(), deadline)
	defer cancel()
	return s.routes[i].serve(ctx, request{
		path: r.URL.Path, key: r.Header.Get(headerKey), deadline: deadline, body: body, caller: from,
	})
}

// authorize checks the role of the caller. The TLS handshake has verified the
// certificate, which may have expired or been revoked since.
func authorize(r *http.Request, roles []Role, revoked revocations) (caller, error) {
	if r.TLS == nil || len(r.TLS.PeerCertificates) == 0 {
		return caller{}, forbidden.withDetail("no certificate")
	}
	leaf := r.TLS.PeerCertificates[0]
	role, err := roleOf(leaf)
	switch {
	case err != nil:
		return caller{}, forbidden.withDetail("%v", err)
	case !slices.Contains(roles, role):
		return caller{}, forbidden.withDetail("a certificate for %q does not permit this call", role)
	case time.Now().After(leaf.NotAfter):
		return caller{}, forbidden.withDetail("the certificate has expired since the connection began")
	}
	if err := revoked.check(r.TLS.PeerCertificates...); err != nil {
		return caller{}, forbidden.withDetail("%v", err)
	}
	return caller{name: leaf.Subject.CommonName, role: role, from: r.RemoteAddr}, nil
}

func parseDeadline(s string) (time.Duration, error) {
	ms, err := strconv.ParseUint(s, 10, 16)
	d := time.Duration(ms) * time.Millisecond
	if err != nil || d < time.Millisecond || d > maxDeadline {
		return 0, malformed.withDetail("%s is not within 1 to %d", headerDeadline, maxDeadline.Milliseconds())
	}
	return d, nil
}

// answering decodes the body of a call.
func answering[Call any](do func(context.Context, request, *Call) (any, error)) func(context.Context, request) (any, error) {
	return func(ctx context.Context, q request) (any, error) {
		var in Call
		if err := decode(q.body, &in); err != nil {
			return nil, err
		}
		return do(ctx, q, &in)
	}
}

// digest identifies a call with its body, to detect a key that is reused for another
// call.
func (q request) digest() [sha256.Size]byte {
	return sha256.Sum256(append([]byte(q.path+"\x00"), q.body...))
}

// write writes an answer. It ignores errors: the caller has disconnected, and cancels
// its key.
func write(w http.ResponseWriter, status int, v any) {
	body, err := json.Marshal(v)
	if err != nil { // cannot happen: all answers can be marshalled
		status, body = http.StatusInternalServerError, nil
	}
	h := w.Header()
	h.Set("Content-Type", "application/json")
	h.Set("Content-Length", strconv.Itoa(len(body)))
	w.WriteHeader(status)
	_, _ = w.Write(body)
}
