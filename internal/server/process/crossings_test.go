package process

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/ferryrelay/ferry/alloc/api"
	"github.com/ferryrelay/ferry/client"
	"github.com/ferryrelay/ferry/internal/fleet/rpc"
	"github.com/ferryrelay/ferry/internal/server/config"
	"github.com/ferryrelay/ferry/internal/server/players/hooks"
	"github.com/ferryrelay/ferry/internal/test/testkit"
)

// Two features of a process at once, for pairs of docs/research/crossings.md that no other test has.

// program is an operator's admission program and webhook: it counts questions by player, and keeps events.
type program struct {
	recorder
	askedMu sync.Mutex // guards asked
	asked   []string   // the players
}

func (p *program) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if r.URL.Path != "/admit" {
		p.recorder.ServeHTTP(w, r)
		return
	}
	var question struct{ Player string }
	body, _ := io.ReadAll(r.Body)
	_ = json.Unmarshal(body, &question)
	p.askedMu.Lock()
	p.asked = append(p.asked, question.Player)
	p.askedMu.Unlock()
	fmt.Fprint(w, `{"allow":true}`)
}

func (p *program) questions() string {
	p.askedMu.Lock()
	defer p.askedMu.Unlock()
	return strings.Join(p.asked, " ")
}

// startProgram returns a program, and what sets it.
func startProgram(t *testing.T) (*program, func(*config.Config)) {
	t.Helper()
	p := new(program)
	server := httptest.NewServer(p)
	t.Cleanup(server.Close)
	file := filepath.Join(t.TempDir(), "secret")
	if err := os.WriteFile(file, []byte(hookSecret), 0o600); err != nil {
		t.Fatal(err)
	}
	return p, func(c *config.Config) {
		c.AdmissionURL, c.AdmissionSecretFile = server.URL+"/admit", file
		c.WebhookURL, c.WebhookSecretFile = server.URL+"/events", file
	}
}

// TestBanQuotaHooks: the place that a ban frees in the quota is free at once, the program hears of the end, and is
// not asked about the banned player. A reload of the quota changes nothing of the ban.
func TestBanQuotaHooks(t *testing.T) {
	t.Parallel()
	p, set := startProgram(t)
	r := startReloading(t, Serve, func(c *config.Config) {
		*c = backends().Config
		set(c)
		c.Quotas = []config.Quota{{Project: "game", Allocations: 1}}
	})
	ann, err := r.reserveHost(t, "ann")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := r.reserveHost(t, "bob"); problem(err) != http.StatusTooManyRequests {
		t.Errorf("one of one, and another is let in: %v", err)
	}
	r.ban(t, "project=game&environment=test&player=ann")
	testkit.Within(t, time.Minute, "the event of the end", func() bool { return len(p.of(hooks.Ended, ann.ID.String())) == 1 })
	if e := p.of(hooks.Ended, "")[0]; e.Player != "ann" || e.Project != "game" || e.Reason != "closed by the operator" {
		t.Errorf("ended: %+v", e)
	}
	if _, err := r.reserveHost(t, "bob"); err != nil {
		t.Errorf("the place of the banned player is not free: %v", err)
	}
	r.file.Quotas = []config.Quota{{Project: "game", Allocations: 3}}
	r.reload(t)
	if _, err := r.reserveHost(t, "ann"); problem(err) != http.StatusForbidden {
		t.Errorf("the banned player, after a reload: %v", err)
	}
	if got := p.questions(); got != "ann bob" {
		t.Errorf("the program was asked about %q", got)
	}
}

// TestBanBehindProxy: a ban is of the address that a trusted proxy reports, and never of the proxy.
func TestBanBehindProxy(t *testing.T) {
	t.Parallel()
	c := local()
	c.TrustedProxies = []config.Network{network("127.0.0.0/8")}
	r := start(t, options(c, Serve))
	r.ban(t, "prefix=198.51.100.0/24")
	r.ban(t, "prefix=2001:db8::1")
	r.ban(t, "prefix=127.0.0.1")
	for from, want := range map[string]int{
		"198.51.100.7": http.StatusForbidden, "2001:db8:0:ff::2": http.StatusForbidden, "198.51.101.7": 0, "2001:db8:0:100::1": 0,
		"198.51.101.7, 198.51.100.7": http.StatusForbidden, "198.51.100.7, 198.51.101.7": 0, // The client wrote the first entry.
	} {
		if _, err := r.callerFrom(from).Allocate(t.Context(), api.AllocateRequest{MaxConnections: 1}); problem(err) != want {
			t.Errorf("from %q: %v", from, err)
		}
	}
}

// TestFleetHooks: with one file of settings at all processes, the program is asked once for each reservation, and
// hears once of each event.
func TestFleetHooks(t *testing.T) {
	t.Parallel()
	p, set := startProgram(t)
	k := newFleet(t)
	o := k.relayOptions(1, "eu")
	set(&o.Config)
	start(t, o)
	c := k.settings("api", rpc.Request{Role: rpc.RoleAPI})
	set(&c)
	a := start(t, options(c, API))
	testkit.Within(t, time.Minute, "the relay", func() bool { return len(a.frontEnd.fleet.Nodes()) == 1 })
	allocated, err := a.caller(secret).Allocate(t.Context(), api.AllocateRequest{MaxConnections: 2, Player: "ann"})
	if err != nil {
		t.Fatal(err)
	}
	code, err := a.caller(secret).JoinCode(t.Context(), allocated.AllocationID)
	if err != nil {
		t.Fatal(err)
	}
	joined, err := a.caller(secret).JoinFor(t.Context(), api.JoinRequest{JoinCode: code, Player: "bob"})
	if err != nil {
		t.Fatal(err)
	}
	host, errHost := client.TicketFrom(allocated)
	joiner, errJoiner := client.TicketFrom(joined)
	if errHost != nil || errJoiner != nil {
		t.Fatal(errHost, errJoiner)
	}
	play(t, host, joiner, func() {})
	testkit.Within(t, time.Minute, "all events", func() bool {
		return len(p.of(hooks.Ended, "")) >= 2 && len(p.of(hooks.Joined, "")) >= 1 && len(p.of(hooks.Bound, "")) >= 2 &&
			len(p.of(hooks.Allocated, "")) >= 2
	})
	for _, kind := range []hooks.Type{hooks.Allocated, hooks.Bound, hooks.Ended} {
		for id, player := range map[string]string{host.ID.String(): "ann", joiner.ID.String(): "bob"} {
			if all := p.of(kind, id); len(all) != 1 || kind != hooks.Bound && (all[0].Player != player || all[0].Project != "game") {
				t.Errorf("%s of %s: %+v", kind, player, all)
			}
		}
	}
	if got := p.questions(); got != "ann bob" {
		t.Errorf("the program was asked about %q", got)
	}
}

// TestFleetReload: an API process gets other tokens, and a relay allows captures, without a restart.
func TestFleetReload(t *testing.T) {
	t.Parallel()
	k := newFleet(t)
	begin := func(o Options) (r running, file *config.Config) {
		file = new(o.Config)
		o.Reload = func() (config.Loaded, error) { return config.Loaded{Config: *file}, nil }
		return start(t, o), file
	}
	relay, ofRelay := begin(k.relayOptions(1, "eu"))
	a, ofAPI := begin(options(k.settings("api", rpc.Request{Role: rpc.RoleAPI}), API))
	testkit.Within(t, time.Minute, "the relay", func() bool { return len(a.frontEnd.fleet.Nodes()) == 1 })
	host, _ := hostIn(t, a, "eu")
	capture := func(want int) {
		t.Helper()
		if status, body := a.operate(t, "POST", "/allocations/"+host.AllocationID+"/capture?seconds=1"); status != want {
			t.Errorf("a capture: %d %.200s", status, body)
		}
	}
	capture(http.StatusConflict)
	ofRelay.Capture = true
	ofAPI.Tokens = []config.Token{{Secret: otherSecret, Project: "game", Environment: "test", Kind: "server"}}
	for _, r := range []running{relay, a} {
		if done, err := r.settings.Reload(t.Context()); err != nil || len(done.Changed) != 1 {
			t.Errorf("%+v, %v", done, err)
		}
	}
	capture(http.StatusOK)
	if allowed(t, a, secret) || !allowed(t, a, otherSecret) {
		t.Error("the old token is let in, or the new one is not")
	}
}
