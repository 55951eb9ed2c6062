package seal

import (
	"bytes"
	"crypto/hkdf"
	"crypto/sha512"
	"testing"

	"github.com/ferryrelay/ferry/internal/test/testkit"
	"github.com/ferryrelay/ferry/proto"
)

func TestDeriverIsHKDF(t *testing.T) {
	t.Parallel()
	d := newTestSealer(t, nil).NewDeriver()
	for n := range 40 {
		id := proto.AllocationID(bytes.Repeat([]byte{byte(7 * n)}, len(proto.AllocationID{})))
		want, err := hkdf.Key(sha512.New, testMaster[:], []byte("ferry allocation key v1"), "ferry allocation "+string(id[:]), len(proto.Key{}))
		if err != nil {
			t.Fatal(err)
		}
		var got proto.Key
		d.Key(id, &got)
		if !bytes.Equal(got[:], want) {
			t.Fatalf("id %v: the key differs from HKDF's", id)
		}
	}
}

// TestDeriverDependsOnMasterAndID: and on nothing else, so that every worker
// and the process after a restart find the same key.
func TestDeriverDependsOnMasterAndID(t *testing.T) {
	t.Parallel()
	derive := func(id proto.AllocationID, change func(*Config)) (key proto.Key) {
		newTestSealer(t, change).NewDeriver().Key(id, &key)
		return key
	}
	want := derive(testHost, nil)
	if derive(testHost, func(c *Config) { c.Boot, c.Now = 9, testClock(9*week) }) != want {
		t.Error("the key changed with boot id and clock")
	}
	if derive(testHost, func(c *Config) { c.Master[0] ^= 1 }) == want {
		t.Error("two master keys give one key")
	}
	if derive(testJoiner, nil) == want {
		t.Error("two allocations have one key")
	}
}

func TestDeriverDoesNotAllocate(t *testing.T) {
	if testkit.RaceEnabled {
		t.Skip("the race detector allocates")
	}
	d := newTestSealer(t, nil).NewDeriver()
	sum := byte(0)
	if n := testing.AllocsPerRun(200, func() {
		var key proto.Key
		d.Key(testHost, &key)
		sum += key[0]
	}); n != 0 {
		t.Errorf("Key allocates %v times, its result on the stack included", n)
	}
}
