package main

import (
	"encoding/binary"
	"math"

	"github.com/ferryrelay/ferry/client/netcode"
)

// The plane is a square of side units. In one tick a body moves by up to speed units along each axis.
// All coordinates are integers, so that two machines that apply the same inputs get the same result.
const (
	side   = 600
	speed  = 5
	radius = 10
)

// vector is a position on the plane.
type vector struct{ X, Y int32 }

// input is the command of a player for one tick of the host.
type input struct {
	DX, DY int8 // -1, 0 or 1
	Last   bool // the player has no inputs after this; it repeats it
}

func parseInput(b []byte) (in input, err error) {
	_, err = binary.Decode(b, binary.LittleEndian, &in)
	return in, err
}

// move returns the position after one input on an empty plane. The host and the players' predictions
// share it.
func (v vector) move(in input) vector {
	along := func(at int32, by int8) int32 {
		return min(max(at+speed*int32(min(max(by, -1), 1)), 0), side)
	}
	return vector{along(v.X, in.DX), along(v.Y, in.DY)}
}

// distance returns the larger one of the distances along the axes.
func (v vector) distance(w vector) int32 {
	return max(max(v.X-w.X, w.X-v.X), max(v.Y-w.Y, w.Y-v.Y))
}

// spawn returns the position in which body i of n begins: on a grid, apart from all others.
func spawn(i, n int) vector {
	columns := int(math.Ceil(math.Sqrt(float64(n))))
	step := side / columns
	return vector{int32(step/2 + i%columns*step), int32(step/2 + i/columns*step)}
}

// bodyState is what a snapshot says about one body. A snapshot has one for each.
type bodyState struct {
	ID       netcode.NetworkID
	Margin   int8 // by how many ticks the player's inputs come earlier than they must
	Pos      vector
	Finished bool // the host has applied the last input of the player
}

func parseSnapshot(b []byte) ([]bodyState, error) {
	all := make([]bodyState, len(b)/binary.Size(bodyState{}))
	_, err := binary.Decode(b, binary.LittleEndian, all)
	return all, err
}
