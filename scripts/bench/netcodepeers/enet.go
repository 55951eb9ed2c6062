package main

// #cgo LDFLAGS: -lenet
// #cgo CFLAGS: -O2 -D_GNU_SOURCE
// #include "play.h"
import "C"

import (
	"fmt"
	"runtime"
)

// playENet plays a round with ENet.
func playENet(g game) (played, error) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	var p C.struct_played
	if step := C.play(C.int(g.players), C.int(g.ticks), C.int(g.command), C.int(g.snapshot), &p); step != 0 {
		return played{}, fmt.Errorf("enet: step %d failed", step)
	}
	return played{
		server: int64(p.server), all: int64(p.all), heap: int64(p.heap),
		commands: int64(p.commands), snapshots: int64(p.snapshots),
	}, nil
}
