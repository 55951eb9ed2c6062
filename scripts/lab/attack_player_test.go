//go:build lab && linux

package lab

import (
	"context"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/ferryrelay/ferry/alloc"
	"github.com/ferryrelay/ferry/alloc/api"
	"github.com/ferryrelay/ferry/internal/server/players/identity"
)

// playerSecret signs the tokens of players, who each are one player to the relay.
var playerSecret = []byte(strings.Repeat("attacker", 4))

// trustDevelopment makes the relay accept tokens with this key.
func (c *RelayConfig) trustDevelopment(key []byte) {
	file := filepath.Join(c.Dir, "issuer-key")
	if err := os.WriteFile(file, key, 0o600); err != nil {
		panic(err)
	}
	c.YAML = fmt.Sprintf("issuers:\n  - preset: development\n    hs256_key_file: %q\n", file)
}

// issueTokens makes the relay accept the tokens of playerCalls, and wait for the players, which
// send nothing.
func (c *RelayConfig) issueTokens() {
	c.trustDevelopment(playerSecret)
	c.Flags = append(c.Flags, "--player-per-minute", "100000", "--idle-timeout", "5m", "--host-alone-timeout", "5m",
		"--bind-timeout", "1m")
}

func (l *lab) playerCalls(project, player string) *api.Client {
	l.Helper()
	token, err := identity.Mint(identity.MintRequest{Secret: playerSecret, Identity: identity.Identity{
		Tenant: alloc.Tenant{Project: project, Environment: "test"}, Player: player,
	}, Valid: time.Hour, Now: time.Now()})
	if err != nil {
		l.Fatal(err)
	}
	calls := l.relay.API(l.net.Clients, 0)
	calls.Token = token
	return calls
}

// hold binds the allocation of a player that stays and sends nothing more.
func (l *lab) hold(transport string, from netip.Addr, a api.Allocation) bool {
	ctx, cancel := context.WithTimeout(l.Context(), joinWithin)
	defer cancel()
	_, err := l.join(ctx, transport, netip.AddrPortFrom(from, 0), a)
	return err == nil
}

// TestAttackPlayerHosts verifies that one token cannot hold the seats of a relay.
func TestAttackPlayerHosts(t *testing.T) {
	const seats, players, tries = 2000, 100, 60
	l := newLab(t, func(c *RelayConfig) {
		c.issueTokens()
		c.Flags = append(c.Flags, "--max-seats", fmt.Sprint(seats))
	})
	attacker, held, refused := l.playerCalls("laboratory", "attacker"), 0, 0
	for range tries {
		a, err := attacker.Allocate(t.Context(), api.AllocateRequest{MaxConnections: players})
		switch {
		case statusOf(err) != 0:
			refused++
		case err != nil:
			t.Fatal(err)
		case l.hold("udp", firstAttacker, a):
			held++
		}
	}
	if held == 0 {
		t.Error("the attacker holds nothing: this run decides nothing")
	}
	honest := 0
	for i := range 4 {
		_, err := l.playerCalls("laboratory", fmt.Sprint("honest", i)).Allocate(t.Context(), api.AllocateRequest{MaxConnections: players})
		if err == nil {
			honest++
		}
	}
	recordAttack(t, attackResult{
		attack: "one token reserves hosts", rate: fmt.Sprintf("%d hosts of %d, %d refused", tries, players, refused),
		honest: fmt.Sprintf("%d of 4 hosts of others", honest), state: fmt.Sprintf("%d hosts, %d seats", held, held*(players+1)),
		damage: honest < 4 || held > 4,
	})
}

// TestAttackDTLSProject verifies that many tokens of one project do not keep the players of
// another out of the table of DTLS sessions.
func TestAttackDTLSProject(t *testing.T) {
	const tokens, hosts, joins = 20, 6, 10
	l := newLab(t, func(c *RelayConfig) {
		c.issueTokens()
		c.Flags = append(c.Flags, "--max-dtls-sessions", "256", "--player-seats-per-host", "0")
	})
	var mu sync.Mutex
	var all sync.WaitGroup
	held, refused := 0, map[int]int{}
	from := firstAttacker
	for i := range tokens {
		calls, at := l.playerCalls("attacker", fmt.Sprint(i)), from
		from = from.Next()
		all.Go(func() {
			code := ""
			for n := range hosts + joins {
				var a api.Allocation
				var err error
				if n < hosts {
					a, err = calls.Allocate(l.Context(), api.AllocateRequest{MaxConnections: joins})
				} else {
					a, err = calls.Join(l.Context(), code)
				}
				bound := err == nil && l.hold("dtls", at, a)
				if bound && code == "" {
					code, _ = calls.JoinCode(l.Context(), a.AllocationID)
				}
				mu.Lock()
				if bound {
					held++
				} else {
					refused[statusOf(err)]++
				}
				mu.Unlock()
			}
		})
	}
	all.Wait()
	if held < 200 {
		t.Errorf("the attackers hold %d sessions of 256: this run decides nothing", held)
	}
	j := l.honestJoins("dtls", playersFrom(FirstClient, 8)...)
	recordAttack(t, j.result("DTLS sessions of 20 tokens of a project", fmt.Sprintf("%d hosts and joins, refused by status %v",
		tokens*(hosts+joins), refused),
		fmt.Sprintf("%d of 256 sessions", held)))
}
