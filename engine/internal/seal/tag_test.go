package seal

import (
	"bytes"
	"math"
	"strings"
	"testing"

	"github.com/ferryrelay/ferry/alloc"
	"github.com/ferryrelay/ferry/proto"
)

// TestTag: a tag comes back beside a name that fits and one that does not, and a version without
// tags reads the beginning of the name.
func TestTag(t *testing.T) {
	long := strings.Repeat("g", 56)
	for _, names := range [][2]string{{"game", "live"}, {long, "live"}, {long, strings.Repeat("l", 47)}} {
		for _, player := range []string{"", "anna", strings.Repeat("a", 200)} {
			for _, tag := range []uint64{0, 1, math.MaxUint64, 0xff00000000000000} {
				id := proto.AllocationID{1}
				c := Claims{
					Role: alloc.RoleHost, ID: id, Match: id, Project: []byte(names[0]), Environment: []byte(names[1]),
					PlayerName: []byte(player), Tag: tag,
				}
				if err := c.validate(); err != nil {
					t.Fatal(err)
				}
				var plain [plainLen]byte
				c.encode(&plain)
				old := plain
				old[flagsAt] &^= flagTag
				var got, before Claims
				if !got.decode(&plain) || got.Tag != tag || !strings.HasPrefix(player, string(got.PlayerName)) ||
					string(got.PlayerName) == player == got.PlayerNameCut {
					t.Errorf("%q, player %q, tag %#x: got %q, cut %v, %#x", names, player, tag, got.PlayerName, got.PlayerNameCut, got.Tag)
				}
				if !before.decode(&old) || tag != 0 && before.Tag != 0 || string(before.PlayerName) != string(got.PlayerName) {
					t.Errorf("%q, player %q, tag %#x: a version without tags reads %q", names, player, tag, before.PlayerName)
				}
			}
		}
	}
	id := proto.AllocationID{1}
	c := Claims{
		Role: alloc.RoleHost, ID: id, Match: id, Project: bytes.Repeat([]byte("g"), 56), Environment: bytes.Repeat([]byte("l"), 48), Tag: 1,
	}
	if err := c.validate(); err != errTag {
		t.Errorf("names that leave no room: %v", err)
	}
}
