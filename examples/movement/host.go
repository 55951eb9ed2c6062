package main

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"time"

	"github.com/ferryrelay/ferry/client/netcode"
)

const (
	// maxPending is how many inputs of a player may be without confirmation. At the limit the player
	// stands still: it predicts no further.
	maxPending = 64
	// maxPerTick is how many inputs of one player the host applies in a tick. More than one lets a
	// player catch up after a loss; the limit keeps it from moving faster than others.
	maxPerTick = 2
)

// host is the authority over the plane: it applies all inputs, and decides who stands where.
type host struct {
	*netcode.Driver
	players int // how many the match waits for
	out     io.Writer

	tick    uint32
	started bool
	bodies  map[netcode.NetworkID]*body
	applied int // inputs
	blocked int // moves that would have ended in another body
}

// body is a player on the plane.
type body struct {
	pos      vector
	waiting  []input // inputs from applied+1 on
	applied  uint32
	lastSeen bool // waiting has the last input
}

func (b *body) finished() bool { return b.lastSeen && len(b.waiting) == 0 }

// run plays a match until all players have left, and returns where they ended.
func (h *host) run(ctx context.Context, rate int) (map[netcode.NetworkID]vector, error) {
	err := runTicks(ctx, h.Driver, rate, func() (over bool, err error) {
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
	h.tick++
	for _, ev := range h.Events() {
		h.handle(ev)
	}
	for conn := range h.Conns() {
		if b := h.bodies[conn.NetworkID()]; b != nil {
			for command := range conn.Commands() {
				b.receive(command.Data)
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

func (h *host) handle(ev netcode.ConnectionEvent) {
	switch {
	case ev.State == netcode.StateConnected && h.started:
		ev.Conn.Disconnect(netcode.ReasonServerFull, "the match has started")
	case ev.State == netcode.StateConnected:
		ev.Conn.SetInGame(true)
		h.bodies[ev.NetworkID] = new(body)
	case ev.State == netcode.StateDisconnected:
		if b := h.bodies[ev.NetworkID]; b != nil && !b.finished() {
			delete(h.bodies, ev.NetworkID)
		}
	}
}

// receive takes the inputs of a command that are new. What does not parse is ignored like a lost command.
func (b *body) receive(command []byte) {
	head, inputs, err := parseCommand(command)
	if err != nil {
		return
	}
	next := b.applied + uint32(len(b.waiting)) + 1
	skip := int(next - head.First) // inputs that are here already
	if head.First > next || skip >= len(inputs) || len(b.waiting)+len(inputs)-skip > maxPending {
		return
	}
	b.waiting = append(b.waiting, inputs[skip:]...)
	b.lastSeen = head.Last
}

// start places all bodies when all players are there.
func (h *host) start() {
	if h.started = len(h.bodies) == h.players; h.started {
		for i, id := range h.ids() {
			h.bodies[id].pos = spawn(i, h.players)
		}
	}
}

// apply moves one body by its next inputs. A move that ends in another body is not made; no player
// predicts that, since it does not know where the others are now.
func (h *host) apply(id netcode.NetworkID, b *body) {
	n := min(len(b.waiting), maxPerTick)
	for _, in := range b.waiting[:n] {
		to := b.pos.move(in)
		if h.isFree(to, id) {
			b.pos = to
		} else {
			h.blocked++
		}
	}
	b.waiting = b.waiting[n:]
	b.applied += uint32(n)
	h.applied += n
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
		var err error
		snapshot, err = binary.Append(snapshot, binary.LittleEndian, bodyState{id, b.applied, b.pos, b.finished()})
		if err != nil {
			return err
		}
	}
	for conn := range h.Conns() {
		if !conn.InGame() {
			continue
		}
		if err := conn.SendSnapshot(h.tick, snapshot); err != nil && !errors.Is(err, netcode.ErrNotAllowedInState) {
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
	fmt.Fprintf(h.out, "tick %d: %d of %d players, %d inputs applied, %d moves blocked, slowest round trip %v\n",
		h.tick, len(h.bodies), h.players, h.applied, h.blocked, slowest.Round(time.Millisecond))
}
