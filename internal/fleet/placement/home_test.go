package placement

import (
	"errors"
	"reflect"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ferryrelay/ferry/alloc"
)

func TestJoinGoesHome(t *testing.T) {
	t.Parallel()
	inWorld(t, []Node{testNode(0, "eu", 10), testNode(1, "us", 10)}, nil, func(t *testing.T, w *world) {
		host := w.mustHost(t, 3, "us")
		res, err := w.ReserveJoiner(t.Context(), alloc.JoinerRequest{Caller: alloc.Caller{Tenant: testTenant}, Host: host})
		if err != nil || res.Region != "us" || len(w.relays[1].joined) != 1 || w.relays[1].joined[0].Host != host {
			t.Errorf("region %q, error %v, joined %v", res.Region, err, w.relays[1].joined)
		}
		d, err := w.Describe(t.Context(), host)
		if err != nil || d.Role != alloc.RoleHost {
			t.Errorf("Describe: %v, %v", d, err)
		}
		wantErr(t, "Keep", w.KeepCode(t.Context(), host, "6789BC"), nil)
		if got := w.relays[1].kept[host]; got != "6789BC" {
			t.Errorf("kept %q", got)
		}
		wantErr(t, "unknown host", w.join(hostID(99)), alloc.ErrNotFound)
		wantErr(t, "Keep of an unknown host", w.KeepCode(t.Context(), hostID(99), "6789BC"), alloc.ErrNotFound)
		wantErr(t, "ended host", w.relays[1].End(t.Context(), host), nil)
		wantErr(t, "join of an ended host", w.join(host), alloc.ErrNotFound)
		_, err = w.Describe(t.Context(), host)
		wantErr(t, "Describe of an ended host", err, alloc.ErrNotFound)
		if asked, _ := w.relays[0].count(); asked != 0 {
			t.Errorf("another relay was asked %d times", asked)
		}
	})
}

// TestMigrateGoesHome: the relay of the former host decides, and its errors arrive.
func TestMigrateGoesHome(t *testing.T) {
	t.Parallel()
	inWorld(t, []Node{testNode(0, "eu", 10), testNode(1, "us", 10)}, nil, func(t *testing.T, w *world) {
		host := w.mustHost(t, 3, "us")
		ask := alloc.MigrationRequest{
			Caller: alloc.Caller{Tenant: testTenant}, PlayerHash: alloc.PlayerHash{1}, Host: host, Ticket: alloc.ConnectionData{2},
		}
		_, err := w.MigrateHost(t.Context(), ask)
		wantErr(t, "LeaveHost", w.LeaveHost(t.Context(), alloc.LeaveRequest{Caller: alloc.Caller{Tenant: testTenant}, Host: host}), nil)
		wantErr(t, "a live host", err, alloc.ErrHostPresent)
		wantErr(t, "End", w.relays[1].End(t.Context(), host), nil)
		res, err := w.MigrateHost(t.Context(), ask)
		if home, unknown := w.store.HomeOf(t.Context(), res.ID); err != nil || res.Region != "us" || unknown != nil || home.Relay != relayID(1) {
			t.Errorf("MigrateHost = %v in %q, %v; it is at %v, %v", res.ID, res.Region, err, home, unknown)
		}
		if len(w.relays[1].asks) != 1 || !reflect.DeepEqual(w.relays[1].asks[0], ask) || len(w.relays[0].asks) != 0 {
			t.Errorf("asked %+v and %+v", w.relays[0].asks, w.relays[1].asks)
		}
		for _, want := range []error{alloc.ErrHostPresent, alloc.RefusedError{Err: alloc.ErrMigration, Reason: "x", RetryAfter: time.Second}} {
			w.relays[1].set(want, false)
			_, err := w.MigrateHost(t.Context(), ask)
			wantErr(t, "Migrate", err, want)
			wantErr(t, "ReserveJoiner", w.join(host), want)
		}
		w.relays[1].set(errors.New("unknown"), false)
		_, err = w.MigrateHost(t.Context(), ask)
		wantErr(t, "an unknown error", err, alloc.ErrUnavailable)
		_, err = w.MigrateHost(t.Context(), alloc.MigrationRequest{Caller: alloc.Caller{Tenant: testTenant}, Host: hostID(99)})
		wantErr(t, "a host without a home", err, alloc.ErrNotFound)
		wantErr(t, "LeaveHost of an unknown host", w.LeaveHost(t.Context(), alloc.LeaveRequest{Host: hostID(99)}), alloc.ErrNotFound)
		w.relays[1].set(nil, false)
		w.store.setHome = errBroken
		_, err = w.MigrateHost(t.Context(), ask)
		wantErr(t, "the store does not take the home", err, alloc.ErrStoreUnavailable)
	})
}

// TestHomeDies: its hosts are away while they may come back, and then gone.
func TestHomeDies(t *testing.T) {
	t.Parallel()
	inWorld(t, []Node{testNode(0, "eu", 10)}, nil, func(t *testing.T, w *world) {
		host := w.mustHost(t, 3, "")
		time.Sleep(10 * time.Second) // so that the fleet is settled
		w.kill(0)
		died := time.Now()
		w.store.mu.Lock()
		w.store.homes[host] = fakeHome{Home{relayID(0), 1}, died, died.Add(time.Hour)}
		w.store.mu.Unlock()
		for _, tt := range []struct {
			at   time.Duration
			want error
		}{
			{time.Second, alloc.ErrUnavailable}, // It is asked, and does not answer.
			{7 * time.Second, alloc.ErrUnavailable},
			{60 * time.Second, alloc.ErrUnavailable},
			{70 * time.Second, alloc.ErrNotFound},
			{10 * time.Minute, alloc.ErrNotFound}, // The registry has forgotten it.
		} {
			time.Sleep(time.Until(died.Add(tt.at)))
			wantErr(t, tt.at.String(), w.join(host), tt.want)
		}
		if asked, _ := w.relays[0].count(); asked != 2 {
			t.Errorf("the dead relay was asked %d times", asked)
		}
	})
}

func TestHomeRestarts(t *testing.T) {
	t.Parallel()
	inWorld(t, []Node{testNode(0, "eu", 10)}, nil, func(t *testing.T, w *world) {
		host := w.mustHost(t, 3, "")
		w.kill(0)
		time.Sleep(30 * time.Second)
		wantErr(t, "while it is away", w.join(host), alloc.ErrUnavailable)
		w.change(0, func(n *Node) { n.Boot = 2 })
		w.relays[0].set(nil, false)
		w.relays[0].setAway(host, true)
		w.beat(t, 0)
		time.Sleep(2 * PollEvery)
		wantErr(t, "before the host is back", w.join(host), alloc.ErrUnavailable)
		w.relays[0].setAway(host, false)
		wantErr(t, "when it is back", w.join(host), nil)
	})
}

// TestHomeIsNew: another process placed a host at a relay that this one does not
// know.
func TestHomeIsNew(t *testing.T) {
	t.Parallel()
	nodes := []Node{testNode(0, "eu", 10), testNode(1, "eu", 10)}
	inWorld(t, nodes, nil, func(t *testing.T, w *world) {
		w.running[1]()
		wantErr(t, "Withdraw", w.store.Withdraw(t.Context(), relayID(1), 1), nil)
		time.Sleep(HealFor + 2*PollEvery)
		time.Sleep(minPollInterval)
		polls := w.Stats().Polls
		w.beat(t, 1)
		res, err := w.relays[1].ReserveHost(t.Context(), alloc.HostRequest{Caller: alloc.Caller{Tenant: testTenant}, MaxConnections: 3})
		if err != nil {
			t.Fatal(err)
		}
		wantErr(t, "SetHome", w.store.SetHome(t.Context(), res.ID, Home{relayID(1), 1}), nil)
		// If the regular poll was a moment ago, the verdict waits for the next.
		if err := w.join(res.ID); err != nil {
			wantErr(t, "join", err, alloc.ErrUnavailable)
			time.Sleep(2 * PollEvery)
			wantErr(t, "join a moment later", w.join(res.ID), nil)
		}
		if w.Stats().Polls == polls {
			t.Error("the registry was not read")
		}
		// A home that is nowhere: the store is asked, but not for every player.
		wantErr(t, "SetHome", w.store.SetHome(t.Context(), hostID(77), Home{relayID(9), 1}), nil)
		before := w.store.called("Nodes")
		for range 100 {
			if err := w.join(hostID(77)); err == nil {
				t.Fatal("joined nowhere")
			}
		}
		if got := w.store.called("Nodes") - before; got > 2 {
			t.Errorf("the registry was read %d times for 100 players", got)
		}
		var verdict error
		for range 4 { // unless the regular poll was a moment ago
			time.Sleep(minPollInterval)
			if verdict = w.join(hostID(77)); errors.Is(verdict, alloc.ErrNotFound) {
				break
			}
		}
		wantErr(t, "a home that is nowhere", verdict, alloc.ErrNotFound)
	})
}

// TestStoreGone: calls that need it are refused without waiting and without a
// reservation; other calls continue.
func TestStoreGone(t *testing.T) {
	t.Parallel()
	inWorld(t, []Node{testNode(0, "eu", 1000)}, nil, func(t *testing.T, w *world) {
		host := w.mustHost(t, 3, "")
		time.Sleep(10 * time.Second)
		w.store.fail(errBroken)
		asked, _ := w.relays[0].count()
		lost := time.Now()
		for i := range 60 {
			if n := w.Nodes()[0]; n.IsDead() || n.Unknown && i < 2 || !n.Unknown && i > 4 {
				t.Errorf("%v without the store: %+v", time.Since(lost), n)
			}
			began := time.Now()
			_, err := w.host(3, "")
			wantErr(t, "ReserveHost", err, alloc.ErrStoreUnavailable)
			wantErr(t, "ReserveJoiner", w.join(host), alloc.ErrStoreUnavailable)
			_, err = w.Codes().HostOf(t.Context(), testTenant, "6789BC")
			wantErr(t, "HostOf", err, alloc.ErrStoreUnavailable)
			if took := time.Since(began); took > 0 { // in the bubble's time
				t.Errorf("waited for %v", took)
			}
			if got := w.Regions(); len(got) != 1 {
				t.Fatalf("regions %v", got)
			}
			time.Sleep(time.Second)
		}
		synctest.Wait()
		now, live := w.relays[0].count()
		if now-asked > 5 || live != 1 {
			t.Errorf("the relay was asked %d times meanwhile, and has %d hosts", now-asked, live)
		}
		wantErr(t, "Ready", w.Ready(), alloc.ErrStoreUnavailable)
		if since, away := w.StoreAway(); !away || since.After(lost) || lost.Sub(since) > 2*PollEvery {
			t.Errorf("away %v since %v, lost at %v", away, since, lost)
		}
		if st := w.Stats(); st.Relays != 1 || st.Unknown != 1 || st.Dead != 0 {
			t.Errorf("%+v", st)
		}
		w.store.fail(nil)
		time.Sleep(3 * time.Second)
		if _, away := w.StoreAway(); away || w.Nodes()[0].Unknown {
			t.Errorf("the store is back: away %v, %+v", away, w.Nodes()[0])
		}
		wantErr(t, "join when it is back", w.join(host), nil)
		w.mustHost(t, 3, "")
	})
}

// TestStoreReturns: after a long outage all relays look dead for a moment, and
// no code is lost by that.
func TestStoreReturns(t *testing.T) {
	t.Parallel()
	inWorld(t, []Node{testNode(0, "eu", 1000)}, nil, func(t *testing.T, w *world) {
		host := w.mustHost(t, 3, "")
		service, err := alloc.NewService(alloc.ServiceConfig{
			Relay: w.Fleet, Store: w.Codes(), LiveRegions: w.Regions, KeepCode: w.KeepCode,
		})
		if err != nil {
			t.Fatal(err)
		}
		backend := alloc.Caller{Tenant: testTenant, Server: true}
		code, err := service.JoinCode(t.Context(), backend, host)
		if err != nil {
			t.Fatal(err)
		}
		w.running[0]()
		w.store.fail(errBroken)
		time.Sleep(100 * time.Second)
		w.store.fail(nil)
		time.Sleep(1500 * time.Millisecond) // read, but no relay has announced itself
		_, err = service.Join(t.Context(), backend, code)
		wantErr(t, "join", err, alloc.ErrUnavailable)
		if n := w.Nodes()[0]; !n.Unknown || n.Age < DeadAfter {
			t.Errorf("a relay that has had no time to announce itself: %+v", n)
		}
		_, err = service.Join(t.Context(), backend, "6789BCDFGHJK")
		wantErr(t, "join with another code", err, alloc.ErrStoreUnavailable)
		if got := w.store.called("Forget"); got != 0 {
			t.Errorf("%d codes were forgotten", got)
		}
		w.beat(t, 0)
		time.Sleep(2 * PollEvery)
		_, err = service.Join(t.Context(), backend, code)
		wantErr(t, "join when the relay is back", err, nil)
		time.Sleep(HealFor)
		_, err = service.Join(t.Context(), backend, "6789BCDFGHJK")
		wantErr(t, "join with another code when all is well", err, alloc.ErrCodeNotFound)
	})
}

// TestStoreForgets: a store that comes back empty within a second is noticed by
// what is missing, or by relays that say so, and what it does not have is not
// yet gone.
func TestStoreForgets(t *testing.T) {
	t.Parallel()
	for _, announced := range []bool{false, true} {
		inWorld(t, []Node{testNode(0, "eu", 1000), testNode(1, "eu", 1000)}, nil, func(t *testing.T, w *world) {
			host := w.mustHost(t, 3, "")
			time.Sleep(9500 * time.Millisecond) // between two heartbeats
			for i, stop := range w.running {
				stop()
				w.change(i, func(n *Node) { n.Healing = announced })
			}
			w.store.lose()
			for i := range w.nodes {
				if announced {
					w.beat(t, i)
				}
			}
			time.Sleep(1200 * time.Millisecond)
			wantErr(t, "join", w.join(host), alloc.ErrUnavailable)
			_, err := w.Codes().CodeOf(t.Context(), testTenant, host)
			wantErr(t, "CodeOf", err, alloc.ErrStoreUnavailable)
			for i := range w.nodes {
				w.running[i]()
				w.change(i, func(n *Node) { n.Healing = false })
				w.beat(t, i)
			}
			time.Sleep(HealFor + HeartbeatEvery)
			wantErr(t, "join when all have announced", w.join(host), alloc.ErrNotFound)
		})
	}
}
