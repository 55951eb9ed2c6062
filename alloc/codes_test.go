package alloc_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/iotest"

	"github.com/ferryrelay/ferry/alloc"
	"github.com/ferryrelay/ferry/internal/test/alloctest"
	"github.com/ferryrelay/ferry/proto"
)

type faultyStore struct {
	alloc.Store
	put, hostOf, codeOf, codes error
	stores                     bool // PutCode fails, but has stored the code
}

func (f *faultyStore) PutCode(ctx context.Context, t alloc.Tenant, code string, host proto.AllocationID) (bool, error) {
	if f.put == nil || f.stores {
		ok, err := f.Store.PutCode(ctx, t, code, host)
		if f.put == nil {
			return ok, err
		}
	}
	return false, f.put
}

func (f *faultyStore) HostOf(ctx context.Context, t alloc.Tenant, code string) (proto.AllocationID, error) {
	if f.hostOf != nil {
		return proto.AllocationID{}, f.hostOf
	}
	return f.Store.HostOf(ctx, t, code)
}

func (f *faultyStore) CodeOf(ctx context.Context, t alloc.Tenant, host proto.AllocationID) (string, error) {
	if f.codeOf != nil {
		return "", f.codeOf
	}
	return f.Store.CodeOf(ctx, t, host)
}

func (f *faultyStore) Codes(ctx context.Context, t alloc.Tenant, host proto.AllocationID) (string, int, error) {
	if f.codes != nil {
		return "", 0, f.codes
	}
	return f.Store.Codes(ctx, t, host)
}

func wantCodes(t *testing.T, codes alloc.Store, n int) {
	t.Helper()
	if _, got, err := codes.Codes(t.Context(), testTenant, proto.AllocationID{}); err != nil || got != n {
		t.Errorf("%d codes in the store, error %v; want %d", got, err, n)
	}
}

func TestStoreFailures(t *testing.T) {
	t.Parallel()
	broken := errors.New("broken")
	for name, fail := range map[string]func(*faultyStore){
		"PutCode": func(f *faultyStore) { f.put = broken },
		"CodeOf":  func(f *faultyStore) { f.codeOf = broken },
		"Codes":   func(f *faultyStore) { f.codes = broken },
	} {
		faulty := &faultyStore{Store: alloc.NewMemoryStore()}
		s := newTestService(t, alloctest.NewRelay(), func(c *alloc.ServiceConfig) { c.Store = faulty })
		host := mustAllocate(t, s, alice)
		fail(faulty)
		if code, err := s.JoinCode(t.Context(), alice, host); !errors.Is(err, broken) || code != "" {
			t.Errorf("%s fails: code %q, error %v", name, code, err)
		}
		wantCodes(t, faulty.Store, 0)
	}
	faulty := &faultyStore{Store: alloc.NewMemoryStore(), hostOf: broken}
	s := newTestService(t, alloctest.NewRelay(), func(c *alloc.ServiceConfig) { c.Store = faulty })
	if _, err := s.Join(t.Context(), bob, "6789BC"); !errors.Is(err, broken) || errors.Is(err, alloc.ErrCodeNotFound) {
		t.Errorf("HostOf fails: error %v", err)
	}
}

// TestStoreFailsAfterStoring: a code that was stored although PutCode failed is the
// host's code from then on, and is removed if the host has ended.
func TestStoreFailsAfterStoring(t *testing.T) {
	t.Parallel()
	broken := errors.New("broken")
	relay := alloctest.NewRelay()
	faulty := &faultyStore{Store: alloc.NewMemoryStore(), put: broken, stores: true}
	s := newTestService(t, relay, func(c *alloc.ServiceConfig) { c.Store = faulty })
	host := mustAllocate(t, s, alice)
	if _, err := s.JoinCode(t.Context(), alice, host); !errors.Is(err, broken) {
		t.Fatalf("error %v", err)
	}
	if code, err := s.JoinCode(t.Context(), alice, host); err != nil {
		t.Errorf("asked again: code %q, error %v", code, err)
	}
	relay.End(context.Background(), host)
	wantCodes(t, faulty.Store, 0)

	next := mustAllocate(t, s, alice)
	relay.OnDescribe = func(int) { relay.End(context.Background(), next) }
	if _, err := s.JoinCode(t.Context(), alice, next); !errors.Is(err, alloc.ErrNotFound) {
		t.Errorf("the host ended meanwhile: error %v", err)
	}
	wantCodes(t, faulty.Store, 0)
}

func TestEndedForgets(t *testing.T) {
	t.Parallel()
	relay, codes := alloctest.NewRelay(), alloc.NewMemoryStore()
	s := newTestService(t, relay, func(c *alloc.ServiceConfig) { c.Store = codes })
	host, other := mustAllocate(t, s, alice), mustAllocate(t, s, alice)
	code, otherCode := mustCode(t, s, alice, host), mustCode(t, s, alice, other)
	relay.End(context.Background(), host)
	s.OnEnd(proto.AllocationID{1})
	wantCodes(t, codes, 1)
	if _, err := s.Join(t.Context(), bob, code); !errors.Is(err, alloc.ErrCodeNotFound) {
		t.Errorf("join of an ended host: error %v", err)
	}
	if _, err := s.JoinCode(t.Context(), alice, host); !errors.Is(err, alloc.ErrNotFound) {
		t.Errorf("code of an ended host: error %v", err)
	}
	if _, err := s.Join(t.Context(), bob, otherCode); err != nil {
		t.Errorf("join of the other host: %v", err)
	}
}

func TestJoinForgetsDeadHost(t *testing.T) {
	t.Parallel()
	relay, codes := alloctest.NewRelay(), alloc.NewMemoryStore()
	s := newTestService(t, relay, func(c *alloc.ServiceConfig) { c.Store = codes })
	host := mustAllocate(t, s, alice)
	code := mustCode(t, s, alice, host)
	relay.Lose()
	wantCodes(t, codes, 1)
	_, err := s.Join(t.Context(), bob, code)
	if !errors.Is(err, alloc.ErrCodeNotFound) || errors.Is(err, alloc.ErrNotFound) {
		t.Errorf("join of a host that has ended: error %v", err)
	}
	wantCodes(t, codes, 0)
}

func TestCodeNeverOutlivesItsHost(t *testing.T) {
	t.Parallel()
	relay, codes := alloctest.NewRelay(), alloc.NewMemoryStore()
	s := newTestService(t, relay, func(c *alloc.ServiceConfig) { c.Store = codes })
	host := mustAllocate(t, s, alice)
	relay.OnDescribe = func(call int) {
		if call == 1 {
			relay.End(context.Background(), host)
		}
	}
	if code, err := s.JoinCode(t.Context(), alice, host); !errors.Is(err, alloc.ErrNotFound) || code != "" {
		t.Errorf("code %q, error %v; want ErrNotFound", code, err)
	}
	wantCodes(t, codes, 0)
}

// TestCallerLeaves: the second check of the host continues after the caller has
// disconnected, and the code stays valid. If the relay does not answer, the code stays in
// the store, and is the answer to the next call.
func TestCallerLeaves(t *testing.T) {
	t.Parallel()
	relay, codes := alloctest.NewRelay(), alloc.NewMemoryStore()
	s := newTestService(t, relay, func(c *alloc.ServiceConfig) { c.Store = codes })
	host := mustAllocate(t, s, alice)
	ctx, cancel := context.WithCancel(t.Context())
	relay.OnDescribe = func(call int) {
		if call == 2 {
			cancel()
		}
	}
	if _, err := s.JoinCode(ctx, alice, host); err != nil {
		t.Errorf("the caller left during the second look: %v", err)
	}
	wantCodes(t, codes, 1)

	next := mustAllocate(t, s, alice)
	relay.OnDescribe = func(call int) {
		if call == 3 {
			relay.Fail(alloc.ErrUnavailable, "Describe")
		}
	}
	if _, err := s.JoinCode(t.Context(), alice, next); !errors.Is(err, alloc.ErrUnavailable) {
		t.Errorf("the relay went away: error %v", err)
	}
	wantCodes(t, codes, 2)
	relay.Fail(nil)
	before, err := codes.CodeOf(t.Context(), testTenant, next)
	if code := mustCode(t, s, alice, next); err != nil || code != before {
		t.Errorf("the relay came back: %s, in the store %s, %v", code, before, err)
	}
}

func TestCollisionDrawsAnew(t *testing.T) {
	t.Parallel()
	// Three draws of six symbols: 666666 twice, then 777777.
	source := bytes.NewReader(append(make([]byte, 12), bytes.Repeat([]byte{1}, 6)...))
	s := newTestService(t, alloctest.NewRelay(), func(c *alloc.ServiceConfig) { c.Rand = source })
	a, b := mustAllocate(t, s, alice), mustAllocate(t, s, alice)
	if got := mustCode(t, s, alice, a); got != "666666" {
		t.Errorf("first code %s, want 666666", got)
	}
	if got := mustCode(t, s, alice, b); got != "777777" {
		t.Errorf("second code %s, want 777777", got)
	}
	if got := mustCode(t, s, alice, a); got != "666666" {
		t.Errorf("first host's code is now %s", got)
	}
}

func TestCollisionsEnd(t *testing.T) {
	t.Parallel()
	s := newTestService(t, alloctest.NewRelay(), func(c *alloc.ServiceConfig) { c.Rand = zeros{} })
	a, b := mustAllocate(t, s, alice), mustAllocate(t, s, alice)
	mustCode(t, s, alice, a)
	if _, err := s.JoinCode(t.Context(), alice, b); !errors.Is(err, alloc.ErrUnavailable) {
		t.Errorf("a source that repeats itself: error %v", err)
	}
	noRandom := errors.New("no randomness")
	s = newTestService(t, alloctest.NewRelay(), func(c *alloc.ServiceConfig) { c.Rand = iotest.ErrReader(noRandom) })
	if _, err := s.JoinCode(t.Context(), alice, mustAllocate(t, s, alice)); !errors.Is(err, noRandom) {
		t.Errorf("a source that fails: error %v", err)
	}
}

// zeros is a random source that is stuck.
type zeros struct{}

func (zeros) Read(p []byte) (int, error) { clear(p); return len(p), nil }

// TestCodesGrowWithTheTenant: at 10 failures a second the third code has seven
// symbols and the 53rd eight. Codes of another tenant do not count.
func TestCodesGrowWithTheTenant(t *testing.T) {
	t.Parallel()
	s := newTestService(t, alloctest.NewRelay(), nil)
	for n := 1; n <= 60; n++ {
		want := 8
		if n <= 2 {
			want = 6
		} else if n <= 52 {
			want = 7
		}
		if code := mustCode(t, s, alice, mustAllocate(t, s, alice)); len(code) != want {
			t.Errorf("code %d is %s, want %d symbols", n, code, want)
		}
	}
	if code := mustCode(t, s, mallory, mustAllocate(t, s, mallory)); len(code) != 6 {
		t.Errorf("first code of another tenant is %s", code)
	}
	slow := newTestService(t, alloctest.NewRelay(), func(c *alloc.ServiceConfig) { c.FailuresPerSecond = 1000 })
	if code := mustCode(t, slow, alice, mustAllocate(t, slow, alice)); len(code) != 8 {
		t.Errorf("first code at 1000 failures a second is %s, want 8 symbols", code)
	}
}

func TestJoinCodeAtOnce(t *testing.T) {
	t.Parallel()
	codes := alloc.NewMemoryStore()
	s := newTestService(t, alloctest.NewRelay(), func(c *alloc.ServiceConfig) { c.Store = codes })
	host := mustAllocate(t, s, alice)
	got := make([]string, 24)
	var wg sync.WaitGroup
	for n := range got {
		wg.Go(func() {
			var err error
			if got[n], err = s.JoinCode(t.Context(), alice, host); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	for _, code := range got {
		if code != got[0] {
			t.Errorf("one allocation has codes %s and %s", got[0], code)
		}
	}
	wantCodes(t, codes, 1)
}

func TestEverythingAtOnce(t *testing.T) {
	t.Parallel()
	relay, codes := alloctest.NewRelay(), alloc.NewMemoryStore()
	s := newTestService(t, relay, func(c *alloc.ServiceConfig) { c.Store = codes })
	var wg sync.WaitGroup
	for g := range 8 {
		wg.Go(func() {
			c := alloc.Caller{Tenant: testTenant, Player: fmt.Sprint("player ", g)}
			for range 25 {
				res, err := s.Allocate(t.Context(), c, 1, "")
				if err != nil {
					t.Error(err)
					return
				}
				var asking sync.WaitGroup
				asking.Go(func() { relay.End(context.Background(), res.ID) })
				asking.Go(func() { codeAndJoin(t, s, c, res.ID) })
				codeAndJoin(t, s, c, res.ID)
				asking.Wait()
			}
		})
	}
	wg.Wait()
	wantCodes(t, codes, 0)
}

func codeAndJoin(t *testing.T, s *alloc.Service, c alloc.Caller, host proto.AllocationID) {
	code, err := s.JoinCode(t.Context(), c, host)
	if err != nil {
		if !errors.Is(err, alloc.ErrNotFound) {
			t.Errorf("JoinCode: %v", err)
		}
		return
	}
	res, err := s.Join(t.Context(), bob, strings.ToLower(code))
	if err != nil && !errors.Is(err, alloc.ErrCodeNotFound) {
		t.Errorf("Join: %v", err)
	}
	s.OnBind(res.ID)
}

type prefixStore struct {
	alloc.Store
	prefix string
	codes  int
}

func (p prefixStore) Codes(context.Context, alloc.Tenant, proto.AllocationID) (string, int, error) {
	return p.prefix, p.codes, nil
}

// TestCodePrefix: a prefix comes before as many random symbols as the codes that begin with it need.
func TestCodePrefix(t *testing.T) {
	t.Parallel()
	for codes, want := range map[int]int{0: 7, 2: 8, 1000: 9, 1 << 50: 12} {
		store := prefixStore{alloc.NewMemoryStore(), "W", codes}
		s := newTestService(t, alloctest.NewRelay(), func(c *alloc.ServiceConfig) { c.Store = store })
		code := mustCode(t, s, alice, mustAllocate(t, s, alice))
		if len(code) != want || !strings.HasPrefix(code, "W") {
			t.Errorf("with %d codes the code is %s, want %d symbols that begin with W", codes, code, want)
		}
		if _, err := s.Join(t.Context(), bob, code); err != nil {
			t.Errorf("join %s: %v", code, err)
		}
	}
}
