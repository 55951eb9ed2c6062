package httpapi

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"math"
	"net/http"
	"slices"
	"time"

	"github.com/ferryrelay/ferry/alloc"
	"github.com/ferryrelay/ferry/alloc/api"
)

const (
	// maxRTT is the longest round trip of a measurement in milliseconds.
	maxRTT = 60_000
	// maxChooseName bounds the name of a player in bytes.
	maxChooseName = 256
)

func (h *Handler) chooseRegion(_ context.Context, r request) (answer, *api.Problem) {
	in, problem := decodeChoose(r.body)
	if problem != nil {
		return answer{}, problem
	}
	if problem := checkMeasurements(in.Players); problem != nil {
		return answer{}, problem
	}
	scores, err := rankRegions(h.service, r.caller, cmp.Or(in.MaxConnections, 1), in.Players)
	if err != nil {
		return answer{}, h.serviceProblem(r, err)
	}
	data := api.ChooseRegionData{Region: scores[0].region, Reason: reasonOf(scores, in.Players)}
	for _, s := range scores {
		score := api.RegionScore{
			Region: s.region, HasRoom: s.hasRoom, Players: s.reached, Worst: milliseconds(s.worstLatency), Mean: milliseconds(s.mean),
		}
		if s.reached > 0 {
			score.WorstPlayer = in.Players[s.worst].Player
		}
		data.Regions = append(data.Regions, score)
	}
	return newAnswer(r, http.StatusOK, data), nil
}

func decodeChoose(body []byte) (out api.ChooseRegionRequest, _ *api.Problem) {
	var in struct {
		MaxConnections int             `json:"maxConnections"`
		Players        json.RawMessage `json:"players"`
	}
	if problem := decode(body, &in); problem != nil {
		return out, problem
	}
	out.MaxConnections = in.MaxConnections
	players, problem := decodeList[struct {
		Player  string          `json:"player"`
		Regions json.RawMessage `json:"regions"`
	}](in.Players, "players", "players", api.MaxChoosePlayers)
	if problem != nil {
		return out, problem
	}
	for i, p := range players {
		member := fmt.Sprintf("players[%d].regions", i)
		regions, problem := decodeList[api.Measurement](p.Regions, member, "measurements", api.MaxChooseMeasurements)
		if problem != nil {
			return out, problem
		}
		out.Players = append(out.Players, api.PlayerMeasurements{Player: p.Player, Regions: regions})
	}
	return out, nil
}

func checkMeasurements(players []api.PlayerMeasurements) *api.Problem {
	if len(players) == 0 {
		return invalidMember("players", fmt.Sprintf("has 0 players, and must have 1 to %d", api.MaxChoosePlayers))
	}
	for i, p := range players {
		member := fmt.Sprintf("players[%d]", i)
		if len(p.Player) > maxChooseName {
			return invalidMember(member+".player", fmt.Sprintf("is longer than %d bytes", maxChooseName))
		}
		seen := make(map[string]bool, len(p.Regions))
		for j, m := range p.Regions {
			member := fmt.Sprintf("%s.regions[%d]", member, j)
			switch {
			case m.Region == "":
				return invalidMember(member+".region", "is missing")
			case seen[m.Region]:
				return invalidMember(member+".region", "is there twice")
			case m.RTT < 0 || m.RTT > maxRTT:
				return invalidMember(member+".rtt", fmt.Sprintf("is not within 0 to %d milliseconds", maxRTT))
			case m.Loss < 0 || m.Loss > 1:
				return invalidMember(member+".loss", "is not within 0 to 1")
			}
			seen[m.Region] = true
		}
	}
	return nil
}

// regionScore is what the players have measured of a region.
type regionScore struct {
	region string
	// reached is how many players reach it. The latencies are theirs: that of the worst player, whose
	// index worst is, and the mean.
	reached            int
	worstLatency, mean time.Duration
	worst              int
	hasRoom            bool
}

// rankRegions returns the regions that a caller may name, the best one first: of those with room for a
// host with maxConnections joiners, the one that most players reach, then the one with the least latency
// of the worst player, then the one with the least mean. Regions without room come last. Errors: those of
// alloc.
func rankRegions(s *alloc.Service, c alloc.Caller, maxConnections int, players []api.PlayerMeasurements) (all []regionScore, err error) {
	for _, r := range s.RegionsOf(c) {
		score := scoreRegion(r.ID, players)
		if score.hasRoom, err = s.HasRoom(r.ID, maxConnections); err != nil {
			return nil, err
		}
		all = append(all, score)
	}
	slices.SortStableFunc(all, compareScores)
	switch {
	case len(all) == 0:
		return nil, alloc.ErrNoRelay
	case !all[0].hasRoom:
		return nil, alloc.ErrFull
	}
	return all, nil
}

func scoreRegion(region string, players []api.PlayerMeasurements) regionScore {
	score := regionScore{region: region}
	var sum float64
	for i, p := range players {
		at := slices.IndexFunc(p.Regions, func(m api.Measurement) bool { return m.Region == region })
		if at < 0 {
			continue
		}
		latency, ok := latencyOf(p.Regions[at])
		if !ok {
			continue
		}
		score.reached++
		sum += float64(latency)
		if latency > score.worstLatency {
			score.worstLatency, score.worst = latency, i
		}
	}
	if score.reached > 0 {
		score.mean = time.Duration(sum / float64(score.reached))
	}
	return score
}

func compareScores(a, b regionScore) int {
	if a.hasRoom != b.hasRoom {
		if a.hasRoom {
			return -1
		}
		return 1
	}
	return cmp.Or(cmp.Compare(b.reached, a.reached), cmp.Compare(a.worstLatency, b.worstLatency), cmp.Compare(a.mean, b.mean))
}

// latencyOf counts a lost message as repeated. False: the player does not reach the region.
func latencyOf(m api.Measurement) (time.Duration, bool) {
	if m.RTT <= 0 || !(m.Loss >= 0 && m.Loss < 1) {
		return 0, false
	}
	rtt := float64(time.Duration(m.RTT * float64(time.Millisecond)))
	return time.Duration(min(rtt/(1-m.Loss), math.MaxInt64/2)), true
}

func reasonOf(scores []regionScore, players []api.PlayerMeasurements) string {
	best := &scores[0]
	text := "every player reaches it"
	switch {
	case best.reached == 0:
		return "no player has measured a region that has room: it is the first of the server's regions that has"
	case best.reached < len(players):
		text = fmt.Sprintf("%d of %d players reach it, and no region with room is reached by more", best.reached, len(players))
	}
	text += fmt.Sprintf("; worst %v ms, mean %v ms", milliseconds(best.worstLatency), milliseconds(best.mean))
	for i := range scores[1:] {
		s := &scores[1+i]
		switch {
		case !s.hasRoom:
			text += fmt.Sprintf("; %s has no room", s.region)
		case i > 0: // Only the next one of those with room is of interest.
		case s.reached == 0:
			text += fmt.Sprintf("; no player reaches %s", s.region)
		case s.reached < best.reached:
			text += fmt.Sprintf("; %s is reached by %d", s.region, s.reached)
		default:
			text += fmt.Sprintf("; next is %s with worst %v ms, mean %v ms", s.region, milliseconds(s.worstLatency), milliseconds(s.mean))
		}
	}
	return text
}

func milliseconds(d time.Duration) float64 { return math.Round(d.Seconds()*1e4) / 10 }
