package bench

import (
	"context"
	"os"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"

	"github.com/ferryrelay/ferry/internal/net/sock"
)

// observer reads the counters of processes and machine, and reports progress, in a
// goroutine of its own, so that the generator does not open files. Its fields
// belong to that goroutine until it has ended.
type observer struct {
	cfg                     *Config
	recorder                *recorder
	marks                   []int64 // times to read at, ns of sock.Now
	end                     int64   // of the measured interval, as planned
	readings                []reading
	before                  systemSample // the run
	reported                int64        // seconds
	err                     error
	serverPID, generatorPID int
}

type reading struct {
	arrived      uint64
	server, self processSample
	system       systemSample
}

func newObserver(g *generator, serverPID int) *observer {
	marks := []int64{g.times.measure, g.times.end}
	if g.cfg.Shape == shapeIdle {
		marks = []int64{g.times.idle, g.times.measure}
	}
	return &observer{
		cfg: g.cfg, recorder: g.recorder, marks: marks, end: g.times.end,
		serverPID: serverPID, generatorPID: os.Getpid(), before: readSystem(),
	}
}

// progressInterval is the time between two looks for seconds that are over.
const progressInterval = 100 * time.Millisecond

// Run works until ctx ends, which has to be after the generator. A run that is over before its
// time is read then: a generator that misses nothing ends right after the measured interval.
func (o *observer) Run(ctx context.Context) {
	defer o.reportProgress() // of the seconds that were over after the last look
	var look <-chan time.Time
	if o.cfg.OnSecond != nil {
		ticker := time.NewTicker(progressInterval)
		defer ticker.Stop()
		look = ticker.C
	}
	for {
		var mark <-chan time.Time
		if n := len(o.readings); n < len(o.marks) {
			mark = time.After(time.Duration(o.marks[n] - sock.Now()))
		}
		select {
		case <-mark:
			o.read()
		case <-look:
			o.reportProgress()
		case <-ctx.Done():
			for n := len(o.readings); n < len(o.marks); n++ {
				reached := sock.Now() >= o.marks[n] // on a busy machine, without a look at the mark
				if reached || n > 0 {
					o.read()
				}
				if !reached {
					break
				}
			}
			return
		}
	}
}

func (o *observer) reportProgress() {
	if o.cfg.OnSecond == nil {
		return
	}
	for ; o.reported < o.recorder.live.second.Load(); o.reported++ {
		o.cfg.OnSecond(o.recorder.secondAt(int(o.reported), o.end))
	}
}

func (o *observer) read() {
	r := reading{arrived: o.recorder.live.arrived.Load(), system: readSystem()}
	// without /proc there is no reading of this process
	r.self, _ = readProcess(o.generatorPID)
	if o.serverPID != 0 && o.err == nil {
		r.server, o.err = readProcess(o.serverPID)
	}
	o.readings = append(o.readings, r)
}

func (s *Second) setLatency(h *hdrhistogram.Histogram) {
	s.P50, s.P99, s.Max = quantile(h, 0, 50), quantile(h, 0, 99), quantile(h, 0, 100)
}
