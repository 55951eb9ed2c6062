package engine

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"runtime"
	"runtime/debug"
	"sync"
	"time"

	"github.com/ferryrelay/ferry/internal/base/periodic"
	"github.com/ferryrelay/ferry/internal/net/sock"
)

// Run relays until ctx ends, Close is called or a drain is over, and then returns nil; or the
// error of a socket, or of a transport that fails, panics or returns early. No goroutine is left
// then. A second call returns [ErrAlreadyRun].
func (s *Server) Run(parent context.Context) error {
	if !s.ran.CompareAndSwap(false, true) {
		return ErrAlreadyRun
	}
	defer close(s.ended)
	ctx, cancel := context.WithCancelCause(parent)
	defer cancel(nil)
	begin := make(chan struct{})
	var workers, others sync.WaitGroup
	for i, w := range s.workers {
		if w.conn == nil {
			continue // fed by an intake
		}
		workers.Go(func() {
			runtime.LockOSThread()
			defer runtime.UnlockOSThread() // A pinned thread stays locked, and ends here.
			w.prepare()
			w.thread.Store(int32(sock.Thread()))
			defer w.thread.Store(0)
			if s.cfg.Sockets.ReceiveDelay > 0 {
				_ = sock.SetTimerSlack(1) // If the kernel refuses it, the pacer finds that sleeps do not pay.
				defer func() { _ = sock.SetTimerSlack(0) }()
			}
			<-begin
			if err := w.run(); err != nil && !errors.Is(err, net.ErrClosed) {
				cancel(fmt.Errorf("engine: worker %d: %w", i, err))
			} else {
				cancel(nil) // Close was called.
			}
		})
	}
	if s.cfg.Private.Handover != nil {
		if err := s.resume(ctx); err != nil {
			close(s.stopped)
			s.closeSockets()
			close(begin)
			workers.Wait()
			return err
		}
	}
	s.relays.Store(true)
	var records *recordsRelay
	if r := s.cfg.records(); r != nil {
		records = newRecordsRelay(s)
		r.Begin(records)
	}
	s.control.drain.finish = func() { cancel(nil) }
	s.handover.allow(func() { cancel(errHandOver) })
	close(begin)
	if s.cfg.Private.Handover != nil {
		s.resumeFile()
	}
	controlEnded := make(chan struct{})
	go func() {
		defer close(controlEnded)
		defer func() {
			if ctx.Err() == nil {
				cancel(errors.New("engine: a hook ended its goroutine, as runtime.Goexit does"))
			}
		}()
		s.control.run(ctx)
	}()
	close(s.ready)
	others.Go(func() {
		changes, stop := sock.LinkChanges()
		defer stop()
		s.watch(controlEnded, changes)
	})
	if path := s.cfg.fastPath(); path != nil {
		others.Go(func() { s.shared.grace.kernel.run(ctx) })
		others.Go(func() {
			s.runPart(ctx, cancel, "fast path", func() error { return path.Run(ctx, s.control.networkChanged) })
		})
	}
	s.runTransports(ctx, records, &workers, &others, cancel)
	intakes := 0
	for _, all := range s.intakes {
		intakes += len(all)
	}
	s.log.Info("relay runs", "addresses", s.Addrs(), "workers", len(s.workers)-intakes, "intakes", intakes,
		"transports", s.cfg.sessionTransports())

	<-ctx.Done()
	cause := context.Cause(ctx)
	<-controlEnded
	if cause == errHandOver {
		s.serveWhile(&others)
		s.stopWorkers(&workers)
		defer close(s.stopped) // Calls that are queued are still answered.
		return s.leave()
	}
	close(s.stopped) // A transport may wait for a call.
	others.Wait()
	s.closeIntakes()
	s.closeSockets()
	workers.Wait()
	s.closeStateFile()
	s.log.Info("relay stopped")
	if cause == context.Canceled || cause == context.Cause(parent) {
		return nil
	}
	return cause
}

// Close closes the sockets and the state file, whether the server runs or not, and may be called
// again. A running Run returns.
func (s *Server) Close() error {
	if s.stopped == nil { // New has not made it.
		return nil
	}
	if s.ran.CompareAndSwap(false, true) {
		close(s.stopped)
		s.closeStateFile()
		if s.cfg.FastPath != nil {
			s.cfg.fastPath().Close()
		}
	}
	s.closeSockets()
	return nil
}

// Control has ended: serveWhile carries out calls, since a transport may wait for one.
func (s *Server) serveWhile(others *sync.WaitGroup) {
	ended := make(chan struct{})
	go func() {
		others.Wait()
		close(ended)
	}()
	for {
		select {
		case call := <-s.control.calls:
			s.control.serve(call)
		case <-ended:
			return
		}
	}
}

var errReturned = errors.New("Run returned before the end of its context")

// Run ends with an error that names the part if run fails, panics, or returns before ctx ends.
func (s *Server) runPart(ctx context.Context, cancel context.CancelCauseFunc, name string, run func() error) {
	err := errReturned // also if it ends its goroutine
	defer func() {
		if fault := recover(); fault != nil {
			err = fmt.Errorf("panic: %v", fault)
			s.log.Error("a part of the relay panicked", "part", name, "panic", fault, "stack", string(debug.Stack()))
		}
		if ctx.Err() == nil {
			cancel(fmt.Errorf("engine: %s: %w", name, err))
		}
	}()
	err = cmp.Or(run(), errReturned)
}

func (s *Server) runTransports(ctx context.Context, records *recordsRelay, workers, others *sync.WaitGroup,
	cancel context.CancelCauseFunc) {
	for i, t := range s.cfg.Transports {
		for _, in := range s.intakes[i] {
			workers.Go(in.run)
		}
		others.Go(func() {
			name := fmt.Sprintf("transport %s (%T)", t.Name(), t)
			s.runPart(ctx, cancel, name, func() error { return t.Run(ctx, s.intakes[i]) })
		})
	}
	if r := s.cfg.records(); r != nil {
		others.Go(func() {
			s.runPart(ctx, cancel, fmt.Sprintf("records (%T)", r), func() error { return r.Run(ctx, records) })
		})
	}
}

func (s *Server) closeIntakes() {
	for _, all := range s.intakes {
		for _, in := range all {
			in.close()
		}
	}
}

const (
	watchEvery = time.Second
	// linksGap bounds the reads while interfaces come and go.
	linksGap = 250 * time.Millisecond
	// forgetAfter is for how many watchEvery an interface is down that counts as removed.
	forgetAfter = int(time.Minute / watchEvery)
)

// watch runs until control has ended. The changes are those of sock.LinkChanges.
func (s *Server) watch(controlEnded, changes <-chan struct{}) {
	links := sock.WatchLinks(s.Addrs())
	name, down := links.Down()
	next, gap, follows := changes, (<-chan time.Time)(nil), true
	tick := periodic.Next(watchEvery)
	for looks := 0; ; {
		select {
		case <-controlEnded:
			return
		case _, follows = <-next:
			name, down = links.Down()
			if next = nil; follows {
				gap = time.After(linksGap)
			}
		case <-gap:
			next = changes
		case <-tick:
			tick = periodic.Next(watchEvery)
			s.control.guard.watch(s.control.calls)
			if looks++; !down {
				looks = 0
			} else if looks == forgetAfter {
				links = sock.WatchLinks(s.Addrs())
			}
			if !follows || looks == forgetAfter {
				name, down = links.Down()
			}
		}
		switch was := s.control.pause.linkDown.Swap(down); {
		case down && !was:
			s.log.Warn("a network interface is down: for 30 s no allocation expires", "interface", name)
		case was && !down:
			s.log.Info("the network interface is up again, or not needed any more")
		}
	}
}

func (s *Server) sendTotals() (sum sendCounts) {
	sum.add(&s.control.counts.pub)
	for _, w := range s.workers {
		sum.add(&w.counts.pub)
	}
	return sum
}

func (n *sendCounts) add(p *published) {
	n.tried += p.sentDatagrams.Load() + p.sendFailed.Load()
	n.down += p.sendDown.Load()
}

// Control has stopped.
func (s *Server) closeStateFile() {
	file := s.control.stateFile
	if file == nil {
		return
	}
	if err := file.Close(); err != nil {
		s.log.Warn("state file", "error", err)
	}
}

func (s *Server) closeSockets() {
	s.closing.Do(func() {
		for _, w := range s.workers {
			w.stop.Store(true)
		}
		s.closeGroups()
		s.checkSockets.close()
	})
}
