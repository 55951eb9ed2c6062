package statefile

import (
	"strings"
	"testing"

	"github.com/ferryrelay/ferry/internal/base/joincode"
)

func TestCode(t *testing.T) {
	t.Parallel()
	for _, s := range []string{
		"", "666666", "WWWWWW", "6666666", "66666666666", "WWWWWWWWWWWW", "666666666666", "6789BCDFGHJK", "LMNPQRTW",
	} {
		c, err := ParseCode(s)
		if err != nil || c.String() != s || c.IsZero() != (s == "") || !c.isValid() || c.packed>>56 != 0 {
			t.Errorf("%q became %x, %q: %v", s, c.packed, c, err)
		}
	}
	for _, s := range []string{
		"6789B", "6789BCDFGHJKL", "6789bc", "6789BA", "6789B0", "6789BC ", "6789B\x00", "6789B\u212A",
	} {
		if c, err := ParseCode(s); err == nil {
			t.Errorf("%q became %q", s, c)
		}
	}
}

func TestCodesDiffer(t *testing.T) {
	t.Parallel()
	seen := map[Code]string{}
	for n := joincode.MinLen; n <= joincode.MaxLen; n++ {
		for i := range n {
			for _, symbol := range joincode.Alphabet[1:] {
				s := strings.Repeat("6", i) + string(symbol) + strings.Repeat("6", n-i-1)
				if other, ok := seen[code(t, s)]; ok {
					t.Fatalf("%q and %q pack alike", s, other)
				}
				seen[code(t, s)] = s
			}
		}
	}
}

func TestCodeInvalid(t *testing.T) {
	t.Parallel()
	// The largest numbers of 5 and 12 digits that are 1 to 20 each.
	const fiveLast, twelveLast = 20 * (1 + 20*(1+20*(1+20*(1+20)))), 4_311_578_947_368_420
	for _, packed := range []uint64{
		1, fiveLast, twelveLast + 1, 1 << 52, 1<<56 - 1,
	} {
		if (Code{packed}).isValid() {
			t.Errorf("%x is valid", packed)
		}
	}
}

func FuzzCode(f *testing.F) {
	for _, seed := range []string{"", "6789BC", "WWWWWWWWWWWW", "6789bc", "AEIOUS"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, s string) {
		if c, err := ParseCode(s); err == nil && (c.String() != s || !c.isValid()) {
			t.Errorf("%q became %q", s, c)
		}
	})
}
