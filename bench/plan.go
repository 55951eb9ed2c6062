package bench

import (
	"github.com/ferryrelay/ferry/internal/benchrig"
)

func (cfg *Config) plan() (benchrig.Plan, error) {
	p := benchrig.Plan{
		Matches: cfg.Matches, Players: cfg.Players, Payload: cfg.Payload, Stride: 2,
		AllowRemote: cfg.AllowRemote, BindRate: cfg.BindRate, Keepalive: cfg.Keepalive,
		Sockets: min(1+(cfg.endpoints()-1)/socketEndpoints, cfg.Matches), Batch: batch,
		Transport: cfg.Transport,
	}
	if cfg.ownSockets() {
		p.Sockets, p.Batch = cfg.endpoints(), ownBatch
	}
	p.Spare = cfg.spareMatches()
	p.Matches += p.Spare
	if cfg.Players > 1 || cfg.Shape == shapeStar {
		p.Stride = 256
	}
	if err := p.Place(cfg.Sources); err != nil {
		return p, err
	}
	for m := range p.Matches {
		p.Flows = append(p.Flows, cfg.links(m)...)
	}
	if cfg.Shape != shapeStar { // Due times are spread evenly.
		for i := range p.Flows {
			p.Flows[i].Group = i
		}
	}
	return p, nil
}

func (cfg *Config) spareMatches() int {
	if cfg.ReplaceRate == 0 {
		return 0
	}
	return int(cfg.ReplaceRate*spareTime) + newMatches
}

func (cfg *Config) liveFlows(p *benchrig.Plan) int {
	return len(p.Flows) / p.Matches * (p.Matches - p.Spare)
}

// links returns the flows of match m: first all up, then all down, as a game's
// tick has it.
func (cfg *Config) links(m int) (links []benchrig.Link) {
	host := m * (1 + cfg.Players)
	if cfg.Direction != directionDown {
		for j := 1; j <= cfg.Players; j++ {
			links = append(links, benchrig.Link{From: host + j, To: host, Group: m})
		}
	}
	if cfg.Direction != directionUp {
		for j := 1; j <= cfg.Players; j++ {
			links = append(links, benchrig.Link{From: host, To: host + j, Group: m})
		}
	}
	return links
}
