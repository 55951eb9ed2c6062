package joincode

import (
	"math"
	"math/rand/v2"
	"strings"
	"testing"
)

// TestLenRule checks lengths at 10 failures a second and at other rates, and on both
// sides of each step.
func TestLenRule(t *testing.T) {
	t.Parallel()
	tests := []struct {
		active   int
		failures float64
		want     int
	}{
		{1000, 10, 8}, {10_000, 10, 9}, {100_000, 10, 10},
		// One failure a second: 29.6 days for 8 symbols and 10,000 codes.
		{10_000, 1, 8}, {10_000, 50, 10}, {10_000, 1000, 11},
		// 20^6 / 10 / 28 days = 2.6 codes; 20^7 = 52.9; 20^8 = 1058.2.
		{2, 10, 6}, {3, 10, 7}, {52, 10, 7}, {53, 10, 8}, {1058, 10, 8}, {1059, 10, 9},
		{0, 10, 6}, {-5, 10, 6}, {1, 0, 6}, {1, 1e-9, 6},
		{math.MaxInt, 1e9, 12}, {1, math.Inf(1), 12},
	}
	for _, tt := range tests {
		if got := Len(tt.active, tt.failures); got != tt.want {
			t.Errorf("Len(%d, %v) = %d, want %d", tt.active, tt.failures, got, tt.want)
		}
	}
}

// TestLenAgainstArithmetic compares Len with the average time until a guess hits:
// 20^L / (codes × rate) seconds.
func TestLenAgainstArithmetic(t *testing.T) {
	t.Parallel()
	seconds := func(length, active int, rate float64) float64 {
		return math.Pow(20, float64(length)) / float64(active) / rate
	}
	const hour, day, year = 3600.0, 86400.0, 365.25 * 86400
	for _, row := range []struct {
		length int
		rate   float64
		want   float64
	}{
		{6, 1, 1.8 * hour}, {6, 50, 2.1 * 60}, {6, 1000, 6.4}, {7, 1, 35.6 * hour}, {7, 50, 43 * 60},
		{8, 1, 29.6 * day}, {8, 50, 14.2 * hour}, {9, 1, 1.6 * year}, {9, 50, 11.9 * day},
		{10, 1, 32.4 * year}, {10, 50, 237 * day}, {10, 1000, 11.9 * day}, {12, 1000, 13 * year},
	} {
		got := seconds(row.length, 10_000, row.rate)
		if math.Abs(got/row.want-1) > 0.02 {
			t.Errorf("%d symbols at %v/s: %v s, want %v s", row.length, row.rate, got, row.want)
		}
		if enough := got >= 28*day; enough != (Len(10_000, row.rate) <= row.length) {
			t.Errorf("%d symbols at %v/s last %v s, but Len is %d", row.length, row.rate, got, Len(10_000, row.rate))
		}
	}
	for active := 1; active < 3_000_000; active = active*5/4 + 1 {
		for _, rate := range []float64{0.1, 1, 10, 50, 1000} {
			length := Len(active, rate)
			if length < MaxLen && seconds(length, active, rate) < 28*day {
				t.Errorf("Len(%d, %v) = %d is too short", active, rate, length)
			}
			if length > MinLen && seconds(length-1, active, rate) >= 28*day {
				t.Errorf("Len(%d, %v) = %d is longer than necessary", active, rate, length)
			}
		}
	}
}

func TestPack(t *testing.T) {
	t.Parallel()
	// 666666 is 1·20^5 + … + 1, and the largest is 20·(20^11 + … + 1).
	for code, want := range map[string]uint64{
		"666666": 3368421, "666667": 3368422, "WWWWWW": 67368420, "6666666": 67368421,
		"wwwwwwwwwwww": 4311578947368420,
	} {
		if got, ok := Pack(code); !ok || got != want || got >= 1<<52 {
			t.Errorf("Pack(%s) = %d, %v; want %d", code, got, ok, want)
		}
		if got := Unpack(want); got != strings.ToUpper(code) {
			t.Errorf("Unpack(%d) = %q, want %s", want, got, code)
		}
	}
	for _, bad := range []string{"", "66666", "6666666666666", "66666A", "66666\x00", "6666é"} {
		if got, ok := Pack(bad); ok || got != 0 {
			t.Errorf("Pack(%q) = %d, %v", bad, got, ok)
		}
	}
	for _, bad := range []uint64{0, 1, 3368420, 4311578947368421, 1 << 52, math.MaxUint64} {
		if got := Unpack(bad); got != "" {
			t.Errorf("Unpack(%d) = %q", bad, got)
		}
	}
	random := rand.New(rand.NewChaCha8([32]byte{2}))
	for i := range 7000 {
		var symbols [MaxLen]byte
		for at := range symbols {
			symbols[at] = Alphabet[random.IntN(len(Alphabet))]
		}
		code := string(symbols[:MinLen+i%7])
		if packed, ok := Pack(strings.ToLower(code)); !ok || Unpack(packed) != code {
			t.Fatalf("%s packed is %d, %v, and back %s", code, packed, ok, Unpack(packed))
		}
	}
}
