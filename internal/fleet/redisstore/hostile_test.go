package redisstore

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/ferryrelay/ferry/alloc"
	"github.com/ferryrelay/ferry/internal/fleet/placement"
	"github.com/ferryrelay/ferry/internal/test/redistest"
)

// TestHostileValues: no value that the password of a relay can write lasts. When the authors of the entries have
// written once more, all of them are there, and the breaker has stayed closed.
func TestHostileValues(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	k := keys{"PREFIX:"}
	node, entries := relayOf(1, 2)
	scope, far := k.lease("players"), "99999999999999"
	for name, attack := range map[string]string{
		"relays of another type":        "SET " + k.nodes() + " x",
		"ends of relays of another":     "SET " + k.nodesEnd() + " x",
		"a code of another type":        "HSET " + k.code(tenant.Hash(), entries[0].Code) + " x y",
		"list of codes of another type": "SET " + k.codes(tenant.Hash()) + " x",
		"a host of another type":        "SET " + k.host(entries[0].Host) + " x",
		"leases of another type":        "SET " + scope + " x",
		"API processes of another type": "SET " + k.apis() + " x",
		"a lease that never ends":       "HSET " + scope + " evil 4398046511104:" + far,
		"a lease of too much":           "HSET " + scope + " evil " + far + far + ":" + far,
		"codes that never end":          "ZADD " + k.codes(tenant.Hash()) + " " + far + " A " + far + " B",
		"an API process of the future":  "HSET " + k.apis() + " 00000000000000aa " + far + ":x:{}",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			prefix := strings.ReplaceAll(name, " ", "-") + ":"
			s := open(t, Config{URL: server.URL, Prefix: prefix, Timeout: testTimeout})
			ctx := t.Context()
			write := func() (errs []error) {
				_, announced := s.Registry.Announce(ctx, node)
				_, renewed := s.Directory.Renew(ctx, homeAt(node), entries)
				_, api := s.APIs.Announce(ctx, placement.APIProcess{Boot: 1})
				return []error{announced, renewed, api, lease(ctx, s, "players", "relay", 5, time.Minute)}
			}
			if err := errors.Join(write()...); err != nil {
				t.Fatal(err)
			}
			server.Do("DEL " + strings.ReplaceAll(k.code(tenant.Hash(), entries[0].Code), k.prefix, prefix))
			if got := server.Do(strings.ReplaceAll(attack, k.prefix, prefix)); strings.HasPrefix(got, "-") {
				t.Fatal(got)
			}
			for range 2 * failuresAlone { // As players and API processes read.
				_, _ = s.Registry.Nodes(ctx)
				_, _ = s.Leases.Used(ctx, "players")
				_, _ = s.Directory.HostOf(ctx, tenant, entries[0].Code)
				_, _ = s.Directory.HomeOf(ctx, entries[0].Host)
			}
			if err := errors.Join(write()...); err != nil {
				t.Errorf("entries are written again: %v", err)
			}
			wantAll(t, s, homeAt(node), entries)
			wantUsed(t, s, "players", 5)
			if nodes, err := s.Registry.Nodes(ctx); len(nodes) != 1 || err != nil {
				t.Errorf("Nodes = %v, %v", nodes, err)
			}
			if all, err := s.APIs.Announce(ctx, placement.APIProcess{Boot: 1}); len(all) != 1 || err != nil {
				t.Errorf("API processes: %v, %v", all, err)
			}
			if ok, err := s.Directory.PutCode(ctx, tenant, codeText(1), hostID(1)); !ok || err != nil {
				t.Errorf("PutCode = %v, %v", ok, err)
			}
			// The list of codes may have been lost with the code.
			if err := errors.Join(write()...); err != nil {
				t.Error(err)
			}
			if _, n, err := s.Directory.Codes(ctx, tenant, hostID(1)); n != len(entries)+1 || err != nil {
				t.Errorf("Codes = %d, %v", n, err)
			}
			if st := s.Stats(); st.Opened > 0 {
				t.Errorf("the breaker has opened %d times", st.Opened)
			}
		})
	}
}

// TestFutureAnnouncement: a time of the future, which no signature covers, lets no dead relay live.
func TestFutureAnnouncement(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	s := open(t, Config{URL: server.URL, Timeout: testTimeout})
	node, _ := relayOf(1, 1)
	wantIntact(t, s, node, false)
	entry := server.Do("HGET " + testKeys.nodes() + " " + node.Relay.String())
	_, entry, _ = strings.Cut(entry, "\r\n")
	_, rest, _ := strings.Cut(entry, ":")
	for _, later := range []time.Duration{placement.DeadAfter + time.Minute, 100 * 365 * 24 * time.Hour} {
		at := time.Now().Add(later).UnixMilli()
		if got := server.Do(fmt.Sprintf("HSET %s %s '%d:%s'", testKeys.nodes(), node.Relay, at, rest)); got != ":0" {
			t.Fatal(got)
		}
		nodes, err := s.Registry.Nodes(t.Context())
		if err != nil || len(nodes) > 0 && nodes[0].Age <= placement.DeadAfter {
			t.Errorf("%v later: %+v, %v", later, nodes, err)
		}
	}
}

// TestDamagedCodeOfHost: a code in the entry of a host that is none keeps the host from no code.
func TestDamagedCodeOfHost(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	s := open(t, Config{URL: server.URL, Timeout: testTimeout})
	node, entries := relayOf(1, 1)
	host := entries[0].Host
	entries[0].Code = ""
	for n, damaged := range []string{"x", "x:", ":", "x:y", "x:y:z", "x:y:", "::"} {
		for by, release := range map[string]func(){
			"renew":  func() { mustRenew(t, s, homeAt(node), entries) },
			"CodeOf": func() { _, _ = s.Directory.CodeOf(t.Context(), tenant, host) },
		} {
			mustRenew(t, s, homeAt(node), entries)
			server.Do("HSET " + testKeys.host(host) + " c " + damaged)
			release()
			if code, err := s.Directory.CodeOf(t.Context(), tenant, host); !errors.Is(err, alloc.ErrCodeNotFound) {
				t.Errorf("%q, %s: CodeOf = %q, %v", damaged, by, code, err)
			}
			code := codeText(100 + 2*n + len(by)%2)
			if ok, err := s.Directory.PutCode(t.Context(), tenant, code, host); !ok || err != nil {
				t.Errorf("%q, %s: PutCode = %v, %v", damaged, by, ok, err)
			}
			s.Directory.Forget(host)
			server.Do("DEL " + testKeys.host(host))
		}
	}
}
