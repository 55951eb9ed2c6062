package alloc

import (
	"bytes"
	"errors"
	"io"
	"math"
	"math/rand/v2"
	"strings"
	"testing"
)

// TestCodeLenRule checks the lengths that the reference gives (10 failures a
// second, and its table's rates), and the borders between them.
func TestCodeLenRule(t *testing.T) {
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
		if got := CodeLen(tt.active, tt.failures); got != tt.want {
			t.Errorf("CodeLen(%d, %v) = %d, want %d", tt.active, tt.failures, got, tt.want)
		}
	}
}

// TestCodeLenAgainstArithmetic computes the table of code lengths again: seconds until a
// guess hits = 20^L / (codes × rate).
func TestCodeLenAgainstArithmetic(t *testing.T) {
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
			t.Errorf("%d symbols at %v/s: %v s, the reference says %v s", row.length, row.rate, got, row.want)
		}
		if enough := got >= 28*day; enough != (CodeLen(10_000, row.rate) <= row.length) {
			t.Errorf("%d symbols at %v/s last %v s, but CodeLen is %d", row.length, row.rate, got, CodeLen(10_000, row.rate))
		}
	}
	for active := 1; active < 3_000_000; active = active*5/4 + 1 {
		for _, rate := range []float64{0.1, 1, 10, 50, 1000} {
			length := CodeLen(active, rate)
			if length < MaxCodeLen && seconds(length, active, rate) < 28*day {
				t.Errorf("CodeLen(%d, %v) = %d is too short", active, rate, length)
			}
			if length > MinCodeLen && seconds(length-1, active, rate) >= 28*day {
				t.Errorf("CodeLen(%d, %v) = %d is longer than need be", active, rate, length)
			}
		}
	}
}

func TestParseCode(t *testing.T) {
	t.Parallel()
	tests := []struct {
		in, want string
	}{
		{"6789BC", "6789BC"}, {"dfghjk", "DFGHJK"}, {"lMnPqRtW6789", "LMNPQRTW6789"}, {CodeAlphabet[:12], CodeAlphabet[:12]},
		{"", ""}, {"6789B", ""}, {"6789BCDFGHJKL", ""}, {CodeAlphabet, ""},
		{"6789B ", ""}, {" 6789BC", ""}, {"6789-BC", ""}, {"6789B\x00", ""},
		{"0789BC", ""}, {"A789BC", ""}, {"6789BS", ""}, {"6789Bv", ""}, {"5789BC", ""},
		{"6789B\u212a", ""}, {"6789B\uff22", ""}, {"6789Bſ", ""}, {"\xff\xff\xff\xff\xff\xff", ""},
	}
	for _, tt := range tests {
		got, err := ParseCode(tt.in)
		if got != tt.want || (err != nil) != (tt.want == "") {
			t.Errorf("ParseCode(%q) = %q, %v; want %q", tt.in, got, err, tt.want)
		}
		if err != nil && !errors.Is(err, ErrCodeMalformed) {
			t.Errorf("ParseCode(%q): error %v", tt.in, err)
		}
	}
}

// everyByte returns the bytes 0 to 255 again and again, in order.
type everyByte struct{ next byte }

func (r *everyByte) Read(p []byte) (int, error) {
	for i := range p {
		p[i] = r.next
		r.next++
	}
	return len(p), nil
}

// TestNewCodeIsFair: over a source that gives every byte equally often, every
// symbol comes up equally often, to the last one.
func TestNewCodeIsFair(t *testing.T) {
	t.Parallel()
	// 240 of 256 bytes count, so 20 codes of 12 symbols use each of them once.
	source, seen := new(everyByte), make(map[rune]int)
	for range 20 {
		code, err := newCode(source, 12)
		if err != nil {
			t.Fatal(err)
		}
		for _, symbol := range code {
			seen[symbol]++
		}
	}
	for _, symbol := range CodeAlphabet {
		if seen[symbol] != 12 {
			t.Errorf("%c comes up %d times, want 12", symbol, seen[symbol])
		}
	}
	if len(seen) != len(CodeAlphabet) {
		t.Errorf("%d symbols in use, want %d", len(seen), len(CodeAlphabet))
	}
}

func TestNewCodeParses(t *testing.T) {
	t.Parallel()
	source := rand.NewChaCha8([32]byte{1})
	for length := MinCodeLen; length <= MaxCodeLen; length++ {
		for range 50 {
			code, err := newCode(source, length)
			if err != nil || len(code) != length {
				t.Fatalf("newCode(%d) = %q, %v", length, code, err)
			}
			if parsed, err := ParseCode(strings.ToLower(code)); err != nil || parsed != code {
				t.Fatalf("ParseCode of %q in lower case = %q, %v", code, parsed, err)
			}
		}
	}
}

func TestNewCodeRefusesBadBytes(t *testing.T) {
	t.Parallel()
	// 255 and 240 are refused, 239 is the last that counts, 20 begins anew.
	source := bytes.NewReader([]byte{255, 0, 240, 19, 239, 20, 1, 255, 2})
	if code, err := newCode(source, 6); err != nil || code != "6WW678" {
		t.Errorf("newCode = %q, %v; want 6WW678", code, err)
	}
	stuck := bytes.NewReader(bytes.Repeat([]byte{255}, 10_000))
	if code, err := newCode(stuck, 6); !errors.Is(err, ErrUnavailable) {
		t.Errorf("a source stuck at 255 gave %q, %v", code, err)
	}
	if code, err := newCode(bytes.NewReader([]byte{1, 2, 3}), 6); !errors.Is(err, io.ErrUnexpectedEOF) {
		t.Errorf("a source that ends gave %q, %v", code, err)
	}
}

func TestPackCode(t *testing.T) {
	t.Parallel()
	// 666666 is 1·20^5 + … + 1, and the largest is 20·(20^11 + … + 1).
	for code, want := range map[string]uint64{
		"666666": 3368421, "666667": 3368422, "WWWWWW": 67368420, "6666666": 67368421,
		"wwwwwwwwwwww": 4311578947368420,
	} {
		if got, ok := PackCode(code); !ok || got != want || got >= 1<<52 {
			t.Errorf("PackCode(%s) = %d, %v; want %d", code, got, ok, want)
		}
		if got := UnpackCode(want); got != strings.ToUpper(code) {
			t.Errorf("UnpackCode(%d) = %q, want %s", want, got, code)
		}
	}
	for _, bad := range []string{"", "66666", "6666666666666", "66666A", "66666\x00", "6666é"} {
		if got, ok := PackCode(bad); ok || got != 0 {
			t.Errorf("PackCode(%q) = %d, %v", bad, got, ok)
		}
	}
	for _, bad := range []uint64{0, 1, 3368420, 4311578947368421, 1 << 52, math.MaxUint64} {
		if got := UnpackCode(bad); got != "" {
			t.Errorf("UnpackCode(%d) = %q", bad, got)
		}
	}
	source := rand.NewChaCha8([32]byte{2})
	for i := range 7000 {
		code, err := newCode(source, MinCodeLen+i%7)
		if err != nil {
			t.Fatal(err)
		}
		if packed, ok := PackCode(strings.ToLower(code)); !ok || UnpackCode(packed) != code {
			t.Fatalf("%s packed is %d, %v, and back %s", code, packed, ok, UnpackCode(packed))
		}
	}
}

func FuzzParseCode(f *testing.F) {
	for _, seed := range []string{"6789BC", "lmnpqrtw", "", "6789BCDFGHJKL", "AEIOUS", "6789B\u212a"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, in string) {
		code, err := ParseCode(in)
		if err != nil {
			if _, ok := PackCode(in); code != "" || ok {
				t.Errorf("ParseCode(%q) = %q beside an error, PackCode takes it: %v", in, code, ok)
			}
			return
		}
		packed, ok := PackCode(in)
		if !ok || UnpackCode(packed) != code {
			t.Errorf("PackCode(%q) = %d, %v, which is %q", in, packed, ok, UnpackCode(packed))
		}
		again, err := ParseCode(code)
		if err != nil || again != code || !strings.EqualFold(code, in) || len(code) != len(in) {
			t.Errorf("ParseCode(%q) = %q, again %q, %v", in, code, again, err)
		}
	})
}
