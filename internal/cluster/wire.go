package cluster

import (
	"encoding/hex"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/ferryrelay/ferry/alloc"
	"github.com/ferryrelay/ferry/proto"
)

// The paths of the calls, all of them POST.
const (
	pathReserveHost   = "/cluster/v1/reserve-host"
	pathReserveJoiner = "/cluster/v1/reserve-joiner"
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

// The headers of calls, in the form of net/http. Every call has the first,
// reservations have the second too: package net/http sends a request that has
// it once more when a connection turns out to be dead.
const (
	headerDeadline = "Ferry-Deadline-Ms" // milliseconds from arrival, no clocks are compared
	headerKey      = "Idempotency-Key"   // 32 hexadecimal digits
)

// The bodies of calls. Ids are UUIDs in lower case, digests hexadecimal.
type (
	reserveHostCall struct {
		Project        string `json:"project"`
		Environment    string `json:"environment"`
		Player         string `json:"player"`
		MaxConnections int    `json:"maxConnections"`
	}
	reserveJoinerCall struct {
		Project     string `json:"project"`
		Environment string `json:"environment"`
		Player      string `json:"player"`
		Host        string `json:"host"`
	}
	idCall struct {
		ID string `json:"id"`
	}
	keepCodeCall struct {
		Host string `json:"host"`
		Code string `json:"code"`
	}
	cancelCall struct {
		Keys []string `json:"keys"`
	}
	drainCall struct {
		DeadlineMs int64 `json:"deadlineMs"` // 0: none, -1: the relay's own
		Threshold  int64 `json:"threshold"`  // -1: the relay's own
	}
	pageCall struct {
		Target string `json:"target"`
	}
	emptyCall struct{}
)

// The bodies of answers.
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
	}
	drainAnswer struct {
		Draining    bool  `json:"draining"`
		Final       bool  `json:"final"`
		LeftMs      int64 `json:"leftMs"` // until the deadline, -1: there is none
		Threshold   int   `json:"threshold"`
		Allocations int   `json:"allocations"`
	}
	endedAnswer struct {
		There bool `json:"there"`
	}
	pageAnswer struct {
		Status int    `json:"status"`
		Body   []byte `json:"body"`
	}
	emptyAnswer   struct{}
	refusalAnswer struct {
		Error  string `json:"error"`
		Detail string `json:"detail"`
	}
)

// errAnswer is returned for an answer that no relay of ours gives.
var errAnswer = errors.New("cluster: not a relay's answer")

func reserveHostBody(r alloc.HostRequest) reserveHostCall {
	return reserveHostCall{
		Project: r.Tenant.Project, Environment: r.Tenant.Environment,
		Player: hex.EncodeToString(r.Player[:]), MaxConnections: r.MaxConnections,
	}
}

func (c *reserveHostCall) request() (r alloc.HostRequest, err error) {
	r = alloc.HostRequest{
		Tenant: alloc.Tenant{Project: c.Project, Environment: c.Environment}, MaxConnections: c.MaxConnections,
	}
	if !parseHex(c.Player, r.Player[:]) {
		return r, malformed.because("player is not 32 hexadecimal digits")
	}
	return r, r.Tenant.Validate()
}

func reserveJoinerBody(r alloc.JoinerRequest) reserveJoinerCall {
	return reserveJoinerCall{
		Project: r.Tenant.Project, Environment: r.Tenant.Environment,
		Player: hex.EncodeToString(r.Player[:]), Host: r.Host.String(),
	}
}

func (c *reserveJoinerCall) request() (r alloc.JoinerRequest, err error) {
	r.Tenant = alloc.Tenant{Project: c.Project, Environment: c.Environment}
	if !parseHex(c.Player, r.Player[:]) {
		return r, malformed.because("player is not 32 hexadecimal digits")
	}
	if r.Host, err = parseID("host", c.Host); err != nil {
		return r, err
	}
	return r, r.Tenant.Validate()
}

// parseID reads what AllocationID.String returns, and nothing else.
func parseID(member, s string) (id proto.AllocationID, err error) {
	const textLen = 36
	if len(s) == textLen && parseHex(strings.ReplaceAll(s, "-", ""), id[:]) && id.String() == s {
		return id, nil
	}
	return proto.AllocationID{}, malformed.because("%s is not a UUID in lower case", member)
}

// decodeID reads a call that is about one allocation.
func decodeID(body []byte) (id proto.AllocationID, err error) {
	var in idCall
	if err := decode(body, &in); err != nil {
		return id, err
	}
	return parseID("id", in.ID)
}

// drainBody rounds a deadline up, so that a short one does not become none.
func drainBody(d Drain) drainCall {
	c := drainCall{DeadlineMs: unsaid, Threshold: max(int64(d.Threshold), unsaid)}
	if d.Deadline >= 0 {
		c.DeadlineMs = int64((d.Deadline + time.Millisecond - 1) / time.Millisecond)
	}
	return c
}

func (c *drainCall) drain() (Drain, error) {
	switch {
	case c.DeadlineMs < unsaid || c.DeadlineMs > maxDrainDeadline.Milliseconds():
		return Drain{}, malformed.because("deadlineMs is not within -1 to %d", maxDrainDeadline.Milliseconds())
	case c.Threshold < unsaid || c.Threshold > maxDrainThreshold:
		return Drain{}, malformed.because("threshold is not within -1 to %d", maxDrainThreshold)
	}
	return Drain{Deadline: time.Duration(c.DeadlineMs) * time.Millisecond, Threshold: int(c.Threshold)}, nil
}

func drainAnswerOf(st DrainState, now time.Time) drainAnswer {
	a := drainAnswer{
		Draining: st.Draining, Final: st.Final, LeftMs: unsaid, Threshold: st.Threshold, Allocations: st.Allocations,
	}
	if !st.Deadline.IsZero() {
		a.LeftMs = max(st.Deadline.Sub(now), 0).Milliseconds()
	}
	return a
}

func (a *drainAnswer) state(now time.Time) (DrainState, error) {
	if a.LeftMs < unsaid || a.LeftMs > maxDrainDeadline.Milliseconds() || a.Threshold < 0 || a.Allocations < 0 {
		return DrainState{}, fmt.Errorf("%w: %d ms are left, %d allocations, threshold %d", errAnswer, a.LeftMs, a.Allocations, a.Threshold)
	}
	st := DrainState{Draining: a.Draining, Final: a.Final, Threshold: a.Threshold, Allocations: a.Allocations}
	if a.LeftMs != unsaid {
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
	d := alloc.Description{Tenant: a.Tenant, Bound: a.Bound}
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
