package main

import (
	"context"
	"os"
	"runtime"
	"runtime/debug"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"

	"github.com/quic-go/quic-go"
	"github.com/quic-go/quic-go/qlog"
	"github.com/quic-go/quic-go/qlogwriter"
)

// wireCounts count what quic-go reports of all connections by its trace, which tells what its
// queues lost.
type wireCounts struct {
	frames  atomic.Uint64 // DATAGRAM frames in received packets
	queue   atomic.Uint64 // of these, dropped: the queue of the connection had 128
	packets atomic.Uint64 // packets dropped: 256 of the connection waited
	in, out atomic.Uint64 // packets
}

func (c *wireCounts) tracer(context.Context, bool, quic.ConnectionID) qlogwriter.Trace { return c }

// AddProducer implements [qlogwriter.Trace].
func (c *wireCounts) AddProducer() qlogwriter.Recorder { return c }

// SupportsSchemas implements [qlogwriter.Trace].
func (c *wireCounts) SupportsSchemas(string) bool { return false }

// Close implements [qlogwriter.Recorder].
func (c *wireCounts) Close() error { return nil }

// RecordEvent implements [qlogwriter.Recorder].
func (c *wireCounts) RecordEvent(e qlogwriter.Event) {
	switch e := e.(type) {
	case qlog.PacketSent:
		c.out.Add(1)
	case qlog.PacketReceived:
		c.in.Add(1)
		for _, f := range e.Frames {
			if _, ok := f.Frame.(*qlog.DatagramFrame); ok {
				c.frames.Add(1)
			}
		}
	case qlog.DatagramDropped:
		c.queue.Add(1)
	case qlog.PacketDropped:
		if e.Trigger == qlog.PacketDropDOSPrevention {
			c.packets.Add(1)
		}
	}
}

// figures are counters of the relay's process, and what it uses.
type figures struct {
	CPU      int64 // ns, user and system
	Relayed  uint64
	Received uint64 // by the transport
	Busy     uint64
	Oldest   uint64
	Handed   uint64
	Refused  uint64
	Longest  int64 // ns in one SendDatagram
	Feed     uint64
	Frames   uint64
	Queue    uint64
	Packets  uint64
	In, Out  uint64 // packets

	Goroutines int
	Heap       uint64 // bytes: objects
	Stacks     uint64 // bytes
	RSS        uint64 // bytes
}

func processorTime() int64 {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		panic(err) // It does not fail for this process.
	}
	return u.Utime.Nano() + u.Stime.Nano()
}

// memory collects garbage, returns free memory to the system, and reads what is in use.
func (f *figures) memory() {
	runtime.GC()
	debug.FreeOSMemory()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	f.Goroutines, f.Heap, f.Stacks = runtime.NumGoroutine(), m.HeapAlloc, m.StackInuse
	text, err := os.ReadFile("/proc/self/statm")
	if err != nil {
		return
	}
	pages, _ := strconv.ParseUint(strings.Fields(string(text))[1], 10, 64)
	f.RSS = pages * uint64(os.Getpagesize())
}
