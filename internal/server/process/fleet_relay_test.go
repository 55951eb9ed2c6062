package process

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/ferryrelay/ferry/alloc"
	"github.com/ferryrelay/ferry/alloc/api"
	"github.com/ferryrelay/ferry/client"
	"github.com/ferryrelay/ferry/engine"
	"github.com/ferryrelay/ferry/internal/fleet/operator"
	"github.com/ferryrelay/ferry/internal/fleet/rpc"
	"github.com/ferryrelay/ferry/internal/server/config"
	"github.com/ferryrelay/ferry/internal/test/redistest"
	"github.com/ferryrelay/ferry/internal/test/testkit"
	"github.com/ferryrelay/ferry/proto"
)

// fleetKit is a store and an authority for the processes of a test. Each process is that
// user of the store which docs/fleet.md has for its role.
type fleetKit struct {
	t     *testing.T
	redis *redistest.Server
	ca    *rpc.CA
	dir   string
}

func newFleet(t *testing.T) *fleetKit {
	t.Helper()
	k := &fleetKit{t: t, redis: redistest.Start(t, storeUserArgs(t)...), dir: t.TempDir()}
	var err error
	if k.ca, err = rpc.NewCA("test", 0); err != nil {
		t.Fatal(err)
	}
	if err := k.ca.Write(k.file("ca"), k.file("ca-key")); err != nil {
		t.Fatal(err)
	}
	return k
}

func (k *fleetKit) file(name string) string { return filepath.Join(k.dir, name+".pem") }

func (k *fleetKit) settings(name string, r rpc.Request) config.Config {
	k.t.Helper()
	issued, err := k.ca.Issue(r)
	if err == nil {
		err = issued.Write(k.file(name), k.file(name+"-key"))
	}
	if err != nil {
		k.t.Fatal(err)
	}
	c := local()
	c.Store, c.Cluster = config.Secret(userURL(k.redis.URL, "ferry-"+string(r.Role))), addr("127.0.0.1:0")
	c.StoreTimeout = 5 * time.Second // A busy machine shall not fail a test of something else.
	c.ClusterCA, c.ClusterCert, c.ClusterKey = k.file("ca"), k.file(name), k.file(name+"-key")
	c.Tokens[0].Kind = "server"
	return c
}

func (k *fleetKit) relay(id byte, region string) running {
	k.t.Helper()
	return start(k.t, k.relayOptions(id, region))
}

func (k *fleetKit) relayOptions(id byte, region string) Options {
	k.t.Helper()
	c := k.settings(region, rpc.Request{Role: rpc.RoleRelay, Relay: alloc.RelayID{id}})
	c.Region, c.Workers = region, 1
	c.BindTimeout = time.Hour // Nobody binds in most tests, and a busy machine takes its time.
	o := options(c, Relay)
	o.Identity.Relay, o.Fresh = alloc.RelayID{id}, true
	return o
}

func (k *fleetKit) api() running {
	k.t.Helper()
	return start(k.t, options(k.settings("api", rpc.Request{Role: rpc.RoleAPI}), API))
}

// hostIn allocates in a region, and returns it with its join code. It asks again after a 503, as a
// client does: on a busy machine a call may outlast the limit of the API.
func hostIn(t *testing.T, r running, region string) (a api.Allocation, code string) {
	t.Helper()
	retry := func(what string, call func() error) {
		t.Helper()
		testkit.Within(t, time.Minute, what, func() bool {
			err := call()
			if err != nil && problem(err) != http.StatusServiceUnavailable {
				t.Fatal(err)
			}
			return err == nil
		})
	}
	retry("an allocation", func() (err error) {
		a, err = r.caller(secret).Allocate(t.Context(), api.AllocateRequest{MaxConnections: 4, Region: region})
		return err
	})
	retry("a join code", func() (err error) {
		code, err = r.caller(secret).JoinCode(t.Context(), a.AllocationID)
		return err
	})
	return a, code
}

// problem returns the status of a call that failed, 0 for one that did not.
func problem(err error) int {
	if p, ok := errors.AsType[*api.Problem](err); ok {
		return p.Status
	}
	return 0
}

// TestFleet: two relays and two API processes are one service. A drain at one
// relay reaches all of it, and takes nothing from its hosts.
func TestFleet(t *testing.T) {
	t.Parallel()
	k := newFleet(t)
	eu, us := k.relay(1, "eu"), k.relay(2, "us")
	first, second := k.api(), k.api()
	testkit.Within(t, time.Minute, "both regions", func() bool {
		a, errA := first.caller(secret).Regions(t.Context())
		b, errB := second.caller(secret).Regions(t.Context())
		return errA == nil && errB == nil && len(a) == 2 && len(b) == 2
	})
	host, code := hostIn(t, first, "eu")
	if got, want := host.ServerEndpoints[0].Port, int(eu.Listeners()[0].Addr.Port()); got != want || host.Region != "eu" {
		t.Errorf("a host of eu was sent to port %d in %q, want %d", got, host.Region, want)
	}
	if j, err := second.caller(secret).Join(t.Context(), code); err != nil || j.Region != "eu" {
		t.Errorf("a join by the other process: %v in %q", err, j.Region)
	}
	testkit.NoProblemWithin(t, time.Minute, "all processes are listed", func() string {
		all, err := first.operator.status.nodes(t.Context(), operator.Load{})
		n := all.Nodes
		if err != nil || len(n) != 4 || n[0].Role != "api" || n[1].Role != "api" || n[1].API != second.URL() || n[1].State != "ready" ||
			n[2].Region != "eu" || n[2].Since.IsZero() || n[2].Matches != 1 || n[2].Allocations != 2 {
			return fmt.Sprintf("%+v, %v", all, err)
		}
		return ""
	})
	if _, err := first.caller(secret).Allocate(t.Context(), api.AllocateRequest{MaxConnections: 4,
		Region: "mars"}); problem(err) != http.StatusBadRequest {
		t.Errorf("an unknown region: %v", err)
	}

	if err := eu.relay.drain.Drain(t.Context(), engine.DrainConfig{Deadline: time.Hour}); err != nil {
		t.Fatal(err)
	}
	testkit.Within(t, time.Minute, "the drain to be known", func() bool {
		seen := second.frontEnd.fleet.Nodes()
		return len(seen) == 2 && seen[0].Draining && !seen[1].Draining
	})
	if _, err := second.caller(secret).Allocate(t.Context(),
		api.AllocateRequest{MaxConnections: 4, Region: "eu"}); problem(err) != http.StatusServiceUnavailable {
		t.Errorf("a host for a region that drains: %v", err)
	}
	for range 8 {
		if a, _ := hostIn(t, second, ""); a.Region != "us" {
			t.Fatalf("a host was placed in %q, which drains", a.Region)
		}
	}
	if _, err := second.caller(secret).Join(t.Context(), code); err != nil {
		t.Errorf("a join to a host whose relay drains: %v", err)
	}
	if err := eu.relay.drain.Undrain(t.Context()); err != nil {
		t.Fatal(err)
	}
	testkit.Within(t, time.Minute, "the end of the drain", func() bool { return !second.frontEnd.fleet.Nodes()[0].Draining })
	if n := us.Stats().Seats; n != 8*5 {
		t.Errorf("us has given %d seats, want 40", n)
	}
}

func TestRelayAnswersNoCalls(t *testing.T) {
	t.Parallel()
	k := newFleet(t)
	r := k.relay(1, "eu")
	_, err := r.caller(secret).Allocate(t.Context(), api.AllocateRequest{MaxConnections: 1})
	if err == nil || r.Stats().Allocations != 0 {
		t.Errorf("a relay of a fleet made an allocation: %v", err)
	}
	for _, l := range r.Listeners() {
		if l.Kind == "cluster" {
			return
		}
	}
	t.Errorf("no cluster listener among %v", r.Listeners())
}

// TestStoreAway: without the store calls are answered with 503 and the processes
// stay ready; an empty one that comes back learns from the relays.
func TestStoreAway(t *testing.T) {
	t.Parallel()
	k := newFleet(t)
	relay, a := k.relay(1, "eu"), k.api()
	testkit.Within(t, time.Minute, "the relay", func() bool {
		all, err := a.caller(secret).Regions(t.Context())
		return err == nil && len(all) == 1
	})
	host, code := hostIn(t, a, "")
	id, err := uuid.Parse(host.AllocationID)
	if err != nil {
		t.Fatal(err)
	}
	k.redis.Kill()
	testkit.Within(t, time.Minute, "503, for the store and no relay", func() bool {
		_, err := a.caller(secret).Join(t.Context(), code)
		p, ok := errors.AsType[*api.Problem](err)
		return ok && p.Status == http.StatusServiceUnavailable && p.Detail == "store unavailable" && p.RetryAfter > 0
	})
	if err := errors.Join(relay.handover.ready.check(), a.handover.ready.check()); err != nil {
		t.Errorf("without the store: %v", err)
	}
	late := k.api()
	for r, want := range map[*running]string{&a: `"region":"eu","version":`, &late: `"role":"api"`} {
		testkit.Within(t, time.Minute, "the page says that the store is away", func() bool {
			status, body := r.operate(t, "GET", "/nodes")
			return status == http.StatusOK && strings.Contains(body, `"store_away_since":`) && strings.Contains(body, want) &&
				!strings.Contains(body, `"dead"`) && strings.Contains(body, `"state":"unknown"`) == (r == &a)
		})
	}
	testkit.Within(t, time.Minute, "the bans are as they were, or not known", func() bool {
		_, before := a.operate(t, "GET", "/bans")
		_, never := late.operate(t, "GET", "/bans")
		return strings.Contains(before, `"store_away_since":`) && !strings.Contains(before, `"not_known"`) &&
			strings.Contains(never, `"not_known":true`)
	})
	if status, body := a.operate(t, "GET", "/usage"); status != http.StatusOK || !strings.Contains(body, `"hosts":1`) ||
		!strings.Contains(body, "the store has not answered since") {
		t.Errorf("usage without the store: %d %s", status, body)
	}
	if status, body := late.operate(t, "GET", "/usage"); status != http.StatusServiceUnavailable || !strings.Contains(body, "not known") {
		t.Errorf("usage where no relay is known: %d %s", status, body)
	}
	if status, body := a.operate(t, "POST", "/nodes/0100/drain"); status != http.StatusOK {
		t.Errorf("a drain without the store: %d %s", status, body)
	}
	if status, body := a.operate(t, "DELETE", "/nodes/0100/drain"); status != http.StatusOK {
		t.Errorf("a drain without the store: %d %s", status, body)
	}
	k.redis.Restart()
	// The reservation may lapse on a slow machine; then its code ends as 404.
	testkit.Within(t, time.Minute, "the store to have the code again", func() bool {
		j, err := a.caller(secret).Join(t.Context(), code)
		if _, gone := relay.relay.engine.Describe(t.Context(), proto.AllocationID(id)); errors.Is(gone, alloc.ErrNotFound) {
			return true
		}
		return err == nil && j.Region == "eu"
	})
	testkit.Within(t, time.Minute, "new hosts", func() bool {
		_, err := a.caller(secret).Allocate(t.Context(), api.AllocateRequest{MaxConnections: 1})
		return err == nil
	})
}

// TestStorePasswordWrong: processes whose password the store refuses do not get ready, and name the
// settings.
func TestStorePasswordWrong(t *testing.T) {
	t.Parallel()
	k := newFleet(t)
	wrong := func(o Options) Options {
		o.Config.Store = config.Secret(strings.Replace(string(o.Config.Store), "-PASSWORD", "-GUESS", 1))
		return o
	}
	for _, o := range []Options{
		wrong(k.relayOptions(1, "eu")), wrong(options(k.settings("api", rpc.Request{Role: rpc.RoleAPI}), API)),
	} {
		app, err := New(o)
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- app.Run(ctx) }()
		r := running{App: app}
		testkit.Within(t, time.Minute, "the process says why it is not ready", func() bool {
			status, body := r.operate(t, "GET", "/readyz")
			return status == http.StatusServiceUnavailable && strings.Contains(body, "store, store_password_file") &&
				strings.Contains(body, "WRONGPASS") && !strings.Contains(body, "GUESS")
		})
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	}
}

// TestKeptCodes: a relay that was restarted restores the hosts that may come back in a store that has lost
// everything, and calls for them are answered with 503.
func TestKeptCodes(t *testing.T) {
	t.Parallel()
	k := newFleet(t)
	a := k.api()
	o := k.relayOptions(1, "eu")
	o.Files.Allocations = filepath.Join(k.dir, "allocations")
	before := start(t, o)
	testkit.Within(t, time.Minute, "the relay", func() bool { return len(a.frontEnd.fleet.Nodes()) == 1 })
	host, code := hostIn(t, a, "")
	why := whyRig{a, t}
	player := why.why(code).Player
	if player == "" {
		t.Error("the relay does not know the player for whom an API process called")
	}
	before.cancel()
	if err := <-before.ended; err != nil {
		t.Fatal(err)
	}
	k.redis.Kill()
	k.redis.Restart()
	o.Fresh = false
	after := start(t, o)
	if kept := after.relay.engine.Private().KeptCodes(); len(kept) != 1 || kept[0].Host.String() != host.AllocationID {
		t.Fatalf("the relay has kept %d codes", len(kept))
	}
	testkit.Within(t, time.Minute, "the code", func() bool {
		found, err := after.operator.status.store.All()[0].Directory.HostOf(t.Context(), alloc.Tenant{Project: "game", Environment: "test"}, code)
		return err == nil && found.String() == host.AllocationID
	})
	testkit.Within(t, time.Minute, "503 for a host that may come back", func() bool {
		_, err := a.caller(secret).Join(t.Context(), code)
		return problem(err) == http.StatusServiceUnavailable
	})
	var answer string
	testkit.Within(t, time.Minute, "the relay is asked", func() bool {
		var status int
		status, answer = fetch(t, a.AdminURL()+"/why/"+code)
		return status == http.StatusOK
	})
	if !strings.Contains(answer, "it was live before the relay's restart") {
		t.Error(answer)
	}
	why.expect(host.AllocationID, "it was live before the relay's restart", nil)
	ticket, err := client.TicketFrom(host)
	if err != nil {
		t.Fatal(err)
	}
	ticket.Server = after.relay.engine.Addr()
	back := why.raw(ticket)
	why.expect(code, "and no player is linked; what happened before the relay's restart is not known", back.bind)
	if got := why.why(code).Player; got != player {
		t.Errorf("after the restart the player is %q, want %q", got, player)
	}
}

// TestFleetQuota: what a project uses counts at all API processes, once its relays
// have said so.
func TestFleetQuota(t *testing.T) {
	t.Parallel()
	k := newFleet(t)
	o := k.relayOptions(1, "eu")
	o.Config.BindTimeout = config.Serve().BindTimeout
	relay := start(t, o)
	c := k.settings("api", rpc.Request{Role: rpc.RoleAPI})
	c.Quotas = []config.Quota{{Project: "game", Allocations: 2}}
	first, second := start(t, options(c, API)), start(t, options(c, API))
	testkit.Within(t, time.Minute, "the relay", func() bool {
		return len(first.frontEnd.fleet.Nodes()) == 1 && len(second.frontEnd.fleet.Nodes()) == 1
	})
	hostIn(t, first, "")
	hostIn(t, first, "")
	if n := relay.Stats().Allocations; n != 2 {
		t.Fatalf("%d allocations, want 2", n)
	}
	testkit.Within(t, time.Minute, "the quota", func() bool {
		_, err := second.caller(secret).Allocate(t.Context(), api.AllocateRequest{MaxConnections: 1})
		return problem(err) == http.StatusForbidden || problem(err) == http.StatusTooManyRequests
	})
	// They lapse unbound, and the project has room again.
	testkit.Within(t, time.Minute, "room", func() bool {
		_, err := second.caller(secret).Allocate(t.Context(), api.AllocateRequest{MaxConnections: 1})
		return err == nil
	})
}

// TestDeparture: a relay without hosts leaves the registry, and one that has some
// says that it drains, so that it comes back to them.
func TestDeparture(t *testing.T) {
	t.Parallel()
	k := newFleet(t)
	a := k.api()
	empty, busy := k.relay(1, "eu"), k.relay(2, "us")
	testkit.Within(t, time.Minute, "both", func() bool { return len(a.frontEnd.fleet.Nodes()) == 2 })
	hostIn(t, a, "us")
	for _, r := range []running{empty, busy} {
		r.cancel()
		if err := <-r.ended; err != nil {
			t.Errorf("Run returned %v", err)
		}
	}
	// It may see the first one leave before it sees what the other one says.
	testkit.Within(t, time.Minute, "one, which drains", func() bool {
		all := a.frontEnd.fleet.Nodes()
		return len(all) == 1 && all[0].Draining && stateOf(&all[0]) == "stopped"
	})
	if n := a.frontEnd.fleet.Nodes()[0]; n.Relay != (alloc.RelayID{2}) {
		t.Errorf("the relay with a host left %+v", n.Node)
	}
}

// TestFleetSettings: what a process of a fleet cannot do without, and what it has
// no use for.
func TestFleetSettings(t *testing.T) {
	t.Parallel()
	for _, mode := range []Mode{Relay, API} {
		if err := Check(local(), mode); !errors.Is(err, ErrNoStore) || !errors.Is(err, ErrNoFiles) {
			t.Errorf("%s: %v", mode, err)
		}
	}
	c := local()
	c.Store, c.Tokens = "redis://user:hunter2@[", nil
	if err := Check(c, API); err == nil || !errors.Is(err, ErrNoToken) || strings.Contains(err.Error(), "hunter2") {
		t.Errorf("api without a token and a store's bad URL: %v", err)
	}
	if err := Check(c, Relay); errors.Is(err, ErrNoToken) {
		t.Errorf("relay wants a token: %v", err)
	}
	c.RegionStores = []config.RegionStore{
		{Region: "eu", CodeSymbol: "6", Store: "redis://eu"}, {Region: "us", CodeSymbol: "6", Store: "nonsense", PasswordFile: "none"},
	}
	for _, says := range []string{"set one of them", "code_symbol 6 is there twice", "region_stores[1].password_file", "region us:"} {
		if err := Check(c, API); err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("stores of regions: %v, want %q", err, says)
		}
	}
	if err := Check(c, Relay); err == nil || !strings.Contains(err.Error(), "no store for "+c.Region) {
		t.Errorf("a relay of another region: %v", err)
	}
	keys := make(map[string]bool)
	for _, s := range (config.Loaded{Config: config.Serve()}).Values() {
		keys[s.Key] = true
	}
	for _, key := range slices.Concat(ofCalls, ofRelay, ofFleet, ofFleetRelay) {
		nested := []string{"tokens", "issuers", "quotas", "region_stores"}
		if !keys[key] && !slices.Contains(nested, key) {
			t.Errorf("there is no setting %q", key)
		}
	}
}

func TestControl(t *testing.T) {
	t.Parallel()
	advertised := []alloc.ServerEndpoint{{Host: "203.0.113.7", Port: 7777}}
	for _, c := range []struct{ advertise, listen, want string }{
		{"", "10.0.0.7:7779", "10.0.0.7:7779"},
		{"", "0.0.0.0:7779", "203.0.113.7:7779"},
		{"relay-1.internal", "0.0.0.0:7779", "relay-1.internal:7779"},
		{"10.0.0.9:99", "0.0.0.0:7779", "10.0.0.9:99"},
		{"fd00::7", "[::]:7779", "[fd00::7]:7779"},
		{"[fd00::7]:99", "[::]:7779", "[fd00::7]:99"},
		{"relay:x", "0.0.0.0:7779", ""},
		{":99", "0.0.0.0:7779", ""},
		{"relay:0", "0.0.0.0:7779", ""},
	} {
		got, err := controlAddress(c.advertise, addr(c.listen).AddrPort, advertised)
		if got != c.want || (err == nil) != (c.want != "") {
			t.Errorf("control(%q, %q) = %q, %v, want %q", c.advertise, c.listen, got, err, c.want)
		}
	}
	if _, err := controlAddress("", addr("0.0.0.0:1").AddrPort, nil); !errors.Is(err, errNoControlAddress) {
		t.Errorf("nowhere: %v", err)
	}
}

// TestLoad: a busy thread is seen, by a number from 0 to 1.
func TestLoad(t *testing.T) {
	t.Parallel()
	var l load
	if first := l.measure(); first != 0 {
		t.Errorf("the first measure is %v, want 0", first)
	}
	if len(l.spent) == 0 {
		t.Skip("this system does not tell what its threads do")
	}
	for range 1 << 28 { // Work, for a time may pass without a processor.
	}
	if busy := l.measure(); busy <= 0 || busy > 1 {
		t.Errorf("a busy thread is %v of a processor", busy)
	}
}
