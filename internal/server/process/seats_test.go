package process

import (
	"errors"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/ferryrelay/ferry/alloc/api"
	"github.com/ferryrelay/ferry/internal/fleet/rpc"
	"github.com/ferryrelay/ferry/internal/server/config"
	"github.com/ferryrelay/ferry/internal/test/testkit"
	"github.com/ferryrelay/ferry/proto"
)

// TestPlayerSeats: a player that a backend names may not take all seats of a host. The API says which
// setting refuses it, also in a fleet, and other players join.
func TestPlayerSeats(t *testing.T) {
	t.Parallel()
	backend := config.Token{Secret: "a-backend-of-the-tests", Project: "game", Environment: "test", Kind: "server"}
	for name, begin := range map[string]func(t *testing.T) (calls, relay running){
		"serve": func(t *testing.T) (calls, relay running) {
			c := local()
			c.Tokens, c.IdleTimeout = append(c.Tokens, backend), time.Minute
			r := start(t, options(c, Serve))
			return r, r
		},
		"fleet": func(t *testing.T) (calls, relay running) {
			k := newFleet(t)
			o := k.relayOptions(1, "eu")
			o.Config.IdleTimeout = time.Minute
			relay = start(t, o)
			c := k.settings("api", rpc.Request{Role: rpc.RoleAPI})
			c.Tokens = []config.Token{backend}
			calls = start(t, options(c, API))
			testkit.Within(t, time.Minute, "the relay", func() bool { return len(calls.frontEnd.fleet.Nodes()) == 1 })
			return calls, relay
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			calls, relay := begin(t)
			backend, d := calls.caller(string(backend.Secret)), dialler{running: relay}
			a, err := backend.Allocate(t.Context(), api.AllocateRequest{MaxConnections: 8})
			if err != nil {
				t.Fatal(err)
			}
			d.join(t, a, "udp")
			code, err := backend.JoinCode(t.Context(), a.AllocationID)
			if err != nil {
				t.Fatal(err)
			}
			ann := api.JoinRequest{JoinCode: code, Player: "ann"}
			var seats []*player
			for i := range config.Serve().PlayerSeatsPerHost {
				seat, err := backend.JoinFor(t.Context(), ann)
				if err != nil {
					t.Fatalf("seat %d: %v", i, err)
				}
				seats = append(seats, d.join(t, seat, "udp"))
			}
			for _, p := range seats { // On a busy machine the first of them may seem silent.
				_ = p.Send(proto.Ping{ID: p.id, Number: 1}.Append(nil))
			}
			_, err = backend.JoinFor(t.Context(), ann)
			p, ok := errors.AsType[*api.Problem](err)
			if !ok || p.Status != http.StatusTooManyRequests || p.RetryAfter == 0 || !strings.Contains(p.Detail, "player_seats_per_host") {
				t.Errorf("one seat more: %v", err)
			}
			if _, err := backend.JoinFor(t.Context(), api.JoinRequest{JoinCode: code, Player: "bert"}); err != nil {
				t.Errorf("another player: %v", err)
			}
			if got := relay.relay.engine.Stats().Refused["player_joiners_per_host"]; got != 1 {
				t.Errorf("%d are counted", got)
			}
		})
	}
	t.Run("dev", func(t *testing.T) {
		t.Parallel()
		r := start(t, options(local(), Dev))
		a, err := r.caller("").Allocate(t.Context(), api.AllocateRequest{MaxConnections: 8})
		if err != nil {
			t.Fatal(err)
		}
		code, err := r.caller("").JoinCode(t.Context(), a.AllocationID)
		for range 6 {
			if err == nil {
				_, err = r.caller("player:ann").Join(t.Context(), code)
			}
		}
		if err != nil {
			t.Error(err)
		}
	})
}
