package httpapi

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"math"
	"net/http"
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
	measured, problem := measurements(in.Players)
	if problem != nil {
		return answer{}, problem
	}
	scores, err := h.service.ChooseRegion(r.caller, cmp.Or(in.MaxConnections, 1), measured)
	if err != nil {
		return answer{}, h.serviceProblem(r, err)
	}
	data := api.ChooseRegionData{Region: scores[0].Region, Reason: reasonOf(scores, in.Players)}
	for _, s := range scores {
		score := api.RegionScore{
			Region: s.Region, HasRoom: s.HasRoom, Players: s.Reached, Worst: milliseconds(s.WorstLatency), Mean: milliseconds(s.Mean),
		}
		if s.Reached > 0 {
			score.WorstPlayer = in.Players[s.Worst].Player
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

func measurements(players []api.PlayerMeasurements) ([][]alloc.Measurement, *api.Problem) {
	if len(players) == 0 {
		return nil, invalidMember("players", fmt.Sprintf("has 0 players, and must have 1 to %d", api.MaxChoosePlayers))
	}
	all := make([][]alloc.Measurement, len(players))
	for i, p := range players {
		member := fmt.Sprintf("players[%d]", i)
		if len(p.Player) > maxChooseName {
			return nil, invalidMember(member+".player", fmt.Sprintf("is longer than %d bytes", maxChooseName))
		}
		seen := make(map[string]bool, len(p.Regions))
		for j, m := range p.Regions {
			member := fmt.Sprintf("%s.regions[%d]", member, j)
			switch {
			case m.Region == "":
				return nil, invalidMember(member+".region", "is missing")
			case seen[m.Region]:
				return nil, invalidMember(member+".region", "is there twice")
			case m.RTT < 0 || m.RTT > maxRTT:
				return nil, invalidMember(member+".rtt", fmt.Sprintf("is not within 0 to %d milliseconds", maxRTT))
			case m.Loss < 0 || m.Loss > 1:
				return nil, invalidMember(member+".loss", "is not within 0 to 1")
			}
			seen[m.Region] = true
			all[i] = append(all[i], alloc.Measurement{
				Region: m.Region, RTT: time.Duration(m.RTT * float64(time.Millisecond)), Loss: m.Loss,
			})
		}
	}
	return all, nil
}

func reasonOf(scores []alloc.RegionScore, players []api.PlayerMeasurements) string {
	best := &scores[0]
	text := "every player reaches it"
	switch {
	case best.Reached == 0:
		return "no player has measured a region that has room: it is the first of the server's regions that has"
	case best.Reached < len(players):
		text = fmt.Sprintf("%d of %d players reach it, and no region with room is reached by more", best.Reached, len(players))
	}
	text += fmt.Sprintf("; worst %v ms, mean %v ms", milliseconds(best.WorstLatency), milliseconds(best.Mean))
	for i := range scores[1:] {
		s := &scores[1+i]
		switch {
		case !s.HasRoom:
			text += fmt.Sprintf("; %s has no room", s.Region)
		case i > 0: // Only the next one of those with room is of interest.
		case s.Reached == 0:
			text += fmt.Sprintf("; no player reaches %s", s.Region)
		case s.Reached < best.Reached:
			text += fmt.Sprintf("; %s is reached by %d", s.Region, s.Reached)
		default:
			text += fmt.Sprintf("; next is %s with worst %v ms, mean %v ms", s.Region, milliseconds(s.WorstLatency), milliseconds(s.Mean))
		}
	}
	return text
}

func milliseconds(d time.Duration) float64 { return math.Round(d.Seconds()*1e4) / 10 }
