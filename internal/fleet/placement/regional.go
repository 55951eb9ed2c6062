package placement

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/ferryrelay/ferry/alloc"
	"github.com/ferryrelay/ferry/proto"
)

type Member struct {
	*Fleet
	// Region is the region of its relays. Empty for the only member of a fleet with one store, whose
	// relays may be of any region.
	Region string
	// Symbol is the first symbol of its join codes. Empty for that only member, whose codes have none.
	Symbol string
}

// Regional is an alloc.Relay over fleets of which each has a store of its own, so that the
// end of a store affects one region. It passes each call to the member that has its host or its
// region. Its methods may be called concurrently.
type Regional struct {
	otherMachines
	members []Member
	recent  recentHosts
}

// NewRegional returns a fleet of these members: each has a region and a symbol of its own, or there is one that
// has neither.
func NewRegional(members ...Member) *Regional { return &Regional{members: members} }

func (r *Regional) isSingle() bool { return r.members[0].Symbol == "" }

// Run runs all members until ctx ends. It can be called once.
func (r *Regional) Run(ctx context.Context) error {
	var running sync.WaitGroup
	errs := make([]error, len(r.members))
	for i := range r.members {
		running.Go(func() { errs[i] = r.members[i].Run(ctx) })
	}
	running.Wait()
	return errors.Join(errs...)
}

// Nodes returns the relays of all members, see [Fleet.Nodes].
func (r *Regional) Nodes() (all []Candidate) {
	for i := range r.members {
		all = append(all, r.members[i].Nodes()...)
	}
	return all
}

type StoreAway struct {
	Region string // of a Member
	// Since is when it was last read, or the start of the fleet.
	Since time.Time
}

// StoresAway returns the stores that do not answer, and whether that is all of them.
func (r *Regional) StoresAway() (away []StoreAway, all bool) {
	for i := range r.members {
		m := &r.members[i]
		if since, isAway := m.StoreAway(); isAway {
			away = append(away, StoreAway{m.Region, since})
		}
	}
	return away, len(away) == len(r.members)
}

// Regions returns the regions that have a live relay, as [Fleet.Regions] does.
func (r *Regional) Regions() (all []alloc.Region) {
	for i := range r.members {
		m := &r.members[i]
		for _, region := range m.Regions() {
			if m.serves(region.ID) {
				all = append(all, region)
			}
		}
	}
	slices.SortFunc(all, func(a, b alloc.Region) int { return cmp.Compare(a.ID, b.ID) })
	return all
}

// serves reports whether hosts in that region belong to the member. A relay of another region that
// announces itself in the member's store gets no hosts.
func (m *Member) serves(region string) bool { return m.Region == "" || m.Region == region }

// HasRoom is [Fleet.HasRoom], and false for a region whose store does not answer while others do.
func (r *Regional) HasRoom(region string, seats int) bool {
	return slices.ContainsFunc(r.members, func(m Member) bool {
		return m.serves(region) && (r.isSingle() || m.Ready() == nil) && m.HasRoom(region, seats)
	})
}

// Ready returns nil if all members can place hosts, else the reasons of those that cannot.
func (r *Regional) Ready() error {
	var errs []error
	for i := range r.members {
		m := &r.members[i]
		switch err := m.Ready(); {
		case err == nil:
		case m.Region == "":
			errs = append(errs, err)
		default:
			errs = append(errs, fmt.Errorf("region %s: %w", m.Region, err))
		}
	}
	return errors.Join(errs...)
}

// Stats returns the sums of the counts of all members.
func (r *Regional) Stats() (sum Stats) {
	for i := range r.members {
		st := r.members[i].Stats()
		sum.Polls, sum.PollsFailed = sum.Polls+st.Polls, sum.PollsFailed+st.PollsFailed
		sum.Tries, sum.Placed, sum.Full = sum.Tries+st.Tries, sum.Placed+st.Placed, sum.Full+st.Full
		sum.Draining, sum.Silent = sum.Draining+st.Draining, sum.Silent+st.Silent
		for _, refused := range st.Refused {
			if r.isSingle() || refused.Region == "" || refused.Region == r.members[i].Region {
				sum.Refused = append(sum.Refused, refused)
			}
		}
		sum.Released, sum.ReleasesDropped = sum.Released+st.Released, sum.ReleasesDropped+st.ReleasesDropped
		sum.Relays, sum.Dead = sum.Relays+st.Relays, sum.Dead+st.Dead
		sum.Stopped, sum.Unknown = sum.Stopped+st.Stopped, sum.Unknown+st.Unknown
		sum.PerRelay = append(sum.PerRelay, st.PerRelay...)
	}
	return sum
}

// ReserveHost reserves a host in its region. A host without a region goes to one whose store answers,
// in the order of [Fleet.ReserveHost]: the preferred ones, then the least loaded. Errors: those of
// Fleet.ReserveHost.
func (r *Regional) ReserveHost(ctx context.Context, q alloc.HostRequest) (alloc.Reservation, error) {
	if r.isSingle() {
		return r.members[0].ReserveHost(ctx, q)
	}
	if q.Region != "" {
		i := slices.IndexFunc(r.members, func(m Member) bool { return m.Region == q.Region })
		if i < 0 {
			return alloc.Reservation{}, alloc.ErrRegion
		}
		return r.reserveAt(ctx, i, q)
	}
	ctx, cancel := context.WithTimeout(ctx, ReserveWithin)
	defer cancel()
	order, err := r.membersWithRoom(r.members[0].placementRequest(q))
	if err != nil {
		r.members[0].counts.refuse("", err)
	}
	for _, i := range order {
		q.Region = r.members[i].Region
		var res alloc.Reservation
		if res, err = r.reserveAt(ctx, i, q); err == nil || !isOfRegion(err) {
			return res, err
		}
	}
	return alloc.Reservation{}, err
}

func (r *Regional) reserveAt(ctx context.Context, member int, q alloc.HostRequest) (alloc.Reservation, error) {
	res, err := r.members[member].ReserveHost(ctx, q)
	switch {
	case err == nil:
		r.recent.add(res.ID, member)
	case errors.Is(err, alloc.ErrRegion): // It has no relay for so long that the registry has none either.
		err = alloc.ErrNoRelay
		r.members[member].counts.refuse(q.Region, err)
	}
	return res, err
}

func isOfRegion(err error) bool {
	return isRefusal(err) || errors.Is(err, alloc.ErrUnavailable) || errors.Is(err, alloc.ErrMaxConnections)
}

// membersWithRoom returns the members that may take a host, the best first. If there are none it returns
// why no region takes it, or why no member is ready.
func (r *Regional) membersWithRoom(q Request) (order []int, err error) {
	loads := make([]float64, len(r.members))
	var nodes []Candidate
	var unready error
	for i := range r.members {
		m := &r.members[i]
		if err := m.Ready(); err != nil {
			unready = err
			continue
		}
		var hasRoom bool
		if loads[i], hasRoom = m.relays.load(m.Region, q.Seats); hasRoom {
			order = append(order, i)
		} else {
			nodes = append(nodes, slices.DeleteFunc(m.Nodes(), func(c Candidate) bool { return !m.serves(c.Region) })...)
		}
	}
	if len(order) == 0 {
		if err = refusal(nodes, ""); errors.Is(err, alloc.ErrNoRelay) {
			err = cmp.Or(unready, err)
		}
	}
	slices.SortFunc(order, func(a, b int) int {
		return cmp.Or(cmp.Compare(loads[a], loads[b]), cmp.Compare(r.members[a].Region, r.members[b].Region))
	})
	return order, err
}

// ReserveJoiner is [Fleet.ReserveJoiner] at the member that has the host.
func (r *Regional) ReserveJoiner(ctx context.Context, q alloc.JoinerRequest) (alloc.Reservation, error) {
	i, err := r.memberOf(ctx, q.Host)
	if err != nil {
		return alloc.Reservation{}, err
	}
	return r.members[i].ReserveJoiner(ctx, q)
}

// MigrateHost is [Fleet.MigrateHost] at the member that has the host.
func (r *Regional) MigrateHost(ctx context.Context, q alloc.MigrationRequest) (alloc.Reservation, error) {
	i, err := r.memberOf(ctx, q.Host)
	if err != nil {
		return alloc.Reservation{}, err
	}
	res, err := r.members[i].MigrateHost(ctx, q)
	if err == nil {
		r.recent.add(res.ID, i)
	}
	return res, err
}

// LeaveHost is [Fleet.LeaveHost] at the member that has the host.
func (r *Regional) LeaveHost(ctx context.Context, q alloc.LeaveRequest) error {
	i, err := r.memberOf(ctx, q.Host)
	if err != nil {
		return err
	}
	return r.members[i].LeaveHost(ctx, q)
}

// Describe is [Fleet.Describe] at the member that has the host.
func (r *Regional) Describe(ctx context.Context, host proto.AllocationID) (alloc.Description, error) {
	i, err := r.memberOf(ctx, host)
	if err != nil {
		return alloc.Description{}, err
	}
	return r.members[i].Describe(ctx, host)
}

// KeepCode is [Fleet.KeepCode] at the member that has the host.
func (r *Regional) KeepCode(ctx context.Context, host proto.AllocationID, code string) error {
	i, err := r.memberOf(ctx, host)
	if err != nil {
		return err
	}
	return r.members[i].KeepCode(ctx, host, code)
}

// HomeOf returns the home of a host from the store that has it. Errors: alloc.ErrNotFound,
// alloc.ErrStoreUnavailable.
func (r *Regional) HomeOf(ctx context.Context, host proto.AllocationID) (Home, error) {
	i, err := r.memberOf(ctx, host)
	if err != nil {
		return Home{}, err
	}
	return r.members[i].directory.HomeOf(ctx, host)
}

// memberOf returns the member that has a host: the one where this process met it before, else the first
// one whose store has its home. Errors: alloc.ErrNotFound if all stores answer and none has it, else
// alloc.ErrStoreUnavailable.
func (r *Regional) memberOf(ctx context.Context, host proto.AllocationID) (int, error) {
	if r.isSingle() {
		return 0, nil
	}
	if i, ok := r.recent.get(host); ok {
		return i, nil
	}
	ctx, cancel := context.WithTimeout(ctx, storeTimeout)
	defer cancel()
	type answer struct {
		member int
		err    error
	}
	answers := make(chan answer, len(r.members))
	for i := range r.members {
		go func() {
			_, err := r.members[i].directory.HomeOf(ctx, host)
			answers <- answer{i, err}
		}()
	}
	missing := alloc.ErrNotFound
	for range r.members {
		a := <-answers
		switch {
		case a.err == nil:
			r.recent.add(host, a.member)
			return a.member, nil
		case !errors.Is(a.err, alloc.ErrNotFound):
			missing = unavailable("look up the host's region", alloc.ErrStoreUnavailable, a.err)
		case errors.Is(missing, alloc.ErrNotFound):
			missing = r.members[a.member].relays.notFoundUnlessHealing(missing)
		}
	}
	return 0, missing
}

// Codes returns the directories of all members as the store of an alloc.Service, see [Fleet.Codes]. With
// several members the first symbol of a code names its member.
func (r *Regional) Codes() alloc.Store {
	if r.isSingle() {
		return r.members[0].Codes()
	}
	c := regionalCodes{fleet: r}
	for i := range r.members {
		c.stores = append(c.stores, r.members[i].Codes())
	}
	return c
}

type regionalCodes struct {
	fleet  *Regional
	stores []alloc.Store // by member
}

func (c regionalCodes) byCode(code string) (int, bool) {
	i := slices.IndexFunc(c.fleet.members, func(m Member) bool { return strings.HasPrefix(code, m.Symbol) })
	return i, i >= 0
}

// Codes returns the symbol of the host's region, and how many codes the tenant has there.
func (c regionalCodes) Codes(ctx context.Context, t alloc.Tenant, host proto.AllocationID) (string, int, error) {
	i, err := c.fleet.memberOf(ctx, host)
	if err != nil {
		return "", 0, err
	}
	_, n, err := c.stores[i].Codes(ctx, t, host)
	return c.fleet.members[i].Symbol, n, err
}

// PutCode stores a code in the store that its first symbol names. It reports false as well for a host
// that has a code in another one.
func (c regionalCodes) PutCode(ctx context.Context, t alloc.Tenant, code string, host proto.AllocationID) (bool, error) {
	i, ok := c.byCode(code)
	if !ok {
		return false, alloc.ErrCodeMalformed
	}
	if other, ok := c.fleet.recent.get(host); ok && other != i {
		if _, err := c.stores[other].CodeOf(ctx, t, host); !errors.Is(err, alloc.ErrCodeNotFound) {
			return false, err
		}
	}
	stored, err := c.stores[i].PutCode(ctx, t, code, host)
	if stored {
		c.fleet.recent.add(host, i)
	}
	return stored, err
}

func (c regionalCodes) HostOf(ctx context.Context, t alloc.Tenant, code string) (proto.AllocationID, error) {
	i, ok := c.byCode(code)
	if !ok {
		return proto.AllocationID{}, alloc.ErrCodeNotFound
	}
	host, err := c.stores[i].HostOf(ctx, t, code)
	if err == nil {
		c.fleet.recent.add(host, i)
	}
	return host, err
}

func (c regionalCodes) CodeOf(ctx context.Context, t alloc.Tenant, host proto.AllocationID) (string, error) {
	i, err := c.fleet.memberOf(ctx, host)
	if errors.Is(err, alloc.ErrNotFound) {
		return "", alloc.ErrCodeNotFound
	}
	if err != nil {
		return "", err
	}
	return c.stores[i].CodeOf(ctx, t, host)
}

// MoveCode returns an errors.ErrUnsupported: relays move the codes of their hosts.
func (c regionalCodes) MoveCode(context.Context, uint64, string, proto.AllocationID, proto.AllocationID) (bool, error) {
	return false, fmt.Errorf("fleet: move a code between hosts of several regions: %w", errors.ErrUnsupported)
}

// Forget removes the code of a host from the store that has the host, or from all if it is not known.
func (c regionalCodes) Forget(host proto.AllocationID) {
	known, ok := c.fleet.recent.get(host)
	for i, s := range c.stores {
		if !ok || i == known {
			s.Forget(host)
		}
	}
}

// maxRecentHosts bounds the hosts of one generation of recentHosts: 2 MiB or so.
const maxRecentHosts = 1 << 16

// recentHosts are the members of the hosts that were met last, at least maxRecentHosts of them: a host
// never moves to another member. Older ones are looked up again.
type recentHosts struct {
	mu         sync.Mutex // guards the following fields
	young, old map[proto.AllocationID]uint8
}

func (r *recentHosts) add(host proto.AllocationID, member int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.young == nil || len(r.young) >= maxRecentHosts {
		r.young, r.old = make(map[proto.AllocationID]uint8), r.young
	}
	r.young[host] = uint8(member)
}

func (r *recentHosts) get(host proto.AllocationID) (member int, ok bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	m, ok := r.young[host]
	if !ok {
		m, ok = r.old[host]
	}
	return int(m), ok
}
