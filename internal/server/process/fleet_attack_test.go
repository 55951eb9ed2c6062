package process

import (
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/ferryrelay/ferry/alloc"
	"github.com/ferryrelay/ferry/internal/test/testkit"
)

// bulk returns the lines of a reply without those of the protocol.
func bulk(reply string) (lines []string) {
	for line := range strings.SplitSeq(reply, "\r\n") {
		if line != "" && line[0] != '*' && line[0] != '$' {
			lines = append(lines, line)
		}
	}
	return lines
}

// TestStolenStorePassword: with the password of the store alone, no attacker leads the
// players of a host to another host or relay. Forged entries count as absent until the
// relay of the host writes its own again.
func TestStolenStorePassword(t *testing.T) {
	t.Parallel()
	k := newFleet(t)
	k.relay(1, "eu")
	k.relay(2, "us")
	a := k.api()
	testkit.Within(t, time.Minute, "both regions", func() bool {
		all, err := a.caller(secret).Regions(t.Context())
		return err == nil && len(all) == 2
	})
	victim, code := hostIn(t, a, "eu")
	evil, evilCode := hostIn(t, a, "us")
	key := func(pattern string) string {
		t.Helper()
		keys := bulk(k.redis.Do("KEYS " + pattern))
		if len(keys) != 1 {
			t.Fatalf("KEYS %s: %q", pattern, keys)
		}
		return keys[0]
	}
	do := func(command string) []string {
		t.Helper()
		reply := k.redis.Do(command)
		if strings.HasPrefix(reply, "-") {
			t.Fatalf("%s: %s", command, reply)
		}
		return bulk(reply)
	}
	victimCode, victimHost := key("*:"+code), "ferry:host:"+victim.AllocationID
	genuine := do("GET " + victimCode)[0]
	joined := func() (string, error) {
		j, err := a.caller(secret).Join(t.Context(), code)
		return j.Region, err
	}
	if region, err := joined(); region != "eu" || err != nil {
		t.Fatal(region, err)
	}
	// refused reports whether a player was turned away with status while the store held
	// the forged entry: once the relay has written its own again, it is forged again.
	refused := func(forge, forged, read string, status int) bool {
		for {
			do(forge + " " + forged)
			region, err := joined()
			if problem(err) == status {
				return true
			}
			if err != nil || region != "eu" || do(read)[0] == forged {
				t.Logf("a player joined in region %q: %v", region, err)
				return false
			}
		}
	}

	// The code of the victim leads to the attacker's host: by a copy of its entry, by
	// an entry without a signature, by one with the signature of another entry.
	copied := do("GET " + key("*:"+evilCode))[0]
	before := a.operator.status.store.Stats().Unverified
	for n, forged := range []string{
		copied, evil.AllocationID + ":0", evil.AllocationID + strings.TrimPrefix(genuine, victim.AllocationID),
	} {
		if !refused("SET "+victimCode, forged, "GET "+victimCode, http.StatusNotFound) {
			t.Errorf("forged code %d counted", n)
		}
	}
	do("SET " + victimCode + " " + genuine)
	if got, err := joined(); got != "eu" || err != nil {
		t.Errorf("the genuine entry again: %q, %v", got, err)
	}

	// The host's entry names another relay.
	home := do("HGET " + victimHost + " h")[0]
	other := do("HGET ferry:host:" + evil.AllocationID + " h")[0]
	for n, forged := range []string{
		other, alloc.RelayID{2}.String() + strings.TrimPrefix(home, alloc.RelayID{1}.String()),
	} {
		if !refused("HSET "+victimHost+" h", forged, "HGET "+victimHost+" h", http.StatusServiceUnavailable) {
			t.Errorf("forged home %d counted", n)
		}
	}
	do("HSET " + victimHost + " h " + home)
	if got, err := joined(); got != "eu" || err != nil {
		t.Errorf("the genuine home again: %q, %v", got, err)
	}
	if n := a.operator.status.store.Stats().Unverified - before; n != 5 {
		t.Errorf("%d unverified entries were counted, want 5", n)
	}
}
