package alloc

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"time"
)

type Measurement struct {
	Region string
	// RTT is the mean round trip. Zero: the region did not answer.
	RTT time.Duration
	// Loss is the share of probes without an answer, 0 to 1.
	Loss float64
}

// latency counts a lost message as repeated. False: the player does not reach the region.
func (m Measurement) latency() (time.Duration, bool) {
	if m.RTT <= 0 || !(m.Loss >= 0 && m.Loss < 1) {
		return 0, false
	}
	return time.Duration(min(float64(m.RTT)/(1-m.Loss), math.MaxInt64/2)), true
}

type RegionScore struct {
	Region string
	// Reached is how many players reach it. The latencies are theirs: that of the worst player, whose
	// index Worst is, and the mean. A lost message counts as repeated: it is RTT/(1-Loss).
	Reached            int
	WorstLatency, Mean time.Duration
	Worst              int
	// HasRoom is false if no relay of the region can take the match now.
	HasRoom bool
}

// ChooseRegion returns the regions that Allocate accepts from a caller, the best one first: of those
// with room for a host with maxConnections joiners, the one that most players reach, then the one
// with the least latency of the worst player, then the one with the least mean. Regions without room
// come last. Errors: ErrMaxConnections, ErrFull if no region has room, ErrNoRelay if there is no
// region.
func (s *Service) ChooseRegion(c Caller, maxConnections int, players [][]Measurement) ([]RegionScore, error) {
	if maxConnections < 1 || maxConnections > s.maxConnections {
		return nil, fmt.Errorf("%w: %d is not within 1 to %d", ErrMaxConnections, maxConnections, s.maxConnections)
	}
	var all []RegionScore
	for _, r := range s.RegionsOf(c) {
		score := scoreRegion(r.ID, players)
		score.HasRoom = s.regions.haveRoom(r.ID, 1+maxConnections)
		all = append(all, score)
	}
	slices.SortStableFunc(all, compareScores)
	switch {
	case len(all) == 0:
		return nil, ErrNoRelay
	case !all[0].HasRoom:
		return nil, ErrFull
	}
	return all, nil
}

func scoreRegion(region string, players [][]Measurement) RegionScore {
	score := RegionScore{Region: region}
	var sum float64
	for i, measured := range players {
		at := slices.IndexFunc(measured, func(m Measurement) bool { return m.Region == region })
		if at < 0 {
			continue
		}
		latency, ok := measured[at].latency()
		if !ok {
			continue
		}
		score.Reached++
		sum += float64(latency)
		if latency > score.WorstLatency {
			score.WorstLatency, score.Worst = latency, i
		}
	}
	if score.Reached > 0 {
		score.Mean = time.Duration(sum / float64(score.Reached))
	}
	return score
}

func compareScores(a, b RegionScore) int {
	if a.HasRoom != b.HasRoom {
		if a.HasRoom {
			return -1
		}
		return 1
	}
	return cmp.Or(cmp.Compare(b.Reached, a.Reached), cmp.Compare(a.WorstLatency, b.WorstLatency), cmp.Compare(a.Mean, b.Mean))
}
