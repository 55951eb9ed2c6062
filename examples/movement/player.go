package main

import (
	"context"
	"encoding/binary"
	"fmt"
	"math/rand/v2"

	"github.com/ferryrelay/ferry/client/netcode"
)

const (
	// maxPending is how many inputs of a player may be without confirmation. At the limit the player
	// stands still: it predicts no further.
	maxPending = 64
	// settling is how many ticks after a correction of the player's tick the margin is right again.
	settling = 64
)

// player moves its own body at once, as if the host had applied its input already, and corrects
// itself by the host's snapshots.
type player struct {
	*netcode.Driver
	inputs int        // how many it gives
	rand   *rand.Rand // decides where it walks

	conn    netcode.Conn
	id      netcode.NetworkID // 0 until it is connected
	known   bool              // pos and tick are known
	pos     vector            // predicted
	tick    uint32            // of the newest input, ahead of the host's
	shift   int               // by how many ticks to run earlier, below 0 later
	settled uint32            // the tick after which the next correction of the tick is possible
	given   int               // inputs so far
	pending []predicted
	world   map[netcode.NetworkID]vector // of the newest snapshot
	ended   bool                         // in which all players were finished

	corrections int   // snapshots that did not agree with the prediction
	worst       int32 // largest error of a prediction, in units
}

// predicted is an input for a tick after that of the newest snapshot, and the predicted position after it.
type predicted struct {
	input
	pos vector
}

// result is what a player knows at the end of a match.
type result struct {
	id          netcode.NetworkID
	pos         vector // as predicted and corrected
	world       map[netcode.NetworkID]vector
	corrections int
	worst       int32
	lost        uint64 // snapshots
}

// run plays a match until all players are finished.
func (p *player) run(ctx context.Context, rate int) (result, error) {
	err := runTicks(ctx, p.Driver, rate, func(uint32) (over bool, err error) {
		err = p.turn()
		return p.ended, err
	})
	if err != nil {
		return result{}, fmt.Errorf("player: %w", err)
	}
	return result{p.id, p.pos, p.world, p.corrections, p.worst, p.Stats().Lost}, nil
}

// turn is the game's part of one tick.
func (p *player) turn() error {
	for _, ev := range p.Events() {
		switch ev.State {
		case netcode.StateConnected:
			ev.Conn.SetInGame(true)
			p.id = ev.NetworkID
		case netcode.StateDisconnected:
			return fmt.Errorf("connection ended: %v", ev)
		}
	}
	if tick, snapshot, ok := p.conn.Snapshot(); ok {
		states, err := parseSnapshot(snapshot)
		if err != nil {
			return err
		}
		p.reconcile(tick, states)
	}
	if !p.known {
		return nil
	}
	n := max(1+p.shift, 0)
	p.shift += 1 - n
	for range min(n, maxPending-len(p.pending)) {
		if err := p.play(p.decide()); err != nil {
			return err
		}
	}
	return nil
}

// play sends an input for the next tick, and applies it at once.
func (p *player) play(in input) error {
	p.given++
	p.tick++
	p.pos = p.pos.move(in)
	p.pending = append(p.pending, predicted{in, p.pos})
	command, err := binary.Append(nil, binary.LittleEndian, in)
	if err != nil {
		return err
	}
	return p.conn.SendCommand(p.tick, command)
}

// reconcile takes the host's word for all up to its tick, and predicts again from there with the
// inputs for later ticks.
func (p *player) reconcile(tick uint32, states []bodyState) {
	p.world = make(map[netcode.NetworkID]vector, len(states))
	p.ended = true
	for _, s := range states {
		p.world[s.ID] = s.Pos
		p.ended = p.ended && s.Finished
		if s.ID != p.id {
			continue
		}
		p.steer(tick, int(s.Margin))
		confirmed := min(max(len(p.pending)-int(int32(p.tick-tick)), 0), len(p.pending))
		if confirmed > 0 {
			if distance := s.Pos.distance(p.pending[confirmed-1].pos); distance > 0 {
				p.corrections++
				p.worst = max(p.worst, distance)
			}
			p.pending = p.pending[confirmed:]
		}
		p.pos = s.Pos
		for i := range p.pending {
			p.pos = p.pos.move(p.pending[i].input)
			p.pending[i].pos = p.pos
		}
	}
}

// steer corrects the player's tick, so that its inputs come to the host just before their ticks.
func (p *player) steer(tick uint32, margin int) {
	switch {
	case !p.known:
		p.known, p.tick, p.settled = true, tick, tick+settling/4
	case int32(tick-p.settled) > 0 && (margin < 0 || margin > 2):
		p.shift = -margin
		p.settled = p.tick + uint32(max(p.shift, 0)) + settling
	}
}

// decide is the player's part, which a program has to play: it wanders about, and at last all meet in
// the middle, where there is not enough room.
func (p *player) decide() input {
	if p.given >= p.inputs {
		return input{Last: true}
	}
	if p.given < p.inputs/2 {
		if p.given%15 > 0 && len(p.pending) > 0 {
			return p.pending[len(p.pending)-1].input
		}
		return input{DX: int8(p.rand.IntN(3) - 1), DY: int8(p.rand.IntN(3) - 1)}
	}
	towards := func(at int32) int8 { return int8(min(max((side/2-at)/speed, -1), 1)) }
	return input{DX: towards(p.pos.X), DY: towards(p.pos.Y)}
}
