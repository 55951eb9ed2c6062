package httpapi

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"time"

	"github.com/ferryrelay/ferry/alloc"
	"github.com/ferryrelay/ferry/alloc/api"
	"github.com/ferryrelay/ferry/proto"
)

// The Retry-After of refused requests. A full relay accepts hosts again when a match ends
// or a reservation expires (10 s); a relay that does not answer is usually starting; a
// draining one is replaced or restarted. The caller's own reservations are bound or
// expired after 10 s, the default bind timeout.
const (
	retryFull        = 5 * time.Second
	retryUnavailable = 2 * time.Second
	retryDraining    = 10 * time.Second
	retryOutstanding = 10 * time.Second
	retryPlayerLimit = 10 * time.Second
	retryQuota       = 10 * time.Second
)

func statusProblem(status int, detail string) *api.Problem {
	return api.NewProblem(status, api.StatusCode(status), detail)
}

func invalid(detail string) *api.Problem {
	return api.NewProblem(http.StatusBadRequest, api.CodeInvalidRequest, detail)
}

// invalidMember returns a problem that names the member, and never contains its value.
func invalidMember(member, what string) *api.Problem {
	p := invalid("invalid request")
	p.Details = []api.Detail{{Key: member, Value: what}}
	return p
}

func tooLarge(most int64) *api.Problem {
	return statusProblem(http.StatusRequestEntityTooLarge, fmt.Sprintf("the body is larger than %d KiB", most>>10))
}

func withRetryAfter(p *api.Problem, wait time.Duration) *api.Problem {
	p.RetryAfter = wait
	return p
}

func hostPresentProblem(host proto.AllocationID) *api.Problem {
	p := statusProblem(http.StatusConflict, "the match has a host: join by the code")
	p.Details = []api.Detail{{Key: api.DetailHost, Value: host.String()}}
	return p
}

// playerLimits has what a player has too many of, and the setting of ferry, by the limit. A relay of
// an earlier version does not name it.
var playerLimits = map[string]string{
	"":                 "live hosts, joins or reserved seats",
	"hosts":            "live hosts (player_hosts)",
	"joiners":          "live joins (twice player_hosts)",
	"joiners_per_host": "live joins at this host (player_seats_per_host)",
	"seats":            "seats of its live hosts (player_hosts times max_connections and one)",
}

func playerLimitProblem(limit string) *api.Problem {
	what, ok := playerLimits[limit]
	if !ok {
		what = playerLimits[""]
	}
	text := "this player has as many " + what + " as one player may: end one; one that is silent for 10 s ends by itself"
	return withRetryAfter(statusProblem(http.StatusTooManyRequests, text), retryPlayerLimit)
}

func problemOf(err error) *api.Problem {
	refused, _ := errors.AsType[alloc.RefusedError](err)
	switch {
	case errors.Is(err, alloc.ErrDenied):
		return statusProblem(http.StatusForbidden, cmp.Or(refused.Reason, "not admitted"))
	case errors.Is(err, alloc.ErrProjectInactive):
		return api.NewProblem(http.StatusForbidden, api.CodeInactiveProject, "the project is not active")
	case errors.Is(err, alloc.ErrProjectQuota):
		return withRetryAfter(statusProblem(http.StatusTooManyRequests, "the project has as much as it may"), retryQuota)
	case errors.Is(err, alloc.ErrMaxConnections):
		_, limits, _ := strings.Cut(err.Error(), alloc.ErrMaxConnections.Error()+": ")
		return invalidMember("maxConnections", cmp.Or(limits, "is out of range"))
	case errors.Is(err, alloc.ErrRegion):
		return api.NewProblem(http.StatusBadRequest, api.CodeRegionNotFound, "region not found")
	case errors.Is(err, alloc.ErrNotFound):
		return api.NewProblem(http.StatusNotFound, api.CodeAllocationNotFound, "allocation not found")
	case errors.Is(err, alloc.ErrCodeNotFound), errors.Is(err, alloc.ErrCodeMalformed):
		// This text is the original service's; games compare it. A player that types O for Q
		// has the wrong code and no use for an alphabet.
		return api.NewProblem(http.StatusNotFound, api.CodeJoinCodeNotFound, "join code not found")
	case errors.Is(err, alloc.ErrHostProof):
		return invalidMember("connectionData", "is missing: many players share this token, so it must be what allocate or migrate returned to the host")
	case errors.Is(err, alloc.ErrMigration):
		return withRetryAfter(statusProblem(http.StatusConflict, refused.Reason), max(refused.RetryAfter, time.Second))
	case errors.Is(err, alloc.ErrHostPresent):
		return hostPresentProblem(refused.Host)
	case errors.Is(err, alloc.ErrFull):
		return withRetryAfter(api.NewProblem(http.StatusServiceUnavailable, api.CodeNoSuitableRelay,
			"no relay has room"), retryFull)
	case errors.Is(err, alloc.ErrDraining):
		return withRetryAfter(api.NewProblem(http.StatusServiceUnavailable, api.CodeNoSuitableRelay,
			"the relay takes no new allocations"), retryDraining)
	case errors.Is(err, alloc.ErrPlayerLimit):
		return playerLimitProblem(refused.Reason)
	case errors.Is(err, alloc.ErrOutstanding):
		return withRetryAfter(statusProblem(http.StatusTooManyRequests,
			"too many allocations that are not bound yet"), retryOutstanding)
	case errors.Is(err, alloc.ErrStoreUnavailable):
		return withRetryAfter(statusProblem(http.StatusServiceUnavailable, "store unavailable"), retryUnavailable)
	case errors.Is(err, alloc.ErrNoRelay):
		return withRetryAfter(statusProblem(http.StatusServiceUnavailable, "no relay of the region runs"), retryUnavailable)
	case errors.Is(err, alloc.ErrAdmissionUnavailable):
		return withRetryAfter(statusProblem(http.StatusServiceUnavailable, "admission unavailable"), retryUnavailable)
	case errors.Is(err, alloc.ErrUnavailable), errors.Is(err, context.DeadlineExceeded),
		errors.Is(err, context.Canceled):
		return withRetryAfter(statusProblem(http.StatusServiceUnavailable, "relay unavailable"), retryUnavailable)
	}
	return statusProblem(http.StatusInternalServerError, "internal error")
}
