package main

import (
	"encoding/binary"
	"fmt"
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

// input is what a player wants in one tick: -1, 0 or 1 along each axis.
type input struct{ DX, DY int8 }

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

// A command is a commandHeader and the inputs from First on that the host has not confirmed. A command
// may be lost; the next one has the same inputs and those that came after.
type commandHeader struct {
	First uint32 // number of the first input; inputs count from 1
	Last  bool   // the player has no inputs after these
}

func appendCommand(b []byte, h commandHeader, inputs []input) ([]byte, error) {
	b, err := binary.Append(b, binary.LittleEndian, h)
	if err != nil {
		return nil, err
	}
	return binary.Append(b, binary.LittleEndian, inputs)
}

func parseCommand(b []byte) (h commandHeader, inputs []input, err error) {
	n, err := binary.Decode(b, binary.LittleEndian, &h)
	if err != nil {
		return h, nil, fmt.Errorf("command: %w", err)
	}
	inputs = make([]input, (len(b)-n)/binary.Size(input{}))
	_, err = binary.Decode(b[n:], binary.LittleEndian, inputs)
	return h, inputs, err
}

// bodyState is what a snapshot says about one body. A snapshot has one for each.
type bodyState struct {
	ID       netcode.NetworkID
	Applied  uint32 // number of the player's newest input that the host has applied
	Pos      vector
	Finished bool // the host has applied all inputs of the player
}

func parseSnapshot(b []byte) ([]bodyState, error) {
	all := make([]bodyState, len(b)/binary.Size(bodyState{}))
	_, err := binary.Decode(b, binary.LittleEndian, all)
	return all, err
}
