package statefile

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"

	"go.uber.org/goleak"

	"github.com/ferryrelay/ferry/internal/base/joincode"
	"github.com/ferryrelay/ferry/internal/test/testkit"
	"github.com/ferryrelay/ferry/proto"
)

func TestMain(m *testing.M) {
	switch what, spec, _ := strings.Cut(testkit.ChildTask(), " "); what {
	case "kill":
		killChild(spec)
	case "tmpfs":
		tmpfsChild(spec)
	}
	goleak.VerifyTestMain(m)
}

func exit(reason ...any) {
	fmt.Fprintln(os.Stderr, reason...)
	os.Exit(1)
}

func modes(t *testing.T, test func(t *testing.T, cfg Config)) {
	for _, unmapped := range []bool{false, true} {
		t.Run(fmt.Sprintf("unmapped=%v", unmapped), func(t *testing.T) {
			test(t, testConfig(t, unmapped))
		})
	}
}

func testConfig(t testing.TB, unmapped bool) Config {
	t.Helper()
	return Config{
		Path: filepath.Join(t.TempDir(), "state"), Capacity: 8,
		Relay: [16]byte{1, 2, 3}, Boot: 1, Machine: "up", Unmapped: unmapped,
	}
}

func open(t testing.TB, cfg Config) (*File, PreviousRun) {
	t.Helper()
	if cfg.OnError == nil {
		cfg.OnError = func(err error) { t.Errorf("OnError: %v", err) }
	}
	l, left, err := Open(cfg)
	if err != nil {
		t.Fatal(err)
	}
	if want := runtime.GOOS == "linux" && !cfg.Unmapped; l.Storing() && l.IsMapped() != want {
		t.Errorf("mapped %v, want %v", l.IsMapped(), want)
	}
	return l, left
}

func crash(t testing.TB, l *File) {
	t.Helper()
	if err := l.closeFiles(); err != nil {
		t.Error(err)
	}
}

func openAndCrash(t testing.TB, cfg Config) PreviousRun {
	t.Helper()
	l, left := open(t, cfg)
	crash(t, l)
	return left
}

func closed(t testing.TB, l *File) {
	t.Helper()
	if err := l.Close(); err != nil {
		t.Error(err)
	}
}

func code(t testing.TB, s string) Code {
	t.Helper()
	c, err := ParseCode(s)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// sample returns a record; those of different n differ in every field.
func sample(t testing.TB, n int) Record {
	return Record{
		ID:     proto.AllocationID{0: byte(n), 1: byte(n >> 8), 15: 0xA0},
		Tenant: uint64(n) + 1000, Endpoint: uint64(n) << 40, Code: code(t, "6789BC"+string(joincode.Alphabet[n%20])),
		Nonce: uint16(n), Links: uint16(3 * n), Flags: Flags(n) & 0x7F,
	}
}

func fill(t testing.TB, l *File, n int) (all []FoundRecord) {
	t.Helper()
	for i := range n {
		r := sample(t, i+1)
		p := l.Add(&r)
		if p == 0 {
			t.Fatalf("no place for record %d", i)
		}
		all = append(all, FoundRecord{r, p})
	}
	return all
}

func wantRecords(t testing.TB, left PreviousRun, want []FoundRecord) {
	t.Helper()
	if !slices.Equal(left.Records, want) {
		t.Errorf("found %d records, want %d:\n%v\n%v", len(left.Records), len(want), left.Records, want)
	}
}

func wantComplete(t testing.TB, left PreviousRun, boots ...uint64) {
	t.Helper()
	if !left.Complete || left.Err != nil || left.Damaged != 0 || !slices.Equal(left.Boots, boots) {
		t.Errorf("complete %v for boots %v with %d damaged: %v; want boots %v", left.Complete, left.Boots, left.Damaged, left.Err, boots)
	}
}

func wantIncomplete(t testing.TB, left PreviousRun, want error) {
	t.Helper()
	if left.Complete || len(left.Boots) != 0 || left.Err == nil || want != nil && !errors.Is(left.Err, want) {
		t.Errorf("complete %v for boots %v: %v; want %v", left.Complete, left.Boots, left.Err, want)
	}
}
