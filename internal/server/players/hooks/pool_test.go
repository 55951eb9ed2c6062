package hooks

import (
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ferryrelay/ferry/alloc"
	"github.com/ferryrelay/ferry/internal/test/testkit"
)

func of(project string) alloc.AdmissionRequest {
	q := hosting
	q.Caller.Tenant.Project = project
	return q
}

// byProject answers the requests of each project in its own way; the others, and those
// without one, are admitted.
func byProject(handlers map[string]http.HandlerFunc) *program {
	p := new(program)
	p.handler = func(w http.ResponseWriter, r *http.Request) {
		p.mu.Lock()
		body := p.bodies[len(p.bodies)-1]
		p.mu.Unlock()
		var q Request
		if err := json.Unmarshal(body, &q); err != nil {
			panic(err)
		}
		if h, ok := handlers[q.Project]; ok {
			h(w, r)
			return
		}
		respond(200, `{"allow":true}`)(w, r)
	}
	return p
}

// hang answers after a time, or never within the time-out.
func hang(d time.Duration) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		select {
		case <-time.After(d):
		case <-r.Context().Done():
		}
		respond(200, `{"allow":true}`)(w, r)
	}
}

// waitingTransport ends a request with its context, as a network does. The recorder of
// program has no bodies in the order of requests, so one lock covers them.
type waitingTransport struct{ handlers map[string]http.HandlerFunc }

func (t waitingTransport) RoundTrip(r *http.Request) (*http.Response, error) {
	res, err := byProject(t.handlers).RoundTrip(r)
	if r.Context().Err() != nil {
		return nil, r.Context().Err()
	}
	return res, err
}

func simulated(t *testing.T, handlers map[string]http.HandlerFunc, log *testkit.LogBuffer) *Admission {
	t.Helper()
	cfg := AdmissionConfig{URL: "https://hooks.example.org/", Transport: waitingTransport{handlers}}
	if log != nil {
		cfg.Logger = slog.New(slog.NewTextHandler(log, nil))
	}
	a, err := NewAdmission(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(a.Close)
	return a
}

// TestNeighbours checks that calls of a project are admitted at once while others get no
// answer, or late ones, for as many calls as they like.
func TestNeighbours(t *testing.T) {
	for name, c := range map[string]struct {
		slow     time.Duration
		projects int
		wait     time.Duration // of an honest call at most
	}{
		"no answer":                {time.Hour, 1, 0},
		"late answers":             {900 * time.Millisecond, 1, 0},
		"three without an answer":  {time.Hour, 3, DefaultAdmissionTimeout},
		"ten with late answers":    {900 * time.Millisecond, 10, DefaultAdmissionTimeout},
		"sixty without any answer": {time.Hour, 60, DefaultAdmissionTimeout},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				handlers := map[string]http.HandlerFunc{}
				for i := range c.projects {
					handlers[fmt.Sprint("slow", i)] = hang(c.slow)
				}
				a := simulated(t, handlers, nil)
				end := time.Now().Add(30 * time.Second)
				var all sync.WaitGroup
				for project := range handlers {
					for range 300 / c.projects {
						all.Go(func() {
							for time.Now().Before(end) {
								if a.Admit(t.Context(), of(project)) != nil {
									time.Sleep(100 * time.Millisecond)
								}
							}
						})
					}
				}
				time.Sleep(10 * time.Millisecond)
				refused, calls, longest := 0, 0, time.Duration(0)
				for ; time.Now().Before(end); calls++ {
					began := time.Now()
					if err := a.Admit(t.Context(), of("honest")); err != nil {
						refused++
					}
					longest = max(longest, time.Since(began))
					time.Sleep(400 * time.Millisecond)
				}
				all.Wait()
				if refused > 0 || longest > c.wait {
					t.Errorf("%d of %d refused, up to %v waited", refused, calls, longest)
				}
				if n := len(a.pool.projects); a.pool.used != 0 || len(a.pool.waiting) != 0 || n > c.projects {
					t.Errorf("%d slots are used, %d calls wait, %d projects are known", a.pool.used, len(a.pool.waiting), n)
				}
			})
		})
	}
}

// TestAlone checks that a project without neighbours has all of the pool but the quarter
// that is kept for them.
func TestAlone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := simulated(t, map[string]http.HandlerFunc{"game": hang(100 * time.Millisecond)}, nil)
		var all sync.WaitGroup
		for range 100 {
			all.Go(func() {
				if err := a.Admit(t.Context(), of("game")); err != nil {
					t.Error(err)
				}
			})
		}
		synctest.Wait()
		a.pool.mu.Lock()
		used, waiting := a.pool.used, len(a.pool.waiting)
		a.pool.mu.Unlock()
		if used != 48 || waiting != 52 {
			t.Errorf("%d slots are used, %d calls wait", used, waiting)
		}
		all.Wait()
	})
}

// TestProgramGone checks that all projects stop calling a program that answers none of them:
// each after its first failure, once three have failed as often as the breaker allows.
func TestProgramGone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		handlers := map[string]http.HandlerFunc{}
		for i := range 10 {
			handlers[fmt.Sprint("game", i)] = respond(500, "")
		}
		var log testkit.LogBuffer
		a := simulated(t, handlers, &log)
		for i := range 10 {
			for range 20 {
				_ = a.Admit(t.Context(), of(fmt.Sprint("game", i)))
			}
		}
		if st := a.Stats(); st.Failed != 3*breakerFailures+7 || st.Resting != 10 {
			t.Errorf("%+v", st)
		}
		if n := strings.Count(log.String(), "does not answer"); n != 1 {
			t.Errorf("%d lines:\n%s", n, &log)
		}
		// An answer to anybody makes the program trusted again.
		if err := a.Admit(t.Context(), of("lucky")); err != nil {
			t.Fatal(err)
		}
		handlers["unlucky"] = respond(500, "")
		_ = a.Admit(t.Context(), of("unlucky"))
		if st := a.Stats(); st.Resting != 10 {
			t.Errorf("one failure, when the program answers others: %+v", st)
		}
		time.Sleep(2 * forgetProject)
		if st := a.Stats(); st.Resting != 0 || len(a.pool.projects) != 0 {
			t.Errorf("later: %+v, %d projects are known", st, len(a.pool.projects))
		}
	})
}

// TestManyProjects checks that the failures of only so many projects are remembered.
func TestManyProjects(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		handlers := map[string]http.HandlerFunc{}
		a := simulated(t, handlers, nil)
		for i := range 3 * maxProjects {
			project := fmt.Sprint("game", i)
			handlers[project] = respond(500, "")
			_ = a.Admit(t.Context(), of(project))
		}
		if n := len(a.pool.projects); n != maxProjects {
			t.Errorf("%d projects are known", n)
		}
	})
}

// TestNoConnection checks that requests without a connection open the breaker of all projects,
// and that a hanging one does not.
func TestNoConnection(t *testing.T) {
	p := newProgram(t, respond(200, `{"allow":true}`))
	var log testkit.LogBuffer
	a := p.admission(t, func(cfg *AdmissionConfig) { cfg.Logger = slog.New(slog.NewTextHandler(&log, nil)) })
	p.Close()
	for i := range 20 {
		if err := a.Admit(t.Context(), of(fmt.Sprint("game", i))); !errors.Is(err, alloc.ErrAdmissionUnavailable) {
			t.Fatal(err)
		}
	}
	if st := a.Stats(); st != (AdmissionStats{Failed: breakerFailures, Skipped: 20 - breakerFailures, Resting: 1}) {
		t.Errorf("%+v", st)
	}
	if text := log.String(); strings.Count(text, "no connection to the program") != 1 || strings.Contains(text, "does not answer") {
		t.Errorf("log:\n%s", text)
	}
	if n := len(a.pool.projects); n != 0 {
		t.Errorf("%d projects are known", n)
	}
}
