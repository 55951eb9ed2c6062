package redisstore

import (
	"bytes"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/ferryrelay/ferry/alloc"
	"github.com/ferryrelay/ferry/internal/fleet/placement"
	"github.com/ferryrelay/ferry/internal/test/redistest"
	"github.com/ferryrelay/ferry/proto"
)

// sealText returns the seal of a statement of this fleet that ends at that time.
func sealText(t *testing.T, s *Store, st statement, until time.Time) string {
	t.Helper()
	cert, signature, err := s.seals.signer.Sign(st.bytes(until.UnixMilli()))
	if err != nil {
		t.Fatal(err)
	}
	if err := s.seals.publish(t.Context(), cert, time.Minute); err != nil {
		t.Fatal(err)
	}
	return seal{until: until.UnixMilli(), key: cert.Key, signature: signature}.String()
}

// TestSeals: an entry counts only under its key, with its value, until its end, and if an
// author with that right has signed it. Every other one counts as absent, is counted,
// and is logged once a minute.
func TestSeals(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	var log bytes.Buffer
	s := open(t, Config{URL: server.URL, Timeout: testTimeout, Logger: slog.New(slog.NewTextHandler(&log, nil))})
	ctx := t.Context()
	code, host := hostCode{tenant.Hash(), codeText(1)}, hostID(1)
	home := placement.Home{Relay: alloc.RelayID{1}, Boot: 1}
	hour := time.Now().Add(time.Hour)
	good := sealText(t, s, testKeys.codeStatement(code, host), hour)
	forged := map[string]string{
		"no seal":          "",
		"noise":            "1.2.3",
		"another end":      strings.Replace(good, good[:13], fmt.Sprint(hour.Add(time.Hour).UnixMilli()), 1),
		"another key":      sealText(t, s, testKeys.codeStatement(hostCode{tenant.Hash(), codeText(2)}, host), hour),
		"another tenant":   sealText(t, s, testKeys.codeStatement(hostCode{1, codeText(1)}, host), hour),
		"another host":     sealText(t, s, testKeys.codeStatement(code, hostID(2)), hour),
		"another class":    sealText(t, s, testKeys.homeStatement(host, home), hour),
		"another fleet":    sealText(t, s, statement{"fleet2" + testKeys.code(code.tenant, code.code), host.String()}, hour),
		"has ended":        sealText(t, s, testKeys.codeStatement(code, host), time.Now().Add(-clockTolerance-time.Second)),
		"an unknown key":   strings.Replace(good, strings.Split(good, ".")[1], "AAAAAAAAAAAAAAAA", 1),
		"a changed one":    good[:len(good)-8] + "AAAAAAAA",
		"a longer one":     good + "AAAA",
		"an oversized one": good + strings.Repeat("A", maxSeal),
	}
	put := func(sealed string) {
		t.Helper()
		server.Do(fmt.Sprintf("SET %s %s:1:%s", testKeys.code(code.tenant, code.code), host, sealed))
	}
	counted := s.Stats().Unverified
	for name, sealed := range forged {
		put(sealed)
		if got, err := s.Directory.HostOf(ctx, tenant, code.code); !errors.Is(err, alloc.ErrCodeNotFound) {
			t.Errorf("%s: HostOf = %v, %v", name, got, err)
		}
	}
	if n := s.Stats().Unverified - counted; n != uint64(len(forged)) {
		t.Errorf("%d entries were counted, want %d", n, len(forged))
	}
	if n := strings.Count(log.String(), "counts as absent"); n != 1 || strings.Contains(log.String(), code.code) {
		t.Errorf("%d lines, or the code, in the log: %s", n, log.String())
	}
	slow := sealText(t, s, testKeys.codeStatement(code, host), time.Now().Add(-clockTolerance+time.Minute))
	for name, sealed := range map[string]string{"good": good, "of a slow clock": slow} {
		put(sealed)
		if got, err := s.Directory.HostOf(ctx, tenant, code.code); got != host || err != nil {
			t.Errorf("%s: HostOf = %v, %v", name, got, err)
		}
	}

	// A home by another relay, and an announcement by an API process.
	text, err := encodeNode(placement.Node{Region: "north"})
	if err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]claim{
		"home by another relay":   {statement: statement{"x{nodes}:" + alloc.RelayID{9}.String(), "home"}, relay: home.Relay, api: true},
		"announcement by the API": {statement: statement{testKeys.nodes(), string(text)}, relay: home.Relay},
		"announcement by another": {statement: testKeys.nodeStatement(alloc.RelayID{9}, 1, 1, text), relay: home.Relay},
	} {
		c.text = sealText(t, s, c.statement, hour)
		claims := []claim{c}
		if err := s.seals.verify(ctx, claims); err != nil || claims[0].ok {
			t.Errorf("%s is verified: %v", name, err)
		}
	}
}

// TestForgedEntriesAreReplaced: no forged entry keeps a relay from writing its own: an
// older host with its code, a later announcement of its run, another home.
func TestForgedEntriesAreReplaced(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	s := open(t, Config{URL: server.URL, Timeout: testTimeout})
	node, entries := relayOf(1, 1)
	code := testKeys.code(tenant.Hash(), entries[0].Code)
	for _, evil := range []proto.AllocationID{hostID(77), entries[0].Host} {
		server.Do(fmt.Sprintf("SET %s %s:0:x", code, evil))
		server.Do(fmt.Sprintf("HSET %s h %s:x c %s:x", testKeys.host(entries[0].Host), homeText(placement.Home{Relay: alloc.RelayID{9}, Boot: 1}),
			hostCode{tenant.Hash(), codeText(99)}))
		server.Do(fmt.Sprintf("HSET %s %s 1:%s:9007199254740000:x:{}", testKeys.nodes(), node.Relay, bootText(node.Boot)))
		if _, err := s.Registry.Announce(t.Context(), node); err != nil {
			t.Fatal(err)
		}
		mustRenew(t, s, homeAt(node), entries)
		wantAll(t, s, homeAt(node), entries)
		if nodes, err := s.Registry.Nodes(t.Context()); err != nil || len(nodes) != 1 || nodes[0].Region != "north" {
			t.Errorf("Nodes = %+v, %v", nodes, err)
		}
	}
}

// TestForgedCodeIsNotAdopted: a code that was written into the entry of a host gets no
// signature by a relay that holds the host, nor by an API process that reads it.
func TestForgedCodeIsNotAdopted(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	s := open(t, Config{URL: server.URL, Timeout: testTimeout})
	node, entries := relayOf(1, 1)
	entries[0].Code = "" // The relay knows none.
	stolen := codeText(5)
	forge := func() {
		t.Helper()
		server.Do(fmt.Sprintf("HSET %s c %s:1.AAAAAAAAAAAAAAAA.AAAA", testKeys.host(entries[0].Host), hostCode{tenant.Hash(), stolen}))
	}
	forge()
	mustRenew(t, s, homeAt(node), entries)
	if host, err := s.Directory.HostOf(t.Context(), tenant, stolen); !errors.Is(err, alloc.ErrCodeNotFound) {
		t.Errorf("the relay has signed a forged code: it leads to %v, %v", host, err)
	}
	forge()
	if code, err := s.Directory.CodeOf(t.Context(), tenant, entries[0].Host); !errors.Is(err, alloc.ErrCodeNotFound) {
		t.Errorf("the API has signed a forged code: %q, %v", code, err)
	}
	if host, err := s.Directory.HostOf(t.Context(), tenant, stolen); !errors.Is(err, alloc.ErrCodeNotFound) {
		t.Errorf("a forged code leads to %v, %v", host, err)
	}
}

// TestMoveReplacesForgedEntries: no forged entry keeps a code from its next host, and an
// entry with a valid seal does.
func TestMoveReplacesForgedEntries(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	s := open(t, Config{URL: server.URL, Timeout: testTimeout})
	code := hostCode{tenant.Hash(), codeText(1)}
	from, third := hostID(1), hostID(2)
	hour := time.Now().Add(time.Hour)
	for n, entry := range []struct {
		host   proto.AllocationID
		sealed string
		moves  bool
	}{
		{third, "x", true},
		{third, sealText(t, s, testKeys.codeStatement(code, from), hour), true},
		{third, sealText(t, s, testKeys.codeStatement(code, third), hour), false},
		{from, "x", true},
		{from, sealText(t, s, testKeys.codeStatement(code, from), hour), true},
	} {
		to := hostID(10 + n)
		server.Do(fmt.Sprintf("SET %s %s:1:%s", testKeys.code(code.tenant, code.code), entry.host, entry.sealed))
		server.Do(fmt.Sprintf("HSET %s c %s:x", testKeys.host(to), hostCode{tenant.Hash(), codeText(99)}))
		if moved, err := s.Directory.MoveCode(t.Context(), tenant.Hash(), code.code, from, to); moved != entry.moves || err != nil {
			t.Errorf("entry %d: MoveCode = %v, %v", n, moved, err)
		}
		want := entry.host
		if entry.moves {
			want = to
		}
		if got, err := s.Directory.HostOf(t.Context(), tenant, code.code); got != want || err != nil {
			t.Errorf("entry %d: HostOf = %v, %v; want %v", n, got, err, want)
		}
		if got, err := s.Directory.CodeOf(t.Context(), tenant, to); (got == code.code) != entry.moves || (err == nil) != entry.moves {
			t.Errorf("entry %d: CodeOf the new host = %q, %v", n, got, err)
		}
	}
}

// TestMoveAfterHalfAMove: a process that fails after it has put the code at the new host, or
// before it has taken it from the former one, leaves entries that disagree. The code leads to
// one host, and the next call about it removes the rest.
func TestMoveAfterHalfAMove(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	s := open(t, Config{URL: server.URL, Timeout: testTimeout})
	code := hostCode{tenant.Hash(), codeText(1)}
	from, to := hostID(1), hostID(2)
	if ok, err := s.Directory.PutCode(t.Context(), tenant, code.code, from); !ok || err != nil {
		t.Fatal(ok, err)
	}
	entry := func(host proto.AllocationID) string {
		return code.String() + ":" + sealText(t, s, testKeys.codeStatement(code, host), time.Now().Add(time.Hour))
	}
	server.Do(fmt.Sprintf("HSET %s c %s", testKeys.host(to), entry(to)))
	if got, err := s.Directory.CodeOf(t.Context(), tenant, from); got != code.code || err != nil {
		t.Errorf("CodeOf the former host before the move: %q, %v", got, err)
	}
	for range 2 { // The second one is late.
		if _, err := s.Directory.MoveCode(t.Context(), tenant.Hash(), code.code, from, to); err != nil {
			t.Fatal(err)
		}
		server.Do(fmt.Sprintf("HSET %s c %s", testKeys.host(from), entry(from)))
		home := placement.Home{Relay: alloc.RelayID{1}, Boot: 1}
		mustRenew(t, s, home, []placement.HostEntry{{Host: from, Tenant: tenant.Hash(), Since: time.Now().Add(-time.Hour)}}, from)
		server.Do(fmt.Sprintf("HSET %s c %s", testKeys.host(from), entry(from)))
		if got, err := s.Directory.CodeOf(t.Context(), tenant, from); !errors.Is(err, alloc.ErrCodeNotFound) {
			t.Errorf("CodeOf the former host: %q, %v", got, err)
		}
		if got, err := s.Directory.HostOf(t.Context(), tenant, code.code); got != to || err != nil {
			t.Errorf("HostOf = %v, %v", got, err)
		}
	}
}
