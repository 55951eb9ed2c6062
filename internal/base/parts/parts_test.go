package parts

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"testing"
)

type steps struct {
	mu  sync.Mutex // guards all
	all []string
}

func (s *steps) add(step string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.all = append(s.all, step)
}

// part starts with "+name" and stops with "-name"; it is freed with "free name".
func (s *steps) part(name string) Part {
	ready := make(chan struct{})
	return Part{Name: name, Ready: ready, Free: func() error { s.add("free " + name); return nil }, Run: func(ctx context.Context) error {
		s.add("+" + name)
		close(ready)
		<-ctx.Done()
		s.add("-" + name)
		return nil
	}}
}

var errBroken = errors.New("broken")

// TestGroup: parts start in their order and stop in reverse order, whatever ends the group; those that did
// not start are freed.
func TestGroup(t *testing.T) {
	ends := func(err error) Part {
		return Part{Name: "c", Run: func(context.Context) error { return err }, Ready: make(chan struct{})}
	}
	for name, c := range map[string]struct {
		last Part
		want error
	}{
		"a part fails": {ends(errBroken), errBroken}, "a part ends": {ends(nil), ErrEnded}, "a part is done": {ends(ErrDone), nil},
	} {
		s, g := new(steps), NewGroup()
		for _, p := range []Part{s.part("a"), s.part("b"), c.last, s.part("d")} {
			g.Add(p)
		}
		if err := g.Run(t.Context()); !errors.Is(err, c.want) || err != nil && !strings.HasPrefix(err.Error(), "c: ") {
			t.Errorf("%s: %v", name, err)
		}
		if !slices.Equal(s.all, []string{"+a", "+b", "free d", "-b", "-a"}) {
			t.Errorf("%s: %v", name, s.all)
		}
	}
}

// TestClose: a group that runs is stopped, and one that does not is freed and cannot be run.
func TestClose(t *testing.T) {
	s, g := new(steps), NewGroup()
	g.Add(s.part("a"))
	g.Add(s.part("b"))
	if err := errors.Join(g.Close(), g.Close()); err != nil || g.Begin() || !slices.Equal(s.all, []string{"free b", "free a"}) {
		t.Errorf("%v, %v", err, s.all)
	}

	s, g = new(steps), NewGroup()
	p := s.part("a")
	g.Add(p)
	if !g.Begin() {
		t.Fatal("it cannot be run")
	}
	ran := make(chan error, 1)
	go func() {
		defer g.End()
		ran <- g.Run(context.Background())
	}()
	<-p.Ready
	if err := errors.Join(g.Close(), <-ran); err != nil || !slices.Equal(s.all, []string{"+a", "-a"}) {
		t.Errorf("%v, %v", err, s.all)
	}
}
