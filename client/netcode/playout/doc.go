// Package playout decides when a game uses what has arrived. A [CommandBuffer] gives a
// server one command of a player for each of its ticks. A [Clock] gives a client the server
// time to show, so late that the snapshots before and after it have nearly always arrived.
//
//	server:  for command := range conn.Commands() {
//	             buffer.Put(command.Tick, command.Data)
//	         }
//	         data, exact := buffer.Take(tick)
//
//	client:  if tick, data, ok := conn.Snapshot(); ok {
//	             clock.Snapshot(tick, now)
//	         }
//	         tick, fraction, ok := clock.At(now)
//
// Ticks are uint32 and wrap around: of two ticks, the one ahead by less than 2³¹ is the later.
// Nothing here is safe for concurrent use, no input causes a panic, and in steady state
// nothing allocates. A new connection needs a new CommandBuffer and a new Clock.
package playout
