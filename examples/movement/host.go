package main

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"maps"
	"math"
	"slices"
	"time"

	"github.com/ferryrelay/ferry/client/netcode"
	"github.com/ferryrelay/ferry/client/netcode/playout"
)

// host is the authority over the plane: it applies all inputs, and decides where each player stands.
type host struct {
	*netcode.Driver
	players int // how many the match waits for
	out     io.Writer

	tick    uint32
	started bool
	bodies  map[netcode.NetworkID]*body
	exact   int // ticks of bodies with an input of the player
	missing int // those without, in which the one before is applied again
	blocked int // moves that would have ended in another body
}

// body is a player on the plane.
type body struct {
	pos      vector
	commands *playout.CommandBuffer
	finished bool // the player has given its last input
}

// run plays a match until all players have left, and returns where they ended.
func (h *host) run(ctx context.Context, rate int) (map[netcode.NetworkID]vector, error) {
	err := runTicks(ctx, h.Driver, rate, func(tick uint32) (over bool, err error) {
		h.tick = tick
		err = h.turn()
		if h.tick%uint32(rate) == 0 {
			h.report()
		}
		return h.started && len(slices.Collect(h.Conns())) == 0, err
	})
	if err != nil {
		return nil, fmt.Errorf("host: %w", err)
	}
	end := make(map[netcode.NetworkID]vector, len(h.bodies))
	for id, b := range h.bodies {
		end[id] = b.pos
	}
	return end, nil
}

// turn is the game's part of one tick.
func (h *host) turn() error {
	for _, ev := range h.Events() {
		h.handle(ev)
	}
	for conn := range h.Conns() {
		if b := h.bodies[conn.NetworkID()]; b != nil {
			for command := range conn.Commands() {
				b.commands.Put(command.Tick, command.Data)
			}
		}
	}
	if !h.started {
		h.start()
		return nil
	}
	for _, id := range h.ids() {
		h.apply(id, h.bodies[id])
	}
	return h.sendSnapshots()
}

func (h *host) handle(ev netcode.Event) {
	switch {
	case ev.State == netcode.StateConnected && h.started:
		ev.Conn.Disconnect(netcode.ReasonServerFull, "the match has started")
	case ev.State == netcode.StateConnected:
		ev.Conn.SetInGame(true)
		h.bodies[ev.NetworkID] = &body{commands: playout.NewCommandBuffer(h.tick, 0)}
	case ev.State == netcode.StateDisconnected:
		if b := h.bodies[ev.NetworkID]; b != nil && !b.finished {
			delete(h.bodies, ev.NetworkID)
		}
	}
}

// start places all bodies when all players are there.
func (h *host) start() {
	if h.started = len(h.bodies) == h.players; h.started {
		for i, id := range h.ids() {
			h.bodies[id].pos = spawn(i, h.players)
		}
	}
}

// apply moves one body by its input for this tick, or by the one before if that is missing. A move that
// ends in another body is not made; no player predicts that, since it does not know where the others
// are now.
func (h *host) apply(id netcode.NetworkID, b *body) {
	command, exact := b.commands.Take(h.tick)
	if exact {
		h.exact++
	} else {
		h.missing++
	}
	in, err := parseInput(command)
	if err != nil {
		return
	}
	b.finished = in.Last
	if to := b.pos.move(in); h.isFree(to, id) {
		b.pos = to
	} else {
		h.blocked++
	}
}

func (h *host) isFree(at vector, id netcode.NetworkID) bool {
	for other, b := range h.bodies {
		if other != id && b.pos.distance(at) < 2*radius {
			return false
		}
	}
	return true
}

// sendSnapshots sends the state of all bodies to all players. A snapshot may be lost; the next one
// replaces it.
func (h *host) sendSnapshots() error {
	var snapshot []byte
	for _, id := range h.ids() {
		b := h.bodies[id]
		margin := int8(min(max(math.Floor(b.commands.Margin()), math.MinInt8), math.MaxInt8))
		var err error
		snapshot, err = binary.Append(snapshot, binary.LittleEndian, bodyState{id, margin, b.pos, b.finished})
		if err != nil {
			return err
		}
	}
	for conn := range h.Conns() {
		if !conn.InGame() {
			continue
		}
		if err := conn.SendSnapshot(h.tick, snapshot); err != nil && !errors.Is(err, netcode.ErrNotAllowed) {
			return err
		}
	}
	return nil
}

// ids returns the ids of all bodies in order.
func (h *host) ids() []netcode.NetworkID { return slices.Sorted(maps.Keys(h.bodies)) }

func (h *host) report() {
	var slowest time.Duration
	for conn := range h.Conns() {
		if st, ok := conn.Stats(); ok {
			slowest = max(slowest, st.RTT)
		}
	}
	fmt.Fprintf(h.out, "tick %d: %d of %d players, %d inputs in time, %d missing, %d moves blocked, slowest round trip %v\n",
		h.tick, len(h.bodies), h.players, h.exact, h.missing, h.blocked, slowest.Round(time.Millisecond))
}
