package alloc

import (
	"fmt"
	"slices"
)

type regions struct {
	fixed   []Region
	live    func() []Region // nil: fixed
	hasRoom func(region string, seats int) bool
	allowed func(Tenant) []string
}

// RegionsOf returns the regions that Allocate accepts from a caller; the first is the default.
// In a fleet these are the regions that have a live relay; there may be none.
func (s *Service) RegionsOf(c Caller) []Region {
	all := s.regions.all()
	ids, limited := s.regions.allowedIDs(c)
	if !limited {
		return all
	}
	var there []Region
	for _, r := range all {
		if slices.Contains(ids, r.ID) {
			there = append(there, r)
		}
	}
	return there
}

// HasRoom reports whether a region can take a host with maxConnections joiners now. Error:
// ErrMaxConnections.
func (s *Service) HasRoom(region string, maxConnections int) (bool, error) {
	if maxConnections < 1 || maxConnections > s.maxConnections {
		return false, fmt.Errorf("%w: %d is not within 1 to %d", ErrMaxConnections, maxConnections, s.maxConnections)
	}
	return s.regions.haveRoom(region, 1+maxConnections), nil
}

func contains(all []Region, id string) bool {
	return slices.ContainsFunc(all, func(r Region) bool { return r.ID == id })
}

func (r *regions) all() []Region {
	if r.live != nil {
		return r.live()
	}
	return slices.Clone(r.fixed)
}

// allowedIDs returns the regions in which a caller may have hosts, in the order of its own list, if it has one.
// False: all.
func (r *regions) allowedIDs(c Caller) (ids []string, limited bool) {
	if r.allowed != nil {
		ids = r.allowed(c.Tenant)
	}
	switch {
	case len(c.Regions) == 0:
		return ids, len(ids) > 0
	case len(ids) == 0:
		return c.Regions, true
	}
	ofBoth := slices.DeleteFunc(slices.Clone(c.Regions), func(id string) bool { return !slices.Contains(ids, id) })
	return ofBoth, true
}

func (r *regions) haveRoom(id string, seats int) bool {
	return r.hasRoom == nil || r.hasRoom(id, seats)
}

// forHost returns the region to request from the relay, in a fleet the one that the caller
// named, else by default the first. Of a caller that may not use all, it is the first
// allowed one.
func (r *regions) forHost(c Caller, named string) (string, error) {
	if allowed, limited := r.allowedIDs(c); limited {
		switch {
		case named != "" && !slices.Contains(allowed, named):
			return "", ErrRegion
		case named == "":
			all := r.all()
			i := slices.IndexFunc(allowed, func(id string) bool { return contains(all, id) })
			if i < 0 && r.live != nil && len(allowed) > 0 {
				return "", ErrUnavailable // One of them may have a relay again.
			}
			if i < 0 {
				return "", ErrRegion
			}
			named = allowed[i]
		}
	}
	switch {
	case r.live != nil:
		return named, nil
	case named == "":
		return r.fixed[0].ID, nil
	case !contains(r.fixed, named):
		return "", ErrRegion
	}
	return named, nil
}

func (r *regions) setDefault(res Reservation) Reservation {
	if res.Region == "" && r.live == nil {
		res.Region = r.fixed[0].ID
	}
	return res
}
