package main

import (
	"fmt"
	"io"
	"os"
	"sync"
	"syscall"
)

// signals are what SIGINT and SIGTERM do: each one more than the one before.
// The first begins a drain if the command wants that, the next ends the command
// in order, and the last one ends the process at once. SIGHUP lets a command that
// has settings read them again; another one it ends, as a terminal that goes
// away should.
type signals struct {
	mu     sync.Mutex
	first  func() error // nil: no drain
	reload func()       // nil: SIGHUP is one like the others
}

// onReload lets SIGHUP do something else than end the command, until undo is
// called.
func (s *signals) onReload(do func()) (undo func()) {
	set := func(do func()) {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.reload = do
	}
	set(do)
	return func() { set(nil) }
}

// onHangUp returns what SIGHUP is to do, nil if it is one like the others.
func (s *signals) onHangUp() func() {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.reload
}

// onFirst lets the first signal do something else than end the command, until
// undo is called. An error ends the command after all.
func (s *signals) onFirst(do func() error) (undo func()) {
	s.set(do)
	return func() { s.set(nil) }
}

func (s *signals) set(do func() error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.first = do
}

// take returns what the first signal is to do, once.
func (s *signals) take() (do func() error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	do, s.first = s.first, nil
	return do
}

// obey does what signals ask for, until the channel is closed.
func (s *signals) obey(received <-chan os.Signal, end func(), stderr io.Writer, exit func()) {
	ending := false
	for sig := range received {
		if reload := s.onHangUp(); sig == syscall.SIGHUP && reload != nil {
			go reload() // The next signal is heard whatever happens.
			continue
		}
		drain := s.take()
		switch {
		case ending:
			fmt.Fprintln(stderr, "ferry: another signal, exiting at once")
			exit()
		case drain == nil:
			ending = true
			end()
		default:
			// In the background, so that the next signal is heard whatever happens.
			go func() {
				if err := drain(); err != nil {
					fmt.Fprintf(stderr, "ferry: no drain, so this is the end: %v\n", err)
					end()
				}
			}()
		}
	}
}
