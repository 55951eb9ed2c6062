package main

import (
	"context"
	"fmt"
	"math/rand/v2"

	"github.com/ferryrelay/ferry/client/netcode"
)

// player moves its own body at once, as if the host had applied its input already, and corrects
// itself by the host's snapshots.
type player struct {
	*netcode.Driver
	inputs int        // how many it gives
	rand   *rand.Rand // decides where it walks

	conn    netcode.Conn
	id      netcode.NetworkID // 0 until it is connected
	tick    uint32
	known   bool   // pos is known
	pos     vector // predicted
	given   int    // inputs so far
	pending []predicted
	world   map[netcode.NetworkID]vector // of the newest snapshot
	ended   bool                         // in which all players were finished

	corrections int   // snapshots that did not agree with the prediction
	worst       int32 // largest error of a prediction, in units
}

// predicted is an input that the host has not confirmed yet, and the predicted position after it.
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
}

// run plays a match until all players are finished.
func (p *player) run(ctx context.Context, rate int) (result, error) {
	err := runTicks(ctx, p.Driver, rate, func() (over bool, err error) {
		err = p.turn()
		return p.ended, err
	})
	if err != nil {
		return result{}, fmt.Errorf("player: %w", err)
	}
	return result{p.id, p.pos, p.world, p.corrections, p.worst}, nil
}

// turn is the game's part of one tick.
func (p *player) turn() error {
	p.tick++
	for _, ev := range p.Events() {
		switch ev.State {
		case netcode.StateConnected:
			ev.Conn.SetInGame(true)
			p.id = ev.NetworkID
		case netcode.StateDisconnected:
			return fmt.Errorf("connection ended: %v", ev)
		}
	}
	if _, snapshot, ok := p.conn.Snapshot(); ok {
		states, err := parseSnapshot(snapshot)
		if err != nil {
			return err
		}
		p.reconcile(states)
	}
	if p.known && p.given < p.inputs && len(p.pending) < maxPending {
		p.predict(p.decide())
	}
	return p.sendPending()
}

// predict applies an input of this player at once.
func (p *player) predict(in input) {
	p.given++
	p.pos = p.pos.move(in)
	p.pending = append(p.pending, predicted{in, p.pos})
}

// reconcile takes the host's word for what it has applied, and predicts again from there with the
// inputs that it has not.
func (p *player) reconcile(states []bodyState) {
	p.world = make(map[netcode.NetworkID]vector, len(states))
	p.ended = true
	for _, s := range states {
		p.world[s.ID] = s.Pos
		p.ended = p.ended && s.Finished
		if s.ID != p.id {
			continue
		}
		first := p.given - len(p.pending) + 1
		confirmed := int(s.Applied) - first + 1
		if confirmed < 0 || confirmed > len(p.pending) {
			continue // No host sends this.
		}
		if confirmed > 0 {
			if distance := s.Pos.distance(p.pending[confirmed-1].pos); distance > 0 {
				p.corrections++
				p.worst = max(p.worst, distance)
			}
			p.pending = p.pending[confirmed:]
		}
		p.known, p.pos = true, s.Pos
		for i := range p.pending {
			p.pos = p.pos.move(p.pending[i].input)
			p.pending[i].pos = p.pos
		}
	}
}

// sendPending sends all inputs that the host has not confirmed.
func (p *player) sendPending() error {
	if len(p.pending) == 0 {
		return nil
	}
	inputs := make([]input, len(p.pending))
	for i, next := range p.pending {
		inputs[i] = next.input
	}
	head := commandHeader{First: uint32(p.given - len(p.pending) + 1), Last: p.given == p.inputs}
	command, err := appendCommand(nil, head, inputs)
	if err != nil {
		return err
	}
	return p.conn.SendCommand(p.tick, command)
}

// decide is the player's part, which a program has to play: it wanders about, and at last all meet in
// the middle, where there is not enough room.
func (p *player) decide() input {
	if p.given < p.inputs/2 {
		if p.given%15 > 0 && len(p.pending) > 0 {
			return p.pending[len(p.pending)-1].input
		}
		return input{int8(p.rand.IntN(3) - 1), int8(p.rand.IntN(3) - 1)}
	}
	towards := func(at int32) int8 { return int8(min(max((side/2-at)/speed, -1), 1)) }
	return input{towards(p.pos.X), towards(p.pos.Y)}
}
