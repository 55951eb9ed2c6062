package hooks

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/sony/gobreaker/v2"
)

const (
	// A circuit breaker opens after breakerFailures consecutive failures. It stays open for
	// breakerTimeout, and then lets one request through.
	breakerFailures = 5
	breakerTimeout  = 5 * time.Second
	// suspectProjects is how many open breakers of projects make the program suspect: a
	// breaker then opens after one failure, as long as no project has a valid response.
	suspectProjects = 3
	// maxProjects bounds the projects whose failures are remembered, and forgetProject is
	// for how long that of an idle one is.
	maxProjects   = 1024
	forgetProject = time.Minute
)

// errNotCounted is reported to a circuit breaker for a request that says nothing about the
// program: its caller cancelled it, it had no slot, or another breaker counts it.
var errNotCounted = errors.New("hooks: not counted")

type breaker = gobreaker.TwoStepCircuitBreaker[struct{}]

// pool shares the concurrent requests among projects, and has a circuit breaker for each.
// Any goroutine may use it.
type pool struct {
	size   int
	log    *slog.Logger
	effect string // of an open breaker on players

	mu         sync.Mutex // guards what follows, and the fields of projects
	used       int
	projects   map[string]*project
	waiting    []*turn   // the oldest first
	lastAnswer time.Time // of any project
	lastLog    time.Time // of an open breaker
}

type project struct {
	name    string
	calls   int // that hold this record
	slots   int // of them, with a slot
	used    time.Time
	breaker *breaker
	suspect bool // the next failure opens the breaker
	logged  bool // the log says that the breaker is open
}

type turn struct {
	project *project
	granted chan struct{} // closed with the lock held
}

func newPool(size int, failOpen bool, log *slog.Logger) *pool {
	effect := map[bool]string{false: "players are refused", true: "players are admitted without it"}[failOpen]
	return &pool{size: size, log: log, effect: effect, projects: make(map[string]*project)}
}

// quarter is the part of the pool that only projects with fewer slots than that may use, so
// that no project, however slow its answers are, makes another one wait.
func (p *pool) quarter() int { return max(p.size/4, 1) }

func (p *pool) enter(name string) *project {
	p.mu.Lock()
	defer p.mu.Unlock()
	q := p.projects[name]
	if q == nil {
		if len(p.projects) >= maxProjects {
			p.forgetIdle()
		}
		q = &project{name: name}
		q.breaker = gobreaker.NewTwoStepCircuitBreaker[struct{}](gobreaker.Settings{
			Timeout: breakerTimeout,
			// The pool's lock is held: report.
			ReadyToTrip: func(c gobreaker.Counts) bool { return c.ConsecutiveFailures >= breakerFailures || q.suspect },
			IsExcluded:  isNotCounted,
		})
		p.projects[name] = q
	}
	q.calls++
	q.used = time.Now()
	return q
}

func isNotCounted(err error) bool { return errors.Is(err, errNotCounted) }

func (p *pool) leave(q *project) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if q.calls--; q.calls == 0 && q.breaker.State() == gobreaker.StateClosed && q.breaker.Counts().ConsecutiveFailures == 0 {
		delete(p.projects, q.name)
	}
}

// forgetIdle is called with the lock held, and does nothing if all projects have calls.
func (p *pool) forgetIdle() {
	var oldest *project
	for _, q := range p.projects {
		if q.calls == 0 && (oldest == nil || q.used.Before(oldest.used)) {
			oldest = q
		}
	}
	if oldest != nil {
		delete(p.projects, oldest.name)
	}
}

func (p *pool) acquire(ctx context.Context, q *project) error {
	p.mu.Lock()
	if p.mayTake(q) {
		p.take(q)
		p.mu.Unlock()
		return nil
	}
	t := &turn{q, make(chan struct{})}
	p.waiting = append(p.waiting, t)
	p.mu.Unlock()
	select {
	case <-t.granted:
		return nil
	case <-ctx.Done():
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	i := slices.Index(p.waiting, t)
	if i < 0 {
		return nil // It was granted at the same time.
	}
	p.waiting = slices.Delete(p.waiting, i, i+1)
	return ctx.Err()
}

// mayTake and take are called with the lock held.
func (p *pool) mayTake(q *project) bool {
	free := p.size - p.used
	return free > p.quarter() || free > 0 && q.slots < p.quarter()
}

func (p *pool) take(q *project) {
	p.used++
	q.slots++
}

// release returns the slot of a call, and grants free ones to those that wait: the next is
// the oldest of the project with the fewest.
func (p *pool) release(q *project) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.used--
	q.slots--
	for {
		next := -1
		for i, t := range p.waiting {
			if p.mayTake(t.project) && (next < 0 || t.project.slots < p.waiting[next].project.slots) {
				next = i
			}
		}
		if next < 0 {
			return
		}
		t := p.waiting[next]
		p.waiting = slices.Delete(p.waiting, next, next+1)
		p.take(t.project)
		close(t.granted)
	}
}

// report counts a failure if err is not nil.
func (p *pool) report(q *project, done func(error), err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	now := time.Now()
	switch {
	case isNotCounted(err):
		done(err)
		return
	case err == nil:
		p.lastAnswer = now
	default:
		q.suspect = now.Sub(p.lastAnswer) > breakerTimeout && p.open(now) >= suspectProjects
	}
	before := q.breaker.State()
	done(err)
	switch after := q.breaker.State(); {
	case before == gobreaker.StateClosed && after == gobreaker.StateOpen:
		if q.logged = now.Sub(p.lastLog) >= time.Minute; q.logged {
			p.lastLog = now
			p.log.Error("admission: the program at admission_url does not answer: "+p.effect, "project", q.name, "projects",
				p.open(now), "error", err)
		}
	case before != gobreaker.StateClosed && after == gobreaker.StateClosed:
		if q.logged {
			p.log.Info("admission: the program at admission_url answers again", "project", q.name)
		}
		q.logged = false
	}
}

// open also forgets projects that have had no call for some time. It is called with the lock
// held.
func (p *pool) open(now time.Time) (n int) {
	for name, q := range p.projects {
		switch {
		case q.calls == 0 && now.Sub(q.used) > forgetProject:
			delete(p.projects, name)
		case q.breaker.State() != gobreaker.StateClosed:
			n++
		}
	}
	return n
}

func (p *pool) openBreakers() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.open(time.Now())
}
