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
	"github.com/ferryrelay/ferry/internal/test/testkit"
)

// TestOldSnapshot: a store that goes on from a copy of three hours ago, whose entries never expire,
// has no relay and no code, until the relays have announced themselves and their hosts again.
func TestOldSnapshot(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	s := open(t, Config{URL: server.URL, Timeout: testTimeout})
	ctx := t.Context()
	n := placement.Node{Relay: alloc.RelayID{1}, Boot: 1, Region: "north", RecoverFor: time.Minute}
	home := placement.Home{Relay: n.Relay, Boot: n.Boot}
	announce := func(want bool) {
		t.Helper()
		if intact, err := s.Registry.Announce(ctx, n); err != nil || intact != want {
			t.Errorf("Announce = %v, %v; want %v", intact, err, want)
		}
	}
	announce(false)
	announce(true)

	// The copy is of what the same relay wrote then.
	then := time.Now().Add(-3 * time.Hour)
	sealed := func(st statement) string {
		t.Helper()
		until := then.Add(placement.HostTTL + sealStep).Truncate(sealStep).UnixMilli()
		c, signature, err := s.seals.signer.Sign(st.bytes(until))
		if err != nil {
			t.Fatal(err)
		}
		return seal{until: until, key: c.Key, signature: signature}.String()
	}
	text := `{"region":"north","seats":100,"recoverMs":60000}`
	server.Do("FLUSHALL")
	server.Do(fmt.Sprintf("HSET %s %v '%d:%s:1:%s:%s'", testKeys.nodes(), n.Relay, then.UnixMilli(), bootText(n.Boot),
		sealed(testKeys.nodeStatement(n.Relay, n.Boot, 1, []byte(text))), text))
	ended, live := hostCode{tenant.Hash(), codeText(1)}, hostCode{tenant.Hash(), codeText(2)}
	for i, c := range []hostCode{ended, live} {
		id := hostID(i + 1)
		server.Do(fmt.Sprintf("SET %s %v:%d:%s", testKeys.code(c.tenant, c.code), id, then.UnixMilli(), sealed(testKeys.codeStatement(c, id))))
		server.Do(fmt.Sprintf("HSET %s h %s:%s c %v:%s", testKeys.host(id), homeText(home), sealed(testKeys.homeStatement(id, home)), c,
			sealed(testKeys.codeStatement(c, id))))
	}
	if reply := server.Do("SAVE"); reply != "+OK" {
		t.Fatal(reply)
	}
	server.Kill()
	server.Restart()
	if got := server.Do("DBSIZE"); got != ":5" {
		t.Fatalf("the copy has %s keys, want 5", got)
	}
	testkit.NoProblemWithin(t, time.Minute, "no relay is listed", func() string {
		seen, err := s.Registry.Nodes(ctx)
		return strings.Trim(fmt.Sprint(seen, err), "[]<nil> ")
	})
	for _, c := range []hostCode{ended, live} {
		if host, err := s.Directory.HostOf(ctx, tenant, c.code); !errors.Is(err, alloc.ErrCodeNotFound) {
			t.Errorf("a code of three hours ago leads to %v, %v", host, err)
		}
	}
	if got, err := s.Directory.HomeOf(ctx, hostID(1)); err == nil {
		t.Errorf("a host of three hours ago is at %v", got)
	}
	announce(false)
	if seen, err := s.Registry.Nodes(ctx); err != nil || len(seen) != 1 || seen[0].Age > time.Minute {
		t.Errorf("after its announcement: %v, %v", seen, err)
	}
	entries := []placement.HostEntry{{Host: hostID(2), Tenant: tenant.Hash(), Code: live.code, Since: then}}
	if lost, err := s.Directory.Renew(ctx, home, entries); len(lost) > 0 || err != nil {
		t.Error(lost, err)
	}
	if got, err := s.Directory.HostOf(ctx, tenant, live.code); got != hostID(2) || err != nil {
		t.Errorf("the code of a live host leads to %v, %v", got, err)
	}
	if got, err := s.Directory.HostOf(ctx, tenant, ended.code); !errors.Is(err, alloc.ErrCodeNotFound) {
		t.Errorf("a code of three hours ago leads to %v, %v", got, err)
	}
}
