package alloc

import (
	"bytes"
	"errors"
	"io"
	"math"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/ferryrelay/ferry/internal/base/joincode"
)

func TestParseCode(t *testing.T) {
	t.Parallel()
	tests := []struct {
		in, want string
	}{
		{"6789BC", "6789BC"}, {"dfghjk", "DFGHJK"}, {"lMnPqRtW6789", "LMNPQRTW6789"}, {joincode.Alphabet[:12], joincode.Alphabet[:12]},
		{"", ""}, {"6789B", ""}, {"6789BCDFGHJKL", ""}, {joincode.Alphabet, ""},
		{"6789B ", ""}, {" 6789BC\n", "6789BC"}, {"6789-BC", "6789BC"}, {"678 9bc", "6789BC"}, {"6789B\x00", ""},
		{"\ufeff6789BC\u200b", "6789BC"}, {"678\u20119BC", "6789BC"}, {"678\u00a09\u2014BC", "6789BC"}, {"678\u00ad9B\u2060C", "6789BC"},
		{"678-9BC-DFG-HJK", "6789BCDFGHJK"}, {"678-9BC-DFG-HJKL", ""}, {"------", ""}, {"6789B_C", ""},
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

// everyByte returns the bytes 0 to 255 in order, repeatedly.
type everyByte struct{ next byte }

func (r *everyByte) Read(p []byte) (int, error) {
	for i := range p {
		p[i] = r.next
		r.next++
	}
	return len(p), nil
}

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
	for _, symbol := range joincode.Alphabet {
		if seen[symbol] != 12 {
			t.Errorf("%c comes up %d times, want 12", symbol, seen[symbol])
		}
	}
	if len(seen) != len(joincode.Alphabet) {
		t.Errorf("%d symbols in use, want %d", len(seen), len(joincode.Alphabet))
	}
}

func TestNewCodeParses(t *testing.T) {
	t.Parallel()
	source := rand.NewChaCha8([32]byte{1})
	for length := joincode.MinLen; length <= joincode.MaxLen; length++ {
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
	// 255 and 240 are rejected, 239 is the largest accepted byte, and 20 wraps around.
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

func FuzzParseCode(f *testing.F) {
	for _, seed := range []string{"6789BC", "lmnpqrtw", "", "6789BCDFGHJKL", "AEIOUS", "6789B\u212a"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, in string) {
		code, err := ParseCode(in)
		if err != nil {
			if _, ok := joincode.Pack(in); code != "" || ok {
				t.Errorf("ParseCode(%q) = %q beside an error, joincode.Pack takes it: %v", in, code, ok)
			}
			return
		}
		packed, ok := joincode.Pack(in)
		if !ok || joincode.Unpack(packed) != code {
			t.Errorf("joincode.Pack(%q) = %d, %v, which is %q", in, packed, ok, joincode.Unpack(packed))
		}
		again, err := ParseCode(code)
		if err != nil || again != code || !strings.EqualFold(code, joincode.Trim(in)) {
			t.Errorf("ParseCode(%q) = %q, again %q, %v", in, code, again, err)
		}
	})
}

// failJoins counts failed joins at an even rate, and returns the time of the end.
func failJoins(g *failureRates, tenant uint64, perSecond float64, from, lasting time.Duration) time.Duration {
	step := time.Duration(float64(time.Second) / perSecond)
	for at := from; at < from+lasting; at += step {
		g.add(tenant, at)
	}
	return from + lasting
}

func TestFailureRatesFollowTheRate(t *testing.T) {
	t.Parallel()
	for _, rate := range []float64{0.5, 10, 200} {
		g := new(failureRates)
		end := failJoins(g, 7, rate, time.Second, 5*time.Minute)
		if got := g.perSecond(7, end); math.Abs(got/rate-1) > 0.05 {
			t.Errorf("%v failures a second are observed as %v", rate, got)
		}
		if got := g.perSecond(8, end); got != 0 {
			t.Errorf("another tenant's rate is %v", got)
		}
	}
	g := new(failureRates)
	if got := g.perSecond(7, time.Hour); got != 0 {
		t.Errorf("without failures the rate is %v", got)
	}
	g.add(7, time.Hour)
	if got := g.perSecond(7, time.Hour); got > 0.02 {
		t.Errorf("one failure is observed as %v a second", got)
	}
}

// TestFailureRatesDecay: a peak decays to half in an hour, a lower rate does not renew
// it, and an earlier time changes nothing.
func TestFailureRatesDecay(t *testing.T) {
	t.Parallel()
	g := new(failureRates)
	end := failJoins(g, 7, 100, 0, 10*time.Minute)
	peak := g.perSecond(7, end)
	if got := g.perSecond(7, end-time.Minute); got != peak {
		t.Errorf("a late call sees %v instead of %v", got, peak)
	}
	for hours, want := range []float64{1, 0.5, 0.25, 0.125} {
		if got := g.perSecond(7, end+time.Duration(hours)*time.Hour) / peak; math.Abs(got-want) > 1e-6 {
			t.Errorf("after %d h the peak counts %v, want %v", hours, got, want)
		}
	}
	end = failJoins(g, 7, 1, end+3*time.Hour, 10*time.Minute)
	if got := g.perSecond(7, end) / peak; got > 0.125 || got < 0.1 {
		t.Errorf("a lower rate leaves %v of the peak", got)
	}
}

// TestFailureRatesKeep28Days: at any steady rate of failed joins, and with any number
// of codes, a new code is so long that a guess hits after 28 days on average.
func TestFailureRatesKeep28Days(t *testing.T) {
	t.Parallel()
	for _, rate := range []float64{20, 100, 1000} {
		g := new(failureRates)
		end := failJoins(g, 7, rate, 0, 5*time.Minute)
		for _, active := range []int{1, 1000, 100_000} {
			length := joincode.Len(active, max(defaultFailuresPerSecond, g.perSecond(7, end)))
			days := math.Pow(20, float64(length)) / float64(active) / rate / 86400
			if length < joincode.MaxLen && days < 28*0.95 {
				t.Errorf("%d codes at %v/s have %d symbols, which last %.1f days", active, rate, length, days)
			}
		}
	}
}
