package rpc

import (
	"bytes"
	"context"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/netip"
	"reflect"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/ferryrelay/ferry/alloc"
	"github.com/ferryrelay/ferry/engine"
	"github.com/ferryrelay/ferry/internal/fleet/operator"
	"github.com/ferryrelay/ferry/proto"
)

// The paths of the calls, all of them POST.
const (
	pathReserveHost   = "/cluster/v1/reserve-host"
	pathReserveJoiner = "/cluster/v1/reserve-joiner"
	pathMigrate       = "/cluster/v1/migrate"
	pathLeave         = "/cluster/v1/leave"
	pathDescribe      = "/cluster/v1/describe"
	pathKeepCode      = "/cluster/v1/keep-code"
	pathEnd           = "/cluster/v1/end"
	pathCancel        = "/cluster/v1/cancel"
	pathDrain         = "/cluster/v1/drain"
	pathUndrain       = "/cluster/v1/undrain"
	pathKick          = "/cluster/v1/kick"
	pathClose         = "/cluster/v1/close"
	pathPage          = "/cluster/v1/page"
)

// The headers of calls in canonical form. Every call has the first, reservations have
// both: package net/http repeats a request with the second if its connection is broken.
const (
	headerDeadline = "Ferry-Deadline-Ms" // milliseconds from arrival on
	headerKey      = "Idempotency-Key"   // 32 hexadecimal digits
)

// The bodies of calls. Ids are UUIDs in lower case, digests hexadecimal.
type (
	callerBody struct {
		Project       string     `json:"project"`
		Environment   string     `json:"environment"`
		Player        playerHash `json:"player"` // zeros: a backend
		PlayerName    string     `json:"playerName,omitempty"`
		Individual    bool       `json:"individual,omitempty"`
		Tag           uint64     `json:"tag,omitempty"`
		ClientAddress netip.Addr `json:"clientAddress"` // empty: not known
	}
	reserveHostCall struct {
		callerBody
		MaxConnections int `json:"maxConnections"`
	}
	reserveJoinerCall struct {
		callerBody
		Host allocationID `json:"host"`
	}
	migrateCall struct {
		callerBody
		Host   allocationID   `json:"host"`
		Code   string         `json:"code"`
		Ticket connectionData `json:"ticket"`
	}
	leaveCall struct {
		Project     string          `json:"project"`
		Environment string          `json:"environment"`
		Player      playerHash      `json:"player"` // zeros: a backend
		Host        allocationID    `json:"host"`
		Proof       *connectionData `json:"proof,omitempty"` // the host's own connection data
	}
	idCall struct {
		ID allocationID `json:"id"`
	}
	keepCodeCall struct {
		Host allocationID `json:"host"`
		Code string       `json:"code"`
	}
	cancelCall struct {
		Keys []string `json:"keys"`
	}
	drainCall struct {
		DeadlineMs int64 `json:"deadlineMs"` // 0: none, -1: the relay's setting
		Threshold  int64 `json:"threshold"`  // -1: the relay's setting
	}
	pageCall struct {
		Target string `json:"target"`
	}
	emptyCall struct{}
)

type (
	reservationAnswer struct {
		ID                 string     `json:"id"`
		Key                []byte     `json:"key"`
		ConnectionData     []byte     `json:"connectionData"`
		HostConnectionData []byte     `json:"hostConnectionData"`
		Endpoints          []endpoint `json:"endpoints"`
		Region             string     `json:"region"`
	}
	endpoint struct {
		ConnectionType string `json:"connectionType"`
		Network        string `json:"network"`
		Host           string `json:"host"`
		Port           uint16 `json:"port"`
		Reliable       bool   `json:"reliable"`
		Secure         bool   `json:"secure"`
	}
	descriptionAnswer struct {
		Tenant uint64 `json:"tenant,string"`
		Player string `json:"player"`
		Role   string `json:"role"`
		Bound  bool   `json:"bound"`
		Code   string `json:"code,omitempty"`
	}
	drainAnswer struct {
		Draining    bool  `json:"draining"`
		Final       bool  `json:"final"`
		LeftMs      int64 `json:"leftMs"` // until the deadline; -1: none
		Threshold   int   `json:"threshold"`
		Allocations int   `json:"allocations"`
	}
	endedAnswer struct {
		There bool `json:"there"`
	}
	emptyAnswer   struct{}
	refusalAnswer struct {
		Error  string `json:"error"`
		Detail string `json:"detail"`
		// Reason and RetryAfterMs are those of alloc.RefusedError, only with "migration".
		Reason       string `json:"reason,omitempty"`
		RetryAfterMs int64  `json:"retryAfterMs,omitempty"`
		// Host is that of alloc.RefusedError, only with "host-present".
		Host string `json:"host,omitempty"`
		// Limit is the Reason of alloc.RefusedError, only with "player-limit".
		Limit string `json:"limit,omitempty"`
	}
)

var errAnswer = errors.New("cluster: not an answer of a relay")

// playerHash has 32 hexadecimal digits in a call.
type playerHash alloc.PlayerHash

// MarshalText implements encoding.TextMarshaler.
func (p playerHash) MarshalText() ([]byte, error) { return hex.AppendEncode(nil, p[:]), nil }

// UnmarshalText implements encoding.TextUnmarshaler.
func (p *playerHash) UnmarshalText(text []byte) error {
	if !parseHex(string(text), p[:]) {
		return errors.New("player is not 32 hexadecimal digits")
	}
	return nil
}

// allocationID is what AllocationID.String returns, and nothing else.
type allocationID proto.AllocationID

// MarshalText implements encoding.TextMarshaler.
func (a allocationID) MarshalText() ([]byte, error) {
	return []byte(proto.AllocationID(a).String()), nil
}

// UnmarshalText implements encoding.TextUnmarshaler.
func (a *allocationID) UnmarshalText(text []byte) error {
	id, err := parseID("id", string(text))
	*a = allocationID(id)
	return err
}

// connectionData is in base64.
type connectionData alloc.ConnectionData

// MarshalJSON implements json.Marshaler.
func (d connectionData) MarshalJSON() ([]byte, error) { return json.Marshal(d[:]) }

// UnmarshalJSON implements json.Unmarshaler.
func (d *connectionData) UnmarshalJSON(text []byte) error {
	var b []byte
	if err := json.Unmarshal(text, &b); err != nil {
		return err
	}
	if len(b) != len(d) {
		return fmt.Errorf("%d bytes, not %d", len(b), len(d))
	}
	copy(d[:], b)
	return nil
}

func callerBodyOf(c *alloc.Caller, player alloc.PlayerHash) callerBody {
	return callerBody{
		Project: c.Tenant.Project, Environment: c.Tenant.Environment, Player: playerHash(player), PlayerName: c.Player,
		Individual: c.Individual, Tag: c.Tag, ClientAddress: c.Address,
	}
}

func (b *callerBody) caller() alloc.Caller {
	return alloc.Caller{
		Tenant: alloc.Tenant{Project: b.Project, Environment: b.Environment}, Player: b.PlayerName,
		Individual: b.Individual, Tag: b.Tag, Address: b.ClientAddress,
	}
}

func reserveHostBody(r alloc.HostRequest) reserveHostCall {
	return reserveHostCall{callerBodyOf(&r.Caller, r.PlayerHash), r.MaxConnections}
}

func (c *reserveHostCall) request() (alloc.HostRequest, error) {
	r := alloc.HostRequest{Caller: c.caller(), PlayerHash: alloc.PlayerHash(c.Player), MaxConnections: c.MaxConnections}
	return r, r.Tenant.Validate()
}

func reserveJoinerBody(r alloc.JoinerRequest) reserveJoinerCall {
	return reserveJoinerCall{callerBodyOf(&r.Caller, r.PlayerHash), allocationID(r.Host)}
}

func (c *reserveJoinerCall) request() (alloc.JoinerRequest, error) {
	r := alloc.JoinerRequest{Caller: c.caller(), PlayerHash: alloc.PlayerHash(c.Player), Host: proto.AllocationID(c.Host)}
	return r, r.Tenant.Validate()
}

func migrateBody(r alloc.MigrationRequest) migrateCall {
	r.Caller = alloc.Caller{Tenant: r.Tenant, Address: r.Address} // The ticket has the rest.
	return migrateCall{callerBodyOf(&r.Caller, r.PlayerHash), allocationID(r.Host), r.Code, connectionData(r.Ticket)}
}

func (c *migrateCall) request() (alloc.MigrationRequest, error) {
	r := alloc.MigrationRequest{
		Caller: c.caller(), PlayerHash: alloc.PlayerHash(c.Player), Host: proto.AllocationID(c.Host), Code: c.Code,
		Ticket: alloc.ConnectionData(c.Ticket),
	}
	return r, r.Tenant.Validate()
}

func leaveBody(r alloc.LeaveRequest) leaveCall {
	c := leaveCall{
		Project: r.Tenant.Project, Environment: r.Tenant.Environment, Player: playerHash(r.PlayerHash), Host: allocationID(r.Host),
	}
	if proof := connectionData(r.Proof); proof != (connectionData{}) {
		c.Proof = &proof
	}
	return c
}

func (c *leaveCall) request() (alloc.LeaveRequest, error) {
	r := alloc.LeaveRequest{
		Caller:     alloc.Caller{Tenant: alloc.Tenant{Project: c.Project, Environment: c.Environment}},
		PlayerHash: alloc.PlayerHash(c.Player), Host: proto.AllocationID(c.Host),
	}
	if c.Proof != nil {
		r.Proof = alloc.ConnectionData(*c.Proof)
	}
	return r, r.Tenant.Validate()
}

// parseID parses the output of AllocationID.String, and nothing else.
func parseID(member, s string) (id proto.AllocationID, err error) {
	if id, err = proto.ParseAllocationID(s); err == nil && id.String() == s {
		return id, nil
	}
	return proto.AllocationID{}, malformed.withDetail("%s is not a UUID in lower case", member)
}

// drainBody returns the body of a drain. It rounds the deadline up, so that a short one
// does not become 0, which means none.
func drainBody(d engine.DrainConfig) drainCall {
	c := drainCall{DeadlineMs: notSet, Threshold: max(int64(d.Threshold), notSet)}
	if d.Deadline >= 0 {
		c.DeadlineMs = int64((d.Deadline + time.Millisecond - 1) / time.Millisecond)
	}
	return c
}

func (c *drainCall) drain() (engine.DrainConfig, error) {
	switch {
	case c.DeadlineMs < notSet || c.DeadlineMs > maxDrainDeadline.Milliseconds():
		return engine.DrainConfig{}, malformed.withDetail("deadlineMs is not within -1 to %d", maxDrainDeadline.Milliseconds())
	case c.Threshold < notSet || c.Threshold > maxDrainThreshold:
		return engine.DrainConfig{}, malformed.withDetail("threshold is not within -1 to %d", maxDrainThreshold)
	}
	return engine.DrainConfig{Deadline: time.Duration(c.DeadlineMs) * time.Millisecond, Threshold: int(c.Threshold)}, nil
}

func drainAnswerOf(st operator.DrainState, now time.Time) drainAnswer {
	a := drainAnswer{
		Draining: st.Draining, Final: st.Final, LeftMs: notSet, Threshold: st.Threshold, Allocations: st.Allocations,
	}
	if !st.Deadline.IsZero() {
		a.LeftMs = max(st.Deadline.Sub(now), 0).Milliseconds()
	}
	return a
}

func (a *drainAnswer) state(now time.Time) (operator.DrainState, error) {
	if a.LeftMs < notSet || a.LeftMs > maxDrainDeadline.Milliseconds() || a.Threshold < 0 || a.Allocations < 0 {
		return operator.DrainState{}, fmt.Errorf("%w: %d ms are left, %d allocations, threshold %d", errAnswer, a.LeftMs,
			a.Allocations, a.Threshold)
	}
	st := operator.DrainState{Draining: a.Draining, Final: a.Final, Threshold: a.Threshold, Allocations: a.Allocations}
	if a.LeftMs != notSet {
		st.Deadline = now.Add(time.Duration(a.LeftMs) * time.Millisecond)
	}
	return st, nil
}

func answerOf(r *alloc.Reservation) reservationAnswer {
	a := reservationAnswer{
		ID: r.ID.String(), Key: r.Key[:], ConnectionData: r.ConnectionData[:],
		HostConnectionData: r.HostConnectionData[:], Region: r.Region,
		Endpoints: make([]endpoint, len(r.Endpoints)),
	}
	for i, e := range r.Endpoints {
		a.Endpoints[i] = endpoint(e)
	}
	return a
}

func (a *reservationAnswer) reservation() (r alloc.Reservation, err error) {
	if r.ID, err = parseID("id", a.ID); err != nil {
		return alloc.Reservation{}, fmt.Errorf("%w: %w", errAnswer, err)
	}
	for _, part := range []struct {
		name     string
		to, from []byte
	}{
		{"key", r.Key[:], a.Key},
		{"connectionData", r.ConnectionData[:], a.ConnectionData},
		{"hostConnectionData", r.HostConnectionData[:], a.HostConnectionData},
	} {
		if len(part.from) != len(part.to) {
			return alloc.Reservation{}, fmt.Errorf("%w: %s of %d bytes, not %d", errAnswer, part.name, len(part.from), len(part.to))
		}
		copy(part.to, part.from)
	}
	r.Region = a.Region
	r.Endpoints = make([]alloc.ServerEndpoint, len(a.Endpoints))
	for i, e := range a.Endpoints {
		r.Endpoints[i] = alloc.ServerEndpoint(e)
	}
	return r, nil
}

func (a *descriptionAnswer) description() (alloc.Description, error) {
	d := alloc.Description{Tenant: a.Tenant, Bound: a.Bound, Code: a.Code}
	switch a.Role {
	case alloc.RoleHost.String():
		d.Role = alloc.RoleHost
	case alloc.RoleJoiner.String():
		d.Role = alloc.RoleJoiner
	default:
		return alloc.Description{}, fmt.Errorf("%w: role %q", errAnswer, a.Role)
	}
	if !parseHex(a.Player, d.Player[:]) {
		return alloc.Description{}, fmt.Errorf("%w: player is not 32 hexadecimal digits", errAnswer)
	}
	return d, nil
}

// The largest bodies in bytes. A call with two names of 56 bytes, each byte of
// them escaped, has 900; a cancellation of maxBatch keys 2,300. An answer has
// 1,000 and 200 for each endpoint.
const (
	maxBody   = 4 << 10
	maxAnswer = 16 << 10
	// maxPageAnswer is for a page, which travels in base64.
	maxPageAnswer = MaxPage/3*4 + 1<<10
)

func readBody(w http.ResponseWriter, r *http.Request) ([]byte, error) {
	if r.ContentLength > maxBody {
		return nil, tooLarge.withDetail("the body has more than %d bytes", maxBody)
	}
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxBody))
	if _, ok := errors.AsType[*http.MaxBytesError](err); ok {
		return nil, tooLarge.withDetail("the body has more than %d bytes", maxBody)
	}
	if err != nil {
		return nil, malformed.withDetail("the body could not be read")
	}
	return body, nil
}

func parseBody[Call, Request any](body []byte, request func(*Call) (Request, error)) (r Request, err error) {
	var in Call
	if err := decode(body, &in); err != nil {
		return r, err
	}
	return request(&in)
}

// decode decodes one JSON object into v, a pointer to a struct. Each member of v must
// be present once and spelled exactly, except that one with omitempty may be missing. Others
// are ignored.
func decode(body []byte, v any) error {
	if !utf8.Valid(body) {
		return malformed.withDetail("the body is not UTF-8")
	}
	d := json.NewDecoder(bytes.NewReader(body))
	if err := d.Decode(v); err != nil {
		return malformed.withDetail("not the JSON object of this call: %v", err)
	}
	if _, err := d.Token(); err != io.EOF {
		return malformed.withDetail("data after the JSON object")
	}
	return members(body, reflect.TypeOf(v).Elem())
}

// members rejects what package encoding/json accepts: members of the type that are missing,
// repeated, null, or spelled in another case. The body is one JSON value.
func members(body []byte, of reflect.Type) error {
	d := json.NewDecoder(bytes.NewReader(body))
	if t, _ := d.Token(); t != json.Delim('{') {
		return malformed.withDetail("not a JSON object")
	}
	missing := make(map[string]bool) // by name, whether one that was not seen must be there
	for _, f := range reflect.VisibleFields(of) {
		if name, optional := strings.CutSuffix(f.Tag.Get("json"), omitEmpty); name != "" {
			missing[name] = !optional
		}
	}
	names := slices.Collect(maps.Keys(missing))
	for d.More() {
		t, _ := d.Token()
		name, _ := t.(string)
		_, known := missing[name]
		// Package encoding/json takes another case of a name for it.
		if !known && slices.ContainsFunc(names, func(n string) bool { return strings.EqualFold(n, name) }) {
			return malformed.withDetail("%q is repeated or misspelled", t)
		}
		delete(missing, name)
		var value json.RawMessage
		if err := d.Decode(&value); err != nil || known && string(value) == "null" {
			return malformed.withDetail("%q has no value", t)
		}
	}
	for _, required := range missing {
		if required {
			return malformed.withDetail("a member is missing")
		}
	}
	return nil
}

const omitEmpty = ",omitempty"

// errorCode is an error in an answer: its name is sent, and err is the error that it
// means to the caller.
type errorCode struct {
	name   string
	status int
	err    error
}

// errorCodes are the errors of package alloc and of [Operator]. The first that matches
// is sent.
var errorCodes = []errorCode{
	{"not-found", http.StatusNotFound, alloc.ErrNotFound},
	{"code-not-found", http.StatusNotFound, alloc.ErrCodeNotFound},
	{"code-malformed", http.StatusBadRequest, alloc.ErrCodeMalformed},
	{"max-connections", http.StatusBadRequest, alloc.ErrMaxConnections},
	{"tenant-name", http.StatusBadRequest, alloc.ErrTenantName},
	{"region", http.StatusBadRequest, alloc.ErrRegion},
	{"full", http.StatusServiceUnavailable, alloc.ErrFull},
	{"draining", http.StatusServiceUnavailable, alloc.ErrDraining},
	{"outstanding", http.StatusTooManyRequests, alloc.ErrOutstanding},
	{"player-limit", http.StatusTooManyRequests, alloc.ErrPlayerLimit},
	{"unavailable", http.StatusServiceUnavailable, alloc.ErrUnavailable},
	{"migration", http.StatusConflict, alloc.ErrMigration},
	{"host-present", http.StatusConflict, alloc.ErrHostPresent},
	{"final", http.StatusConflict, operator.ErrFinal},
	{"host", http.StatusConflict, engine.ErrKickHost},
}

// The errors of calls that did not reach the relay behind the listener. The caller gets
// alloc.ErrUnavailable for each of them, and for an unknown name.
var (
	noCall      = errorCode{"unknown-call", http.StatusNotFound, alloc.ErrUnavailable}
	noMethod    = errorCode{"method", http.StatusMethodNotAllowed, alloc.ErrUnavailable}
	forbidden   = errorCode{"forbidden", http.StatusForbidden, alloc.ErrUnavailable}
	malformed   = errorCode{"malformed", http.StatusBadRequest, alloc.ErrUnavailable}
	tooLarge    = errorCode{"too-large", http.StatusRequestEntityTooLarge, alloc.ErrUnavailable}
	keyReused   = errorCode{"key-reused", http.StatusConflict, alloc.ErrUnavailable}
	cancelled   = errorCode{"cancelled", http.StatusConflict, alloc.ErrUnavailable}
	tooMany     = errorCode{"busy", http.StatusServiceUnavailable, alloc.ErrUnavailable}
	unavailable = errorCode{"unavailable", http.StatusServiceUnavailable, alloc.ErrUnavailable}
	internal    = errorCode{"internal", http.StatusInternalServerError, alloc.ErrUnavailable}
)

// refusal is an error code with details. It is the error type on the relay's side.
type refusal struct {
	errorCode
	detail  string
	details alloc.RefusedError
}

func (r refusal) answer() refusalAnswer {
	a := refusalAnswer{Error: r.name, Detail: r.detail}
	switch r.details.Err {
	case alloc.ErrMigration:
		a.Reason, a.RetryAfterMs = r.details.Reason, r.details.RetryAfter.Milliseconds()
	case alloc.ErrPlayerLimit:
		a.Limit = r.details.Reason
	case alloc.ErrHostPresent:
		if !r.details.Host.IsZero() {
			a.Host = r.details.Host.String()
		}
	}
	return a
}

func (r refusal) Error() string { return "cluster: " + r.name + ": " + r.detail }

func (v errorCode) withDetail(format string, args ...any) refusal {
	return refusal{errorCode: v, detail: fmt.Sprintf(format, args...)}
}

// refusalOf returns the refusal for an error of the relay or of the server. It does not
// include the text of an unknown error.
func refusalOf(err error) refusal {
	if r, ok := errors.AsType[refusal](err); ok {
		return r
	}
	for _, v := range errorCodes {
		if errors.Is(err, v.err) {
			r := v.withDetail("%v", err)
			r.details, _ = errors.AsType[alloc.RefusedError](err)
			return r
		}
	}
	if errors.Is(err, context.DeadlineExceeded) || errors.Is(err, context.Canceled) {
		return unavailable.withDetail("the relay did not answer in time")
	}
	return internal.withDetail("see the relay's log")
}

const maxRetryAfter = time.Hour

func (a *refusalAnswer) cause() (error, error) {
	switch err := errorNamed(a.Error); err {
	case alloc.ErrMigration:
		if a.RetryAfterMs < 0 || a.RetryAfterMs > maxRetryAfter.Milliseconds() {
			return nil, fmt.Errorf("%w: wait for %d ms", errAnswer, a.RetryAfterMs)
		}
		return alloc.RefusedError{Err: alloc.ErrMigration, Reason: a.Reason, RetryAfter: time.Duration(a.RetryAfterMs) * time.Millisecond}, nil
	case alloc.ErrHostPresent:
		if a.Host == "" {
			return alloc.RefusedError{Err: alloc.ErrHostPresent}, nil
		}
		id, invalid := parseID("host", a.Host)
		return alloc.RefusedError{Err: alloc.ErrHostPresent, Host: id}, invalid
	case alloc.ErrPlayerLimit:
		return alloc.RefusedError{Err: alloc.ErrPlayerLimit, Reason: a.Limit}, nil
	default:
		return err, nil
	}
}

func errorNamed(name string) error {
	for _, v := range errorCodes {
		if v.name == name {
			return v.err
		}
	}
	return alloc.ErrUnavailable
}
