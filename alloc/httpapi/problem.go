package httpapi

import (
	"context"
	"errors"
	"net/http"
	"time"

	"github.com/ferryrelay/ferry/alloc"
	"github.com/ferryrelay/ferry/alloc/api"
)

// How long a caller is asked to wait when the relay cannot serve it: a full
// one has room when a match ends or a reservation lapses (10 s), one that does
// not answer is usually just starting, and one that drains is replaced or
// started anew. Reservations of the caller's own have been bound or have lapsed
// after 10 s, the default bind time-out.
const (
	retryFull        = 5 * time.Second
	retryUnavailable = 2 * time.Second
	retryDraining    = 10 * time.Second
	retryOutstanding = 10 * time.Second
	retryQuota       = 10 * time.Second
)

// statusProblem is a problem whose code follows from its status.
func statusProblem(status int, detail string) *api.Problem {
	return api.NewProblem(status, api.StatusCode(status), detail)
}

func invalid(detail string) *api.Problem {
	return api.NewProblem(http.StatusBadRequest, api.CodeInvalidRequest, detail)
}

// invalidMember names the member that is wrong, never what the caller put
// there.
func invalidMember(member, what string) *api.Problem {
	p := invalid("invalid request")
	p.Details = []api.Detail{{Key: member, Value: what}}
	return p
}

func tooLarge() *api.Problem {
	return statusProblem(http.StatusRequestEntityTooLarge, "the body is larger than 16 KiB")
}

func later(p *api.Problem, wait time.Duration) *api.Problem {
	p.RetryAfter = wait
	return p
}

// denied returns the problem of a caller whom the operator's own rules refuse,
// with what they have to say to it.
func denied(d alloc.DeniedError) *api.Problem {
	if d.Reason == "" {
		d.Reason = "not admitted"
	}
	return statusProblem(http.StatusForbidden, d.Reason)
}

// problemOf maps an error of the service to the API's terms. What it does not
// know is the server's own fault.
func problemOf(err error) *api.Problem {
	var no alloc.DeniedError
	switch {
	case errors.As(err, &no):
		return denied(no)
	case errors.Is(err, alloc.ErrProjectInactive):
		return api.NewProblem(http.StatusForbidden, api.CodeInactiveProject, "the project is not active")
	case errors.Is(err, alloc.ErrProjectQuota):
		return later(statusProblem(http.StatusTooManyRequests, "the project has as much as it may"), retryQuota)
	case errors.Is(err, alloc.ErrMaxConnections):
		return invalidMember("maxConnections", "is out of range")
	case errors.Is(err, alloc.ErrCodeMalformed):
		return invalidMember("joinCode", "is not 6 to 12 symbols of 6789BCDFGHJKLMNPQRTW")
	case errors.Is(err, alloc.ErrRegion):
		return api.NewProblem(http.StatusBadRequest, api.CodeRegionNotFound, "region not found")
	case errors.Is(err, alloc.ErrNotFound):
		return api.NewProblem(http.StatusNotFound, api.CodeAllocationNotFound, "allocation not found")
	case errors.Is(err, alloc.ErrCodeNotFound):
		// The words are the real service's; games look for them.
		return api.NewProblem(http.StatusNotFound, api.CodeJoinCodeNotFound, "join code not found")
	case errors.Is(err, alloc.ErrFull):
		return later(api.NewProblem(http.StatusServiceUnavailable, api.CodeNoSuitableRelay,
			"no relay has room"), retryFull)
	case errors.Is(err, alloc.ErrDraining):
		return later(api.NewProblem(http.StatusServiceUnavailable, api.CodeNoSuitableRelay,
			"the relay takes no new allocations"), retryDraining)
	case errors.Is(err, alloc.ErrOutstanding):
		return later(statusProblem(http.StatusTooManyRequests,
			"too many allocations that nobody has bound yet"), retryOutstanding)
	case errors.Is(err, alloc.ErrStoreUnavailable):
		return later(statusProblem(http.StatusServiceUnavailable, "store unavailable"), retryUnavailable)
	case errors.Is(err, alloc.ErrAdmissionUnavailable):
		return later(statusProblem(http.StatusServiceUnavailable, "admission unavailable"), retryUnavailable)
	case errors.Is(err, alloc.ErrUnavailable), errors.Is(err, context.DeadlineExceeded),
		errors.Is(err, context.Canceled):
		return later(statusProblem(http.StatusServiceUnavailable, "relay unavailable"), retryUnavailable)
	}
	return statusProblem(http.StatusInternalServerError, "internal error")
}
