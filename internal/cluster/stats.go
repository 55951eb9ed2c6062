package cluster

import (
	"log"
	"log/slog"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

// ServerStats are counts since the server was made, and gauges of now.
type ServerStats struct {
	// Answered counts calls that were served, Refused those that were not, by the
	// name of the verdict.
	Answered uint64
	Refused  map[string]uint64
	// Reserved counts the reservations that the relay made, Repeated the calls
	// that were served from another with the same key.
	Reserved, Repeated uint64
	// Cancelled counts the keys that were cancelled, Ended the reservations that
	// were ended for it, or because they came too late.
	Cancelled, Ended uint64
	// Operated counts what operators had the relay do.
	Operated uint64
	// Running and Remembered are the reservations under way, and the outcomes
	// that are remembered. Forgotten counts those forgotten before their time
	// (at most 32,768 are remembered).
	Running, Remembered int
	Forgotten           uint64
	// Complaints counts what the HTTP server had to say, most of it failed
	// handshakes; ConnsRefused the connections beyond the limits.
	Complaints, ConnsRefused uint64
	// NotAfter is when the certificate in force ends.
	NotAfter time.Time
}

// serverCounts may be changed by any goroutine.
type serverCounts struct {
	answered, reserved, repeated, cancelled, ended, operated atomic.Uint64
	complaints, connsRefused                                 atomic.Uint64

	mu        sync.Mutex // guards byVerdict, whose names are those of verdict.go
	byVerdict map[string]uint64
}

func (c *serverCounts) refused(name string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.byVerdict == nil {
		c.byVerdict = make(map[string]uint64)
	}
	c.byVerdict[name]++
}

// Stats returns the counts. It may be called at any time.
func (s *Server) Stats() ServerStats {
	st := ServerStats{
		Answered: s.counts.answered.Load(), Refused: make(map[string]uint64),
		Reserved: s.counts.reserved.Load(), Repeated: s.counts.repeated.Load(),
		Cancelled: s.counts.cancelled.Load(), Ended: s.counts.ended.Load(),
		Operated: s.counts.operated.Load(), Complaints: s.counts.complaints.Load(), ConnsRefused: s.counts.connsRefused.Load(),
		NotAfter: s.creds.notAfter(),
	}
	st.Running, st.Remembered, st.Forgotten = s.memory.sizes()
	s.counts.mu.Lock()
	defer s.counts.mu.Unlock()
	for name, n := range s.counts.byVerdict {
		st.Refused[name] = n
	}
	return st
}

// complainEvery is how often the log hears of callers that were refused:
// whoever has the wrong certificate needs the reason once, and a stranger must
// not fill the disk.
const complainEvery = time.Second

// complaints hands on what package net/http has to say, at most one line in
// complainEvery.
type complaints struct {
	logger *slog.Logger
	count  *atomic.Uint64

	mu   sync.Mutex // guards last
	last time.Time
}

func newComplaints(logger *slog.Logger, count *atomic.Uint64) *log.Logger {
	return log.New(&complaints{logger: logger, count: count}, "", 0)
}

// Write takes one line.
func (c *complaints) Write(p []byte) (int, error) {
	all := c.count.Add(1)
	c.mu.Lock()
	defer c.mu.Unlock()
	if now := time.Now(); now.Sub(c.last) >= complainEvery {
		c.last = now
		c.logger.Warn("the cluster listener refused a caller", "why", strings.TrimSpace(string(p)), "complaints", all)
	}
	return len(p), nil
}
