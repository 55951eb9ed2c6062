package engine

import (
	"context"
	"encoding/json"
	"log/slog"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ferryrelay/ferry/proto"
)

// syncWriter is where a logger writes while a test reads.
type syncWriter struct {
	mu  sync.Mutex
	all strings.Builder
}

func (w *syncWriter) Write(p []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.all.Write(p)
}

// lines returns the lines about faults.
func (w *syncWriter) lines() (faults []map[string]any) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for line := range strings.Lines(w.all.String()) {
		var fields map[string]any
		if json.Unmarshal([]byte(line), &fields) == nil && fields["fault"] != nil {
			faults = append(faults, fields)
		}
	}
	return faults
}

// TestFault: a fault of ours on one datagram of a batch costs that datagram. It
// is counted, the others are handled, and the log gets a line a minute.
func TestFault(t *testing.T) {
	var log syncWriter
	s, err := New(Config{Workers: 1, Unlimited: true, Logger: slog.New(slog.NewJSONHandler(&log, nil))}, testSealer(t))
	if err != nil {
		t.Fatal(err)
	}
	s.shared.probe.block = nil // so that a probe panics
	var ahead atomic.Int64
	clock := s.shared.clock
	s.shared.clock = func() int64 { return clock() + ahead.Load() }

	probe := append([]byte(probeMagic), make([]byte, probeLen-len(probeMagic))...)
	faulty, conns := dialed(t, s), make([]*net.UDPConn, 6)
	for i := range conns { // before the relay runs, so that all are one batch
		conns[i] = dialed(t, s)
		faulty.Write(probe)
		conns[i].Write(proto.Ping{ID: proto.AllocationID{byte(i)}}.Append(nil))
	}
	faulty.Write(probe)
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- s.Run(ctx) }()
	for i, conn := range conns {
		answered(t, conn, i)
	}
	wait := func(what string, cond func() bool) {
		t.Helper()
		for end := time.Now().Add(15 * time.Second); !cond(); time.Sleep(time.Millisecond) {
			if time.Now().After(end) {
				t.Fatal("never happened: ", what)
			}
		}
	}
	panics := func(n uint64) func() bool {
		return func() bool { return s.Stats().Outcomes[DropPanic] == n }
	}
	wait("each probe is counted", panics(7))
	wait("six of thirteen are answered", func() bool { // the counts of a batch are not published at once
		st := s.Stats()
		return st.Outcomes[OutErrorMismatch] == 6 && st.Received == 13
	})
	if lines := log.lines(); len(lines) != 1 || lines[0]["head"] != "4645525259505242"+strings.Repeat("0", 2*(probeLen-8)) {
		t.Errorf("the log has %v", lines)
	}
	ahead.Store(faultLogMillis)
	faulty.Write(probe)
	faulty.Write(probe)
	wait("two more are counted", panics(9))
	if lines := log.lines(); len(lines) != 2 {
		t.Errorf("a minute later the log has %d lines, want 2", len(lines))
	}
	cancel()
	if err := <-ended; err != nil {
		t.Error(err)
	}
}

// dialed returns a client's socket.
func dialed(t *testing.T, s *Server) *net.UDPConn {
	t.Helper()
	conn, err := net.DialUDP("udp", nil, net.UDPAddrFromAddrPort(s.Addr()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	return conn
}

// answered checks that the PING number i earned its ERROR 3.
func answered(t *testing.T, conn *net.UDPConn, i int) {
	t.Helper()
	buf := make([]byte, 100)
	conn.SetReadDeadline(time.Now().Add(15 * time.Second))
	n, err := conn.Read(buf)
	if err != nil {
		t.Fatal(err)
	}
	if e, err := proto.ParseError(buf[:n]); err != nil || e.Code != proto.ErrorMismatch || e.ID != (proto.AllocationID{byte(i)}) {
		t.Errorf("PING %d earned %x", i, buf[:n])
	}
}
