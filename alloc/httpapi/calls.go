package httpapi

import (
	"context"
	"errors"
	"net/http"

	"github.com/ferryrelay/ferry/alloc"
	"github.com/ferryrelay/ferry/alloc/api"
	"github.com/ferryrelay/ferry/proto"
)

func (h *Handler) allocate(ctx context.Context, r request) (answer, *api.Problem) {
	var in struct {
		MaxConnections *int   `json:"maxConnections"`
		Region         string `json:"region"`
	}
	if problem := decode(r.body, &in); problem != nil {
		return answer{}, problem
	}
	if in.MaxConnections == nil {
		return answer{}, invalidMember("maxConnections", "is missing")
	}
	caller := r.caller
	caller.Address = r.from.hint()
	res, err := h.service.Allocate(ctx, caller, *in.MaxConnections, in.Region)
	if err != nil {
		return answer{}, h.refuse(r, err)
	}
	return allocated(r, http.StatusCreated, hostAllocation(res)), nil
}

func (h *Handler) joinCode(ctx context.Context, r request) (answer, *api.Problem) {
	var in struct {
		AllocationID string `json:"allocationId"`
	}
	if problem := decode(r.body, &in); problem != nil {
		return answer{}, problem
	}
	if in.AllocationID == "" {
		return answer{}, invalidMember("allocationId", "is missing")
	}
	id, err := proto.ParseAllocationID(in.AllocationID)
	if err != nil {
		return answer{}, invalidMember("allocationId", "is not a UUID")
	}
	code, err := h.service.JoinCode(ctx, r.caller, id)
	if err != nil {
		return answer{}, h.refuse(r, err)
	}
	return answer{http.StatusCreated, api.JoinCodeResponse{
		Meta: meta(r, http.StatusCreated),
		Data: api.JoinCodeData{JoinCode: code},
	}}, nil
}

func (h *Handler) join(ctx context.Context, r request) (answer, *api.Problem) {
	var in struct {
		JoinCode string `json:"joinCode"`
	}
	if problem := decode(r.body, &in); problem != nil {
		return answer{}, problem
	}
	if in.JoinCode == "" {
		return answer{}, invalidMember("joinCode", "is missing")
	}
	if problem := h.mayGuess(r.from); problem != nil {
		return answer{}, problem
	}
	res, err := h.service.Join(ctx, r.caller, in.JoinCode)
	if errors.Is(err, alloc.ErrCodeNotFound) {
		h.guessed(ctx, r.from)
	}
	if err != nil {
		return answer{}, h.refuse(r, err)
	}
	return allocated(r, http.StatusOK, joinerAllocation(res)), nil
}

func (h *Handler) regions(_ context.Context, r request) (answer, *api.Problem) {
	regions := h.service.Regions()
	list := make([]api.Region, len(regions))
	for i, region := range regions {
		list[i] = api.Region{
			ID: region.ID, Description: region.Description,
			QoSAddress: region.QoSAddress, WebSocketURL: region.WebSocketURL,
		}
	}
	return answer{http.StatusOK, api.RegionsResponse{
		Meta: meta(r, http.StatusOK),
		Data: api.RegionsData{Regions: list},
	}}, nil
}

// refuse maps an error of the service, and logs what the caller is not told.
func (h *Handler) refuse(r request, err error) *api.Problem {
	p := problemOf(err)
	if p.Status == http.StatusInternalServerError {
		h.log.Error("internal error", "requestId", r.id, "error", err)
	}
	return p
}

func allocated(r request, status int, a api.Allocation) answer {
	return answer{status, api.AllocationResponse{
		Meta: meta(r, status),
		Data: api.AllocationData{Allocation: a},
	}}
}

func meta(r request, status int) api.Meta {
	return api.Meta{RequestID: r.id, Status: status}
}
