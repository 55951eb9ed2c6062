//go:build lab && linux

package lab

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ferryrelay/ferry/alloc/api"
	"github.com/ferryrelay/ferry/internal/server/players/hooks"
	"github.com/ferryrelay/ferry/internal/test/testkit"
)

const (
	admissionAddr = "127.0.0.1:8088" // in the relay's namespace
	// honestAdmissions is the number of honest calls a second.
	honestAdmissions = 20
)

// admissionProgram is the operator's program, which answers the calls of one project late.
type admissionProgram struct {
	slowProject string
	slow        time.Duration
	late        atomic.Int64 // calls of slowProject
}

func (p *admissionProgram) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	var q hooks.Request
	if err := json.NewDecoder(r.Body).Decode(&q); err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	if q.Project == p.slowProject {
		p.late.Add(1)
		pause(r.Context(), p.slow)
	}
	_, _ = io.WriteString(w, `{"allow": true}`)
}

func (p *admissionProgram) serve(l *lab) {
	l.Helper()
	var listener net.Listener
	err := l.net.Relay.Do(func() (err error) {
		listener, err = net.Listen("tcp", admissionAddr)
		return err
	})
	if err != nil {
		l.Fatal(err)
	}
	server := &http.Server{Handler: p}
	go func() { _ = server.Serve(listener) }()
	l.Cleanup(func() { server.Close() })
}

// TestAttackAdmission verifies that players of one project, whose calls the admission
// program answers late or never, refuse no call of another project.
func TestAttackAdmission(t *testing.T) {
	for _, a := range []struct {
		name    string
		slow    time.Duration // above the time-out, no answer comes
		players int
	}{
		{"no answer", time.Minute, 30},
		{"late answers", 900 * time.Millisecond, 150},
	} {
		t.Run(a.name, func(t *testing.T) {
			players := map[string]string{}
			for i := range a.players {
				players[fmt.Sprintf("attacker-%d", i)] = "attacker"
			}
			l := newLab(t, func(c *RelayConfig) {
				c.Flags = []string{"--admission-url", "http://" + admissionAddr, "--player-per-minute", "600"}
				c.extend("player", players, "")
			})
			program := &admissionProgram{slowProject: "attacker", slow: a.slow}
			program.serve(l)
			for name := range players {
				c := l.as(name, firstAttacker, "")
				l.background(func(ctx context.Context) {
					for ctx.Err() == nil {
						if _, err := c.Allocate(ctx, api.AllocateRequest{MaxConnections: 1}); err != nil {
							pause(ctx, 200*time.Millisecond)
						}
					}
				})
			}
			testkit.Eventually(t, "the program gets the calls of the attacker", func() bool { return program.late.Load() >= 30 })
			honest := l.relay.API(l.net.Clients, 0)
			var calls, refused int
			var took []time.Duration
			every := time.NewTicker(time.Second / honestAdmissions)
			defer every.Stop()
			for end := time.Now().Add(*attackDuration); time.Now().Before(end); <-every.C {
				began := time.Now()
				switch _, err := honest.Allocate(t.Context(), api.AllocateRequest{MaxConnections: 1}); {
				case err == nil:
					took = append(took, time.Since(began))
				case statusOf(err) == http.StatusServiceUnavailable:
					refused++
				default:
					t.Fatal(err)
				}
				calls++
			}
			slices.Sort(took)
			r := attackResult{
				attack: "another project's admission: " + a.name, rate: fmt.Sprintf("%d players", a.players),
				honest: fmt.Sprintf("%d of %d calls refused", refused, calls), damage: refused > 0,
				state: fmt.Sprintf("%d of its calls reached the program", program.late.Load()),
			}
			if len(took) > 0 {
				r.p99 = took[len(took)*99/100]
			}
			recordAttack(t, r)
		})
	}
}
