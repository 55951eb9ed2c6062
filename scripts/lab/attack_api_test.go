//go:build lab && linux

package lab

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/ferryrelay/ferry/alloc/api"
	"github.com/ferryrelay/ferry/internal/fleet/operator"
)

// extend appends a token of a project for each name, and more settings, to the file of
// a relay. The secret of a token is secretOf its name.
func (c *RelayConfig) extend(kind string, projects map[string]string, settings string) {
	var text strings.Builder
	for name, project := range projects {
		fmt.Fprintf(&text, "  - secret: %s\n    project: %s\n    environment: test\n    player: %s\n    kind: %s\n", secretOf(name), project, name, kind)
	}
	text.WriteString(settings)
	path := filepath.Join(c.Dir, "ferry.yaml")
	c.Prepare = func() error {
		f, err := os.OpenFile(path, os.O_APPEND|os.O_WRONLY, 0)
		if err != nil {
			return err
		}
		_, err = f.WriteString(text.String())
		return errors.Join(err, f.Close())
	}
}

func secretOf(name string) string { return "laboratory-attack-token-" + name }

// statusOf returns the status of a failed API call; 0 if it succeeded or had no answer.
func statusOf(err error) int {
	var problem *api.Problem
	if errors.As(err, &problem) {
		return problem.Status
	}
	return 0
}

// TestAttackQuotas verifies that quotas and usage count the allocations of a project
// although more than 1,023 others have come and gone.
func TestAttackQuotas(t *testing.T) {
	const others = 1100
	quotas := map[string]int{"late50": 50, "late5": 5}
	projects := map[string]string{"late50": "late50", "late5": "late5"}
	for i := range others {
		name := fmt.Sprintf("other%d", i)
		projects[name] = name
	}
	l := newLab(t, func(c *RelayConfig) {
		c.Flags = []string{"--bind-timeout", "1m"}
		c.extend("server", projects, "quotas:\n  - project: late50\n    allocations: 50\n  - project: late5\n    allocations: 5\n")
	})
	calls := l.relay.API(l.net.Clients, 0)
	var ended []api.Allocation
	for i := range others {
		calls.Token = secretOf(fmt.Sprintf("other%d", i))
		a, err := calls.Allocate(t.Context(), api.AllocateRequest{MaxConnections: 1})
		if err != nil {
			t.Fatal(err)
		}
		ended = append(ended, a)
	}
	l.endAllocations(ended)
	got := map[string]int{}
	for project, quota := range quotas {
		calls.Token = secretOf(project)
		for range 2*quota + 10 {
			switch _, err := calls.Allocate(t.Context(), api.AllocateRequest{MaxConnections: 1}); {
			case err == nil:
				got[project]++
			case statusOf(err) == 0:
				t.Fatal(err)
			}
		}
	}
	reported := map[string]int{}
	for _, p := range l.usage() {
		reported[p.Project] += p.Allocations
	}
	r := attackResult{attack: "projects that come and go", rate: fmt.Sprintf("%d projects", others)}
	for _, project := range []string{"late50", "late5"} {
		r.honest += fmt.Sprintf("quota %d: %d made, %d reported; ", quotas[project], got[project], reported[project])
		r.damage = r.damage || got[project] != quotas[project] || reported[project] != quotas[project]
	}
	r.honest = strings.TrimSuffix(r.honest, "; ")
	recordAttack(t, r)
}

func (l *lab) usage() []operator.ProjectUsage {
	l.Helper()
	resp, err := l.relay.admin.Get("http://" + adminAddr + "/usage")
	if err != nil {
		l.Fatal(err)
	}
	defer resp.Body.Close()
	var u operator.Usage
	if err := json.NewDecoder(resp.Body).Decode(&u); err != nil {
		l.Fatal(err)
	}
	return u.Projects
}

type forwardedFor struct {
	http.RoundTripper
	value string
}

func (f forwardedFor) RoundTrip(r *http.Request) (*http.Response, error) {
	r = r.Clone(r.Context())
	r.Header.Set("X-Forwarded-For", f.value)
	return f.RoundTripper.RoundTrip(r)
}

// as returns a caller with the token of a name at an address; no token if the name is
// empty. forwarded is its X-Forwarded-For header; empty: none.
func (l *lab) as(name string, at netip.Addr, forwarded string) *api.Client {
	c := l.caller(at, 5*time.Second).Client
	c.Token = ""
	if name != "" {
		c.Token = secretOf(name)
	}
	if forwarded != "" {
		c.HTTP.Transport = forwardedFor{c.HTTP.Transport, forwarded}
	}
	return c
}

const (
	apiPlayers = 8 // of each tenant
	// failedJoins is the limit of a player's unknown join codes per minute.
	failedJoins = 10
	// failedJoinsPerAddress is more than the unknown codes that the players of a tenant
	// may try at one address in the time of a test, and fewer than apiPlayers could.
	failedJoinsPerAddress = 60
	unknownCode           = "BCDFGH"
)

// apiTenants returns the names of tokens by project: one token for each of some players.
func apiTenants(projects ...string) map[string]string {
	all := map[string]string{}
	for _, p := range projects {
		for i := range apiPlayers {
			all[fmt.Sprintf("%s-%d", p, i)] = p
		}
	}
	return all
}

// guess tries unknown join codes with the first players of a tenant, as many as each
// may, and returns how many were looked up.
func (l *lab) guess(project string, players int, at netip.Addr, forwarded string) (looked int) {
	l.Helper()
	for i := range players {
		c := l.as(fmt.Sprintf("%s-%d", project, i), at, forwarded)
		for range failedJoins {
			switch _, err := c.Join(l.Context(), unknownCode); statusOf(err) {
			case http.StatusNotFound:
				looked++
			case http.StatusTooManyRequests:
			default:
				l.Fatal(err)
			}
		}
	}
	return looked
}

func (l *lab) joinsOf(project string, players int, at netip.Addr, forwarded string) (served int) {
	l.Helper()
	host := l.as(fmt.Sprintf("%s-0", project), FirstClient.Next(), "")
	a, err := host.Allocate(l.Context(), api.AllocateRequest{MaxConnections: apiPlayers})
	if err != nil {
		l.Fatal(err)
	}
	code, err := host.JoinCode(l.Context(), a.AllocationID)
	if err != nil {
		l.Fatal(err)
	}
	for i := range players {
		_, err := l.as(fmt.Sprintf("%s-%d", project, apiPlayers-1-i), at, forwarded).Join(l.Context(), code)
		switch {
		case err == nil:
			served++
		case statusOf(err) != http.StatusTooManyRequests:
			l.Fatal(err)
		}
	}
	return served
}

func servedResult(attack, rate string, served, players int) attackResult {
	return attackResult{attack: attack, rate: rate, honest: fmt.Sprintf("%d of %d joins served", served, players), damage: served < players}
}

// apiNeighbours is the number of players at the address of an attacker.
const apiNeighbours = 4

// TestAttackAPINoToken verifies that calls without a valid token do not refuse a player
// at the same address.
func TestAttackAPINoToken(t *testing.T) {
	const calls = 200 // more than an address may make per minute
	l := newLab(t, func(c *RelayConfig) { c.extend("player", apiTenants("game"), "") })
	refused := 0
	for _, name := range []string{"", "unknown"} {
		c := l.as(name, FirstClient, "")
		for range calls {
			if _, err := c.Allocate(t.Context(), api.AllocateRequest{MaxConnections: 1}); statusOf(err) == http.StatusTooManyRequests {
				refused++
			}
		}
	}
	if refused == 0 {
		t.Error("no call was refused: this run decides nothing")
	}
	served := l.joinsOf("game", apiNeighbours, FirstClient, "")
	recordAttack(t, servedResult("API calls without a valid token", fmt.Sprintf("%d calls, %d refused", 2*calls, refused),
		served, apiNeighbours))
}

// TestAttackAPICodes verifies that wrong join codes of one tenant do not refuse a player
// of another at the same address.
func TestAttackAPICodes(t *testing.T) {
	l := newLab(t, func(c *RelayConfig) { c.extend("player", apiTenants("attacker", "game"), "") })
	looked := l.guess("attacker", 1, FirstClient, "")
	served := l.joinsOf("game", apiNeighbours, FirstClient, "")
	recordAttack(t, servedResult("wrong join codes of another tenant", fmt.Sprintf("%d codes", looked), served, apiNeighbours))
}

// TestAttackAPIForwarded verifies that an X-Forwarded-For header that cannot be parsed
// lifts no limit, and that one with a port is the address of its client.
func TestAttackAPIForwarded(t *testing.T) {
	proxy := firstAttacker
	l := newLab(t, func(c *RelayConfig) {
		c.Flags = []string{"--trusted-proxies", proxy.String()}
		c.extend("player", apiTenants("attacker", "game"), "")
	})
	for _, a := range []struct{ name, project, header string }{
		{"garbage", "attacker", "unknown"}, {"IP:PORT", "game", "192.0.2.10:1234"},
	} {
		looked := l.guess(a.project, apiPlayers-1, proxy, a.header)
		recordAttack(t, attackResult{
			attack: "wrong join codes, X-Forwarded-For: " + a.name, rate: fmt.Sprintf("%d codes of %d players",
				failedJoins*(apiPlayers-1), apiPlayers-1),
			honest: fmt.Sprintf("%d looked up, limit %d", looked, failedJoinsPerAddress), damage: looked > failedJoinsPerAddress,
		})
	}
	served := l.joinsOf("game", 1, proxy, "192.0.2.11:1234")
	recordAttack(t, servedResult("the same, a neighbour at the proxy", "another IP:PORT", served, 1))
}
