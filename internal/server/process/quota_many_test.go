package process

import (
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/ferryrelay/ferry/alloc"
	"github.com/ferryrelay/ferry/internal/server/config"
	"github.com/ferryrelay/ferry/internal/server/players/quota"
)

// crowd reserves one allocation for each of n tenants, which stay alive for the bind timeout.
func crowd(t testing.TB, r running, n int) {
	t.Helper()
	for i := range n {
		_, err := r.relay.engine.ReserveHost(t.Context(), alloc.HostRequest{
			Caller: alloc.Caller{Tenant: alloc.Tenant{Project: fmt.Sprintf("crowd-%d", i)}}, MaxConnections: 1,
		})
		if err != nil {
			t.Fatal(err)
		}
	}
}

// TestQuotaHolds: a quota holds for all environments of a project together, for 200
// callers at once, and beyond the tenants that have counters of their own.
func TestQuotaHolds(t *testing.T) {
	t.Parallel()
	for _, tenants := range []int{0, 1100} {
		o := options(local(), Serve)
		o.Config.Quotas = []config.Quota{{Project: "game", Allocations: 50}}
		r := start(t, o)
		crowd(t, r, tenants)
		service := r.api.service
		var admitted, refused atomic.Int64
		var all sync.WaitGroup
		begin := make(chan struct{})
		for i := range 200 {
			all.Go(func() {
				<-begin
				_, err := service.Allocate(t.Context(), alloc.Caller{
					Tenant: alloc.Tenant{Project: "game", Environment: fmt.Sprint(i % 3)}, Server: true,
				}, 1, "")
				switch {
				case err == nil:
					admitted.Add(1)
				case errors.Is(err, alloc.ErrProjectQuota):
					refused.Add(1)
				default:
					t.Error(err)
				}
			})
		}
		close(begin)
		all.Wait()
		if admitted.Load() != 50 || refused.Load() != 150 {
			t.Errorf("after %d tenants: %d admitted, %d refused; the quota is 50", tenants, admitted.Load(), refused.Load())
		}
	}
}

// TestQuotaHoldsAfterAdmission: callers that were all admitted before any of them reserved,
// as while an admission program decides, do not exceed the quota.
func TestQuotaHoldsAfterAdmission(t *testing.T) {
	t.Parallel()
	o := options(local(), Serve)
	o.Config.Quotas = []config.Quota{{Project: "game", Allocations: 50}}
	r := start(t, o)
	tenant := alloc.Tenant{Project: "game"}
	for range 200 {
		if err := r.api.admission.admit(t.Context(), alloc.AdmissionRequest{Caller: alloc.Caller{Tenant: tenant}}); err != nil {
			t.Fatal(err)
		}
	}
	admitted := 0
	for range 200 {
		switch _, err := r.relay.engine.ReserveHost(t.Context(), alloc.HostRequest{Caller: alloc.Caller{Tenant: tenant}, MaxConnections: 1}); {
		case err == nil:
			admitted++
		case !errors.Is(err, alloc.ErrProjectQuota):
			t.Fatal(err)
		}
	}
	if admitted != 50 {
		t.Errorf("%d admitted; the quota is 50", admitted)
	}
	if st := r.api.players.stats().Quota; st.Refused[quota.RefusedAllocations] != 150 {
		t.Errorf("%+v", st)
	}
}

// BenchmarkReserve is a reservation without its HTTP call, of a project without a quota and of
// one with it, while 1,000 other tenants have allocations.
func BenchmarkReserve(b *testing.B) {
	o := options(local(), Serve)
	o.Config.MaxAllocations = 1 << 20
	o.Config.Quotas = []config.Quota{{Project: "game", Allocations: 1 << 26}}
	r := start(b, o)
	crowd(b, r, 1000)
	for _, project := range []string{"free", "game"} {
		b.Run(project, func(b *testing.B) {
			caller := alloc.Caller{Tenant: alloc.Tenant{Project: project}, Server: true}
			for b.Loop() {
				if _, err := r.api.service.Allocate(b.Context(), caller, 1, ""); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
