package httpapi

import (
	"context"
	"errors"
	"net/http"
	"net/netip"

	"github.com/ferryrelay/ferry/alloc"
	"github.com/ferryrelay/ferry/alloc/api"
	"github.com/ferryrelay/ferry/proto"
)

func (h *Handler) allocate(ctx context.Context, r request) (answer, *api.Problem) {
	var in struct {
		MaxConnections *int   `json:"maxConnections"`
		Region         string `json:"region"`
		Family         int    `json:"family"`
		PlayerAddress  string `json:"playerAddress"`
		Player         string `json:"player"`
	}
	if problem := decode(r.body, &in); problem != nil {
		return answer{}, problem
	}
	if in.MaxConnections == nil {
		return answer{}, invalidMember("maxConnections", "is missing")
	}
	if problem := h.setPlayer(&r, in.Family, in.PlayerAddress, in.Player); problem != nil {
		return answer{}, problem
	}
	res, err := h.service.Allocate(ctx, r.caller, *in.MaxConnections, in.Region)
	if err != nil {
		return answer{}, h.serviceProblem(r, err)
	}
	return newAnswer(r, http.StatusCreated, allocationData{hostAllocation(res, in.Family == 6)}), nil
}

func parseAllocationID(text string) (proto.AllocationID, *api.Problem) {
	if text == "" {
		return proto.AllocationID{}, invalidMember("allocationId", "is missing")
	}
	id, err := proto.ParseAllocationID(text)
	if err != nil {
		return proto.AllocationID{}, invalidMember("allocationId", "is not a UUID")
	}
	return id, nil
}

func (h *Handler) joinCode(ctx context.Context, r request) (answer, *api.Problem) {
	var in struct {
		AllocationID string `json:"allocationId"`
	}
	if problem := decode(r.body, &in); problem != nil {
		return answer{}, problem
	}
	id, problem := parseAllocationID(in.AllocationID)
	if problem != nil {
		return answer{}, problem
	}
	code, err := h.service.JoinCode(ctx, r.caller, id)
	if err != nil {
		return answer{}, h.serviceProblem(r, err)
	}
	return answer{http.StatusCreated, joinCodeAnswer{
		Meta: meta{r.id, http.StatusCreated},
		Data: joinCodeData{code},
	}}, nil
}

func (h *Handler) join(ctx context.Context, r request) (answer, *api.Problem) {
	var in api.JoinRequest
	if problem := decode(r.body, &in); problem != nil {
		return answer{}, problem
	}
	if in.JoinCode == "" {
		return answer{}, invalidMember("joinCode", "is missing")
	}
	if problem := h.setPlayer(&r, in.Family, in.PlayerAddress, in.Player); problem != nil {
		return answer{}, problem
	}
	if problem := h.limits.checkFailedJoins(r.source); problem != nil {
		return answer{}, problem
	}
	res, err := h.service.Join(ctx, r.caller, in.JoinCode)
	if errors.Is(err, alloc.ErrCodeNotFound) {
		h.limits.countFailedJoin(ctx, r.source)
	}
	if err != nil {
		return answer{}, h.serviceProblem(r, err)
	}
	ipv6First := in.Family == 6 || in.Family == 0 && r.overIPv6()
	return newAnswer(r, http.StatusOK, allocationData{joinerAllocation(res, ipv6First)}), nil
}

func (h *Handler) setPlayer(r *request, family int, address, name string) *api.Problem {
	if problem := checkFamily(family); problem != nil {
		return problem
	}
	if problem := h.setPlayerAddress(r, address); problem != nil {
		return problem
	}
	return r.namePlayer(name)
}

// setPlayerAddress makes an address that a backend names for its player the caller's, unless
// it is empty. A player may not name one: datagrams to a victim's address would count as wanted.
// Where calls need no token, a backend that is tried out has none, and the address is ignored.
func (h *Handler) setPlayerAddress(r *request, address string) *api.Problem {
	server := r.source.principal.server
	if address == "" || h.cfg.Anonymous && !server {
		return nil
	}
	if !server {
		return invalidMember("playerAddress", "is for tokens of kind server")
	}
	ip, err := netip.ParseAddr(address)
	if err != nil || ip.Zone() != "" {
		return invalidMember("playerAddress", "is not an IP address")
	}
	r.caller.Address = ip.Unmap()
	return nil
}

// refuseMigration answers migrate and leave at a server that permits neither.
func refuseMigration(context.Context, request) (answer, *api.Problem) {
	return answer{}, statusProblem(http.StatusNotFound, "this server has no host migration: its setting host_migration is 0")
}

func (h *Handler) migrate(ctx context.Context, r request) (answer, *api.Problem) {
	var in api.MigrateRequest
	if problem := decode(r.body, &in); problem != nil {
		return answer{}, problem
	}
	if problem := h.setPlayer(&r, in.Family, in.PlayerAddress, in.Player); problem != nil {
		return answer{}, problem
	}
	var ticket alloc.ConnectionData
	switch {
	case in.JoinCode == "":
		return answer{}, invalidMember("joinCode", "is missing")
	case len(in.HostConnectionData) != len(ticket):
		return answer{}, invalidMember("hostConnectionData", "is not what join returned")
	}
	copy(ticket[:], in.HostConnectionData)
	if problem := h.limits.checkFailedJoins(r.source); problem != nil {
		return answer{}, problem
	}
	res, err := h.service.Migrate(ctx, r.caller, in.JoinCode, ticket)
	if errors.Is(err, alloc.ErrCodeNotFound) {
		h.limits.countFailedJoin(ctx, r.source)
	}
	if err != nil {
		return answer{}, h.serviceProblem(r, err)
	}
	return newAnswer(r, http.StatusCreated, allocationData{hostAllocation(res, in.Family == 6)}), nil
}

func (h *Handler) leave(ctx context.Context, r request) (answer, *api.Problem) {
	var in api.LeaveRequest
	if problem := decode(r.body, &in); problem != nil {
		return answer{}, problem
	}
	id, problem := parseAllocationID(in.AllocationID)
	if problem != nil {
		return answer{}, problem
	}
	var proof alloc.ConnectionData
	if n := len(in.ConnectionData); n != 0 && n != len(proof) {
		return answer{}, invalidMember("connectionData", "is not what allocate or migrate returned")
	}
	copy(proof[:], in.ConnectionData)
	if err := h.service.Leave(ctx, r.caller, id, proof); err != nil {
		return answer{}, h.serviceProblem(r, err)
	}
	return answer{status: http.StatusNoContent}, nil
}

func (h *Handler) regions(_ context.Context, r request) (answer, *api.Problem) {
	regions := h.service.RegionsOf(r.caller)
	list := make([]api.Region, len(regions))
	for i, region := range regions {
		list[i] = api.Region{
			ID: region.ID, Description: region.Description,
			QoSAddress: region.QoSAddress, WebSocketURL: region.WebSocketURL,
		}
	}
	return newAnswer(r, http.StatusOK, regionsData{list}), nil
}

func (h *Handler) serviceProblem(r request, err error) *api.Problem {
	p := problemOf(err)
	if p.Status == http.StatusInternalServerError {
		h.log.Error("internal error", "requestId", r.id, r.trace, "error", err)
	}
	return p
}

type meta struct {
	RequestID string `json:"requestId"` // identifies the request in the server's log
	Status    int    `json:"status"`    // repeats the HTTP status
}

type body[T any] struct {
	Meta meta `json:"meta"`
	Data T    `json:"data"`
}

func newAnswer[T any](r request, status int, data T) answer {
	return answer{status, body[T]{meta{r.id, status}, data}}
}

type allocationData struct {
	Allocation api.Allocation `json:"allocation"`
}

type joinCodeAnswer struct {
	Meta  meta         `json:"meta"`
	Links struct{}     `json:"links"` // The SDK requires it.
	Data  joinCodeData `json:"data"`
}

type joinCodeData struct {
	JoinCode string `json:"joinCode"`
}

type regionsData struct {
	Regions []api.Region `json:"regions"`
}

func hostAllocation(r alloc.Reservation, ipv6First bool) api.Allocation {
	return api.Allocation{
		AllocationID:      r.ID.String(),
		AllocationIDBytes: r.ID[:],
		ConnectionData:    r.ConnectionData[:],
		Key:               r.Key[:],
		Region:            r.Region,
		RelayServer:       relayServer(r.Endpoints),
		ServerEndpoints:   serverEndpoints(r.Endpoints, ipv6First),
	}
}

func joinerAllocation(r alloc.Reservation, ipv6First bool) api.Allocation {
	a := hostAllocation(r, ipv6First)
	a.HostConnectionData = r.HostConnectionData[:]
	return a
}

// relayServer returns the deprecated member: the first udp endpoint with an IPv4
// literal, else the first udp endpoint, else the first one. Clients that require the
// member do not require that they can use it.
func relayServer(endpoints []alloc.ServerEndpoint) api.RelayServer {
	var best alloc.ServerEndpoint
	rank := 0
	for _, e := range endpoints {
		if r := relayServerRank(e); r > rank {
			best, rank = e, r
		}
	}
	return api.RelayServer{IPv4: best.Host, Port: int(best.Port)}
}

func relayServerRank(e alloc.ServerEndpoint) int {
	addr, err := netip.ParseAddr(e.Host)
	switch {
	case e.ConnectionType != "udp":
		return 1
	case err != nil || !addr.Is4():
		return 2
	}
	return 3
}
