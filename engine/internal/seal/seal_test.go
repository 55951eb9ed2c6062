package seal

import (
	"bytes"
	"errors"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/iotest"
	"time"

	"github.com/ferryrelay/ferry/alloc"
	"github.com/ferryrelay/ferry/internal/test/testkit"
	"github.com/ferryrelay/ferry/proto"
)

var (
	testMaster = alloc.MasterKey(bytes.Repeat([]byte{0x5A}, len(alloc.MasterKey{})))
	testRelay  = alloc.RelayID{15: 1}
	testHost   = proto.AllocationID{0: 0xA0, 15: 1}
	testJoiner = proto.AllocationID{0: 0xB0, 15: 2}
)

const week = 7 * 24 * time.Hour

// testEpoch is the number of week 2900: the low 16 bits of its first hour.
const testEpoch = 2900 * 168 % (1 << 16)

// weekStart is the first second of week 2900.
var weekStart = time.Unix(2900*7*24*60*60, 0)

func testClock(after time.Duration) func() time.Time {
	return testkit.NewClock(weekStart.Add(after)).Now
}

func newTestSealer(t testing.TB, change func(*Config)) *Sealer {
	t.Helper()
	cfg := Config{Master: testMaster, Relay: testRelay, Boot: 77, Now: testClock(0)}
	if change != nil {
		change(&cfg)
	}
	s, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func hostClaims() Claims {
	return Claims{
		Role: alloc.RoleHost, ID: testHost, Match: testHost, Tenant: 0x0123456789abcdef,
		Project: []byte("project-id"), Environment: []byte("production"),
		MaxConnections: 8, Player: alloc.PlayerHash{1, 2, 3},
	}
}

func mustSeal(t testing.TB, s *Sealer, c Claims) alloc.ConnectionData {
	t.Helper()
	data, err := s.Seal(c)
	if err != nil {
		t.Fatal(err)
	}
	return data
}

func opens(s *Sealer, data []byte) bool {
	_, ok := s.Open(new(Scratch), data)
	return ok
}

func sameClaims(a, b Claims) bool {
	return bytes.Equal(a.Project, b.Project) && bytes.Equal(a.Environment, b.Environment) &&
		a.Epoch == b.Epoch && a.Relay == b.Relay && a.Boot == b.Boot && a.Role == b.Role &&
		a.ID == b.ID && a.Match == b.Match && a.Joiner == b.Joiner && a.Tenant == b.Tenant &&
		a.MaxConnections == b.MaxConnections && a.Issued == b.Issued && a.Player == b.Player
}

func TestSealRoundTrip(t *testing.T) {
	t.Parallel()
	s := newTestSealer(t, func(c *Config) { c.Now = testClock(90 * time.Minute) })
	joiner, ticket, bare, longest := hostClaims(), hostClaims(), hostClaims(), hostClaims()
	joiner.Role, joiner.ID = alloc.RoleJoiner, testJoiner
	ticket.Role, ticket.Joiner = RoleTicket, testJoiner
	bare.Project, bare.Environment, bare.MaxConnections, bare.Player = nil, nil, 0, alloc.PlayerHash{}
	longest.Project = bytes.Repeat([]byte("p"), alloc.MaxTenantName)
	longest.Environment = bytes.Repeat([]byte{0xFF}, alloc.MaxTenantName)
	longest.MaxConnections, longest.Tenant = 65535, ^uint64(0)
	longest.Player = alloc.PlayerHash(bytes.Repeat([]byte{0xFF}, 16))

	scratch := new(Scratch) // one for all: nothing of one may show in the next
	for name, want := range map[string]Claims{
		"host": hostClaims(), "joiner": joiner, "ticket": ticket, "bare": bare, "longest": longest,
	} {
		data := mustSeal(t, s, want)
		got, ok := s.Open(scratch, data[:])
		if !ok {
			t.Errorf("%s: does not open", name)
			continue
		}
		want.Epoch, want.Relay, want.Boot = testEpoch, testRelay, 77
		want.Issued = testClock(90 * time.Minute)().Unix()
		if !sameClaims(got, want) {
			t.Errorf("%s: opened %+v, want %+v", name, got, want)
		}
	}
}

// TestSealPlayerName: a name that does not fit is cut between two characters, and marked. A
// candidate's connection data is sealed with a name that is cut already.
func TestSealPlayerName(t *testing.T) {
	t.Parallel()
	s := newTestSealer(t, nil)
	name := strings.Repeat("é", 128)
	for _, c := range []struct {
		name                 string
		cut                  bool
		project, environment int
		want                 string
		wantCut              bool
	}{
		{"ann", false, 36, 36, "ann", false},
		{name[:40], false, 36, 36, name[:40], false},
		{name, false, 36, 36, name[:40], true},
		{name, false, 36, 35, name[:40], true},
		{name, false, 56, 55, "", true},
		{name, false, 56, 56, "", true},
		{name, false, 0, 0, name[:108], true},
		{"ann", true, 36, 36, "ann", true},
		{"a\x00nn", false, 36, 36, "a", true},
		{"", false, 56, 56, "", false},
	} {
		claims := hostClaims()
		claims.Project, claims.Environment = bytes.Repeat([]byte("p"), c.project), bytes.Repeat([]byte("e"), c.environment)
		claims.PlayerName, claims.PlayerNameCut = []byte(c.name), c.cut
		data := mustSeal(t, s, claims)
		got, ok := s.Open(new(Scratch), data[:])
		claims.Epoch, claims.Relay, claims.Boot, claims.Issued = testEpoch, testRelay, s.Boot(), weekStart.Unix()
		if !ok || !sameClaims(got, claims) {
			t.Errorf("%+v: opened %+v", c, got)
		}
		if string(got.PlayerName) != c.want || got.PlayerNameCut != c.wantCut {
			t.Errorf("%+v: %q, cut %v", c, got.PlayerName, got.PlayerNameCut)
		}
	}
}

func TestSealSetsItsOwnFields(t *testing.T) {
	t.Parallel()
	s := newTestSealer(t, nil)
	forged := hostClaims()
	forged.Epoch, forged.Relay, forged.Boot, forged.Issued = 1, alloc.RelayID{9}, 9, 9
	data := mustSeal(t, s, forged)
	got, ok := s.Open(new(Scratch), data[:])
	if !ok || got.Epoch != testEpoch || got.Relay != s.Relay() || got.Boot != s.Boot() || got.Issued != weekStart.Unix() {
		t.Errorf("opened %+v, %v", got, ok)
	}
}

func TestSealHidesAndVaries(t *testing.T) {
	t.Parallel()
	s := newTestSealer(t, nil)
	a, b := mustSeal(t, s, hostClaims()), mustSeal(t, s, hostClaims())
	if a == b {
		t.Error("two seals of the same claims are equal")
	}
	if bytes.Contains(a[:], []byte("project-id")) || bytes.Contains(a[:], testHost[:]) {
		t.Error("claims show through the seal")
	}
}

func TestOpenRefusesOtherLengths(t *testing.T) {
	t.Parallel()
	s := newTestSealer(t, nil)
	data := mustSeal(t, s, hostClaims())
	if !opens(s, data[:]) {
		t.Fatal("the whole does not open")
	}
	for n := range data {
		if opens(s, data[:n]) {
			t.Errorf("the first %d bytes open", n)
		}
		if opens(s, data[n+1:]) {
			t.Errorf("the last %d bytes open", len(data)-n-1)
		}
	}
	for extra := 1; extra <= 64; extra++ {
		if opens(s, append(data[:], make([]byte, extra)...)) {
			t.Errorf("%d bytes more open", extra)
		}
	}
	if opens(s, nil) {
		t.Error("nothing opens")
	}
}

func TestOpenRefusesEveryFlippedBit(t *testing.T) {
	t.Parallel()
	s := newTestSealer(t, nil)
	data := mustSeal(t, s, hostClaims())
	for bit := range len(data) * 8 {
		bad := data
		bad[bit/8] ^= 1 << (bit % 8)
		if opens(s, bad[:]) {
			t.Errorf("opens with bit %d flipped", bit)
		}
	}
}

func TestOpenRefusesSplices(t *testing.T) {
	t.Parallel()
	s := newTestSealer(t, nil)
	other := hostClaims()
	other.ID, other.Match = testJoiner, testJoiner
	a, b := mustSeal(t, s, hostClaims()), mustSeal(t, s, other)
	for cut := range len(a) {
		mixed := append(bytes.Clone(a[:cut]), b[cut:]...)
		if bytes.Equal(mixed, a[:]) || bytes.Equal(mixed, b[:]) {
			continue // nothing was spliced: the bytes on one side of the cut are equal in both
		}
		if opens(s, mixed) {
			t.Errorf("head of one and tail of another open, cut at %d", cut)
		}
	}
}

func TestOpenAcrossSealers(t *testing.T) {
	t.Parallel()
	data := mustSeal(t, newTestSealer(t, nil), hostClaims())
	tests := []struct {
		name   string
		change func(*Config)
		want   bool
	}{
		{"same relay, later boot", func(c *Config) { c.Boot = 78 }, true},
		{"other relay, same master key", func(c *Config) { c.Relay[0] ^= 1 }, false},
		{"same relay, other master key", func(c *Config) { c.Master[31] ^= 1 }, false},
		{"clock 4 minutes ahead", func(c *Config) { c.Now = testClock(4 * time.Minute) }, true},
		{"clock 4 minutes behind, a week before", func(c *Config) { c.Now = testClock(-4 * time.Minute) }, true},
		{"two weeks later", func(c *Config) { c.Now = testClock(2 * week) }, true},
		{"four weeks later", func(c *Config) { c.Now = testClock(4 * week) }, false},
		{"two weeks before, as a clock that was set back", func(c *Config) { c.Now = testClock(-2 * week) }, true},
		{"five weeks before", func(c *Config) { c.Now = testClock(-5 * week) }, false},
	}
	for _, tt := range tests {
		s := newTestSealer(t, tt.change)
		got, ok := s.Open(new(Scratch), data[:])
		if ok != tt.want {
			t.Errorf("%s: opened %v, want %v", tt.name, ok, tt.want)
		}
		if ok && got.Boot != 77 {
			t.Errorf("%s: boot %d, want that of the sealing process, 77", tt.name, got.Boot)
		}
	}
}

func TestNewSealerRefuses(t *testing.T) {
	t.Parallel()
	noRandom := errors.New("no randomness")
	tests := []struct {
		name   string
		change func(*Config)
		want   error
	}{
		{"no master key", func(c *Config) { c.Master = alloc.MasterKey{} }, nil},
		{"no relay id", func(c *Config) { c.Relay = alloc.RelayID{} }, nil},
		{"an epoch below an hour", func(c *Config) { c.Epoch = 59 * time.Minute }, nil},
		{"an epoch of 90 minutes", func(c *Config) { c.Epoch = 90 * time.Minute }, nil},
		{"an epoch above four weeks", func(c *Config) { c.Epoch = 4*week + time.Hour }, nil},
		{"a negative epoch", func(c *Config) { c.Epoch = -time.Hour }, nil},
		{"no boot id and no randomness", func(c *Config) { c.Boot, c.Rand = 0, iotest.ErrReader(noRandom) }, noRandom},
	}
	for _, tt := range tests {
		cfg := Config{Master: testMaster, Relay: testRelay, Boot: 1, Now: testClock(0)}
		tt.change(&cfg)
		if _, err := New(cfg); err == nil || tt.want != nil && !errors.Is(err, tt.want) {
			t.Errorf("%s: error %v, want %v", tt.name, err, tt.want)
		}
	}
}

func TestNewSealerDrawsABoot(t *testing.T) {
	t.Parallel()
	zeroFirst := func(c *Config) {
		c.Boot, c.Rand = 0, strings.NewReader("\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x01\x02")
	}
	if got := newTestSealer(t, zeroFirst).Boot(); got != 0x0102 {
		t.Errorf("boot %#x, want the first eight bytes that are not all zero, 0x102", got)
	}
	a := newTestSealer(t, func(c *Config) { c.Boot = 0 })
	b := newTestSealer(t, func(c *Config) { c.Boot = 0 })
	if a.Boot() == b.Boot() {
		t.Error("two runs drew the same boot id")
	}
}

func TestSealReportsRandFailure(t *testing.T) {
	t.Parallel()
	noRandom := errors.New("no randomness")
	s := newTestSealer(t, func(c *Config) { c.Rand = iotest.ErrReader(noRandom) })
	data, err := s.Seal(hostClaims())
	if !errors.Is(err, noRandom) || data != (alloc.ConnectionData{}) {
		t.Errorf("Seal without randomness: %x, error %v", data, err)
	}
}

func TestOpenDoesNotAllocate(t *testing.T) {
	if testkit.RaceEnabled {
		t.Skip("the race detector allocates")
	}
	s := newTestSealer(t, nil)
	good := mustSeal(t, s, hostClaims())
	flipped, unknown := good, good
	flipped[200] ^= 1
	unknown[1] ^= 0x80
	scratch := new(Scratch)
	for name, data := range map[string][]byte{"good": good[:], "flipped bit": flipped[:], "unknown epoch": unknown[:], "short": good[:80]} {
		opened := false
		if n := testing.AllocsPerRun(200, func() { _, opened = s.Open(scratch, data) }); n != 0 {
			t.Errorf("%s: Open allocates %v times", name, n)
		}
		if opened != (name == "good") {
			t.Errorf("%s: opened %v", name, opened)
		}
	}
}

func TestOpenWhileRotating(t *testing.T) {
	t.Parallel()
	clock := testkit.NewClock(weekStart)
	s := newTestSealer(t, func(c *Config) { c.Now = clock.Now })
	s.Retain(testEpoch)
	first := mustSeal(t, s, hostClaims())
	stop := make(chan struct{})
	var readers, writers sync.WaitGroup
	var opened atomic.Int64
	for range 3 {
		readers.Go(func() {
			scratch := new(Scratch)
			for {
				select {
				case <-stop:
					return
				default:
				}
				if c, ok := s.Open(scratch, first[:]); !ok || c.ID != testHost || c.Epoch != testEpoch {
					t.Errorf("retained data opened %v as %+v", ok, c)
					return
				}
			}
		})
	}
	for range 2 {
		writers.Go(func() {
			scratch := new(Scratch)
			for range 40 {
				clock.Advance(week / 3)
				before := clock.Now()
				data, err := s.Seal(hostClaims())
				if err != nil {
					t.Error(err)
					return
				}
				// The other writer may advance by weeks before this one opens.
				if c, ok := s.Open(scratch, data[:]); ok {
					opened.Add(1)
					s.Retain(c.Epoch)
					s.Release(c.Epoch)
				} else if passed := clock.Now().Sub(before); passed < week {
					t.Errorf("data sealed %v ago does not open", passed)
				}
			}
		})
	}
	writers.Wait()
	close(stop)
	readers.Wait()
	if opened.Load() == 0 {
		t.Error("no fresh data opened")
	}
}
