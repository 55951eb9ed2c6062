package app

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ferryrelay/ferry/alloc"
	"github.com/ferryrelay/ferry/engine"
	"github.com/ferryrelay/ferry/internal/config"
	"github.com/ferryrelay/ferry/internal/quota"
)

// idleRelay is a relay of which no project has anything.
// idle is a relay without allocations.
type idleRelay struct{}

func (idleRelay) Usage(context.Context, ...string) ([]engine.Usage, error) { return nil, nil }

// TestBandwidthQuota: a project that relays more than it may gets nothing new
// until it relays less; its environments count together, and others do not.
func TestBandwidthQuota(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := config.Dev()
		c.Quotas = []config.Quota{{Project: "game", BytesPerSecond: 1000}}
		p, err := newPlayers(&c, Serve, nil)
		if err != nil {
			t.Fatal(err)
		}
		p.relay = idleRelay{}
		var all atomic.Pointer[[]engine.Usage]
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() {
			defer close(done)
			p.rates.run(ctx, p.hasBandwidthQuotas, func(context.Context, ...string) ([]engine.Usage, error) {
				if now := all.Load(); now != nil {
					return *now, nil
				}
				return nil, alloc.ErrUnavailable
			})
		}()
		relayed := func(production, test, other uint64) {
			all.Store(&[]engine.Usage{
				{Name: alloc.Tenant{Project: "game", Environment: "production"}, Bytes: production},
				{Name: alloc.Tenant{Project: "game", Environment: "test"}, Bytes: test},
				{Name: alloc.Tenant{Project: "other"}, Bytes: other},
				{Others: true, Bytes: other},
			})
			time.Sleep(leaseEvery)
			synctest.Wait()
		}
		admitted := func(want bool) {
			t.Helper()
			err := p.policy.Load().guard.Admit(ctx, alloc.AdmissionRequest{Caller: alloc.Caller{Tenant: alloc.Tenant{Project: "game"}}})
			if want != (err == nil) || !want && !errors.Is(err, alloc.ErrProjectQuota) {
				t.Errorf("Admit: %v at %d bytes per second", err, p.rates.of("game"))
			}
		}
		time.Sleep(leaseEvery)
		admitted(true)
		relayed(1<<30, 1<<30, 0) // before anybody looked
		admitted(true)
		relayed(1<<30+999, 1<<30+1000, 1<<40)
		admitted(true)
		relayed(1<<30+1999, 1<<30+2000, 1<<40)
		admitted(false)
		relayed(1<<30+1999, 1<<30+2000, 1<<41)
		admitted(true)
		cancel()
		<-done
	})
}

// TestReportedBandwidth: what a relay of a fleet reports of it, and takes back.
func TestReportedBandwidth(t *testing.T) {
	t.Parallel()
	all := []engine.Usage{{Name: alloc.Tenant{Project: "game"}, Allocations: 1, Players: 1}}
	uses, told := changedLeases(nil, all, map[string]int64{"game": 5000, "gone": 0})
	if len(uses) != 3 || told[scopeBytes+"game"] != 5000 {
		t.Errorf("%v, %v", uses, told)
	}
	uses, told = changedLeases(told, nil, nil)
	if len(uses) != 3 || len(told) != 0 {
		t.Errorf("%v, %v", uses, told)
	}
	if (quota.Limits{BytesPerSecond: 1}) == (quota.Limits{}) {
		t.Error("a limit of bandwidth is none")
	}
}
