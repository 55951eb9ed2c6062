package main

import (
	"errors"
	"io"
	"os"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
)

// TestSignals: each signal does more than the one before.
func TestSignals(t *testing.T) {
	for _, c := range []struct {
		name  string
		drain error // of a drain that is wanted
		wants bool
		count int
		did   []string
		says  string
	}{
		{"no drain", nil, false, 1, []string{"end"}, ""},
		{"no drain, twice", nil, false, 2, []string{"end", "exit"}, "another signal"},
		{"drain", nil, true, 1, []string{"drain"}, ""},
		{"drain, twice", nil, true, 2, []string{"drain", "end"}, ""},
		{"drain, three times", nil, true, 3, []string{"drain", "end", "exit"}, "another signal"},
		{"no drain is possible", errors.New("the relay has ended"), true, 1, []string{"drain", "end"}, "the relay has ended"},
	} {
		var mu sync.Mutex
		var did []string
		var said strings.Builder
		happened := make(chan struct{}, 10)
		do := func(what string) {
			mu.Lock()
			did = append(did, what)
			mu.Unlock()
			happened <- struct{}{}
		}
		s := new(signals)
		if c.wants {
			s.onFirst(func() error { do("drain"); return c.drain })
		}
		received := make(chan os.Signal)
		var obeying sync.WaitGroup
		obeying.Go(func() {
			s.obey(received, func() { do("end") }, &said, func() { do("exit") })
		})
		for i := range c.count {
			received <- os.Interrupt
			if i < len(c.did) {
				<-happened
			}
		}
		for range len(c.did) - c.count {
			<-happened
		}
		close(received)
		obeying.Wait()
		if !slices.Equal(did, c.did) || !strings.Contains(said.String(), c.says) {
			t.Errorf("%s: did %q, want %q; said %q", c.name, did, c.did, said.String())
		}
	}
	s := new(signals)
	s.onFirst(func() error { return nil })()
	if s.take() != nil {
		t.Error("a command that has ended is still asked")
	}
}

// TestHangUp: SIGHUP reads the settings again where there are any, and is no step
// towards the end then; elsewhere it is a signal like the others.
func TestHangUp(t *testing.T) {
	did := make(chan string, 10)
	s, received := new(signals), make(chan os.Signal)
	undo := s.onReload(func() { did <- "reload" })
	var obeying sync.WaitGroup
	obeying.Go(func() {
		s.obey(received, func() { did <- "end" }, io.Discard, func() { did <- "exit" })
	})
	for i, step := range []struct {
		signal os.Signal
		want   string
	}{{syscall.SIGHUP, "reload"}, {syscall.SIGHUP, "reload"}, {os.Interrupt, "end"}, {syscall.SIGHUP, "exit"}} {
		if i == 3 {
			undo()
		}
		received <- step.signal
		if got := <-did; got != step.want {
			t.Errorf("signal %d, %v: %s, want %s", i, step.signal, got, step.want)
		}
	}
	close(received)
	obeying.Wait()
}
