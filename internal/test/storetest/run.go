package storetest

import (
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ferryrelay/ferry/alloc"
	"github.com/ferryrelay/ferry/internal/base/joincode"
	"github.com/ferryrelay/ferry/proto"
)

// Two tenants that differ in one name only, and one whose names run together
// to the same text as the first one's.
var (
	production  = alloc.Tenant{Project: "game", Environment: "production"}
	staging     = alloc.Tenant{Project: "game", Environment: "staging"}
	runTogether = alloc.Tenant{Project: "gameprod", Environment: "uction"}
)

// host returns an id of a host; ids of different n differ.
func host(n int) proto.AllocationID {
	return proto.AllocationID{0: 0xA0, 13: byte(n >> 16), 14: byte(n >> 8), 15: byte(n)}
}

// Run puts stores made by new through the tests, without those of MoveCode if that is an
// errors.ErrUnsupported. Each call of new returns an empty store; what has to be closed is closed by
// t.Cleanup. What Forget drops may be there for a while yet.
func Run(t *testing.T, new func(t *testing.T) alloc.Store) {
	t.Run("Empty", func(t *testing.T) { testEmpty(t, new(t)) })
	t.Run("BothDirections", func(t *testing.T) { testBothDirections(t, new(t)) })
	t.Run("CodeTaken", func(t *testing.T) { testCodeTaken(t, new(t)) })
	t.Run("HostHasCode", func(t *testing.T) { testHostHasCode(t, new(t)) })
	t.Run("TenantsApart", func(t *testing.T) { testTenantsApart(t, new(t)) })
	t.Run("Forget", func(t *testing.T) { testForget(t, new(t)) })
	t.Run("OneCodePerHostAtOnce", func(t *testing.T) { testOneCodePerHost(t, new(t)) })
	t.Run("OneHostPerCodeAtOnce", func(t *testing.T) { testOneHostPerCode(t, new(t)) })
	t.Run("EverythingAtOnce", func(t *testing.T) { testEverything(t, new(t)) })
	if _, err := new(t).MoveCode(t.Context(), production.Hash(), "6789BC", host(1), host(1)); errors.Is(err, errors.ErrUnsupported) {
		return
	}
	t.Run("MoveCode", func(t *testing.T) { testMove(t, new(t)) })
	t.Run("MoveCodeRefused", func(t *testing.T) { testMoveRefused(t, new(t)) })
	t.Run("MoveCodeThatLeadsNowhere", func(t *testing.T) { testMoveFromNowhere(t, new(t)) })
	t.Run("MoveCodeOfEarlierRun", func(t *testing.T) { testMoveOfEarlierRun(t, new(t)) })
	t.Run("MoveCodeAtOnce", func(t *testing.T) { testMoveAtOnce(t, new(t)) })
}

func testEmpty(t *testing.T, s alloc.Store) {
	wantHost(t, s, production, "6789BC", proto.AllocationID{})
	wantCode(t, s, production, host(1), "")
	wantCount(t, s, production, 0)
	s.Forget(host(1))
}

func testBothDirections(t *testing.T, s alloc.Store) {
	put(t, s, production, "6789BC", host(1), true)
	put(t, s, production, "6789BCDFGHJK", host(2), true)
	wantHost(t, s, production, "6789BC", host(1))
	wantHost(t, s, production, "6789BCDFGHJK", host(2))
	wantCode(t, s, production, host(1), "6789BC")
	wantCode(t, s, production, host(2), "6789BCDFGHJK")
	wantCount(t, s, production, 2)
	wantHost(t, s, production, "6789BD", proto.AllocationID{})
	wantCode(t, s, production, host(3), "")
}

func testCodeTaken(t *testing.T, s alloc.Store) {
	put(t, s, production, "6789BC", host(1), true)
	put(t, s, production, "6789BC", host(2), false)
	wantHost(t, s, production, "6789BC", host(1))
	wantCode(t, s, production, host(2), "")
	wantCount(t, s, production, 1)
}

func testHostHasCode(t *testing.T, s alloc.Store) {
	put(t, s, production, "6789BC", host(1), true)
	put(t, s, production, "6789BC", host(1), false)
	put(t, s, production, "DFGHJK", host(1), false)
	wantCode(t, s, production, host(1), "6789BC")
	wantHost(t, s, production, "DFGHJK", proto.AllocationID{})
	wantCount(t, s, production, 1)
}

func testTenantsApart(t *testing.T, s alloc.Store) {
	put(t, s, production, "6789BC", host(1), true)
	for n, other := range []alloc.Tenant{staging, runTogether} {
		wantHost(t, s, other, "6789BC", proto.AllocationID{})
		wantCode(t, s, other, host(1), "")
		wantCount(t, s, other, 0)
		put(t, s, other, "6789BC", host(10+n), true)
		wantHost(t, s, other, "6789BC", host(10+n))
	}
	forget(t, s, staging, host(10))
	wantHost(t, s, staging, "6789BC", proto.AllocationID{})
	wantHost(t, s, production, "6789BC", host(1))
	wantHost(t, s, runTogether, "6789BC", host(11))
	wantCount(t, s, production, 1)
}

func testForget(t *testing.T, s alloc.Store) {
	put(t, s, production, "6789BC", host(1), true)
	put(t, s, production, "DFGHJK", host(2), true)
	forget(t, s, production, host(1))
	s.Forget(host(1))
	s.Forget(host(9))
	// What is forgotten after them is gone once they are.
	put(t, s, production, "RTWRTW", host(8), true)
	forget(t, s, production, host(8))
	wantHost(t, s, production, "6789BC", proto.AllocationID{})
	wantCode(t, s, production, host(1), "")
	wantHost(t, s, production, "DFGHJK", host(2))
	wantCount(t, s, production, 1)
	put(t, s, production, "6789BC", host(3), true)
	wantHost(t, s, production, "6789BC", host(3))
	put(t, s, production, "LMNPQR", host(1), true)
	wantCode(t, s, production, host(1), "LMNPQR")
	wantCount(t, s, production, 3)
}

// testOneCodePerHost: of several codes put for one host at once, one stays.
func testOneCodePerHost(t *testing.T, s alloc.Store) {
	var stored atomic.Int64
	var wg sync.WaitGroup
	for n := range 16 {
		wg.Go(func() {
			if ok, err := s.PutCode(t.Context(), production, code(n), host(1)); err != nil {
				t.Error(err)
			} else if ok {
				stored.Add(1)
			}
		})
	}
	wg.Wait()
	if stored.Load() != 1 {
		t.Errorf("PutCode was true %d times for one host", stored.Load())
	}
	wantCount(t, s, production, 1)
	kept, err := s.CodeOf(t.Context(), production, host(1))
	if err != nil {
		t.Fatal(err)
	}
	wantHost(t, s, production, kept, host(1))
}

// testOneHostPerCode: of several hosts that put one code at once, one gets it.
func testOneHostPerCode(t *testing.T, s alloc.Store) {
	var winner atomic.Int64
	var wg sync.WaitGroup
	for n := range 16 {
		wg.Go(func() {
			ok, err := s.PutCode(t.Context(), production, "6789BC", host(n+1))
			if err != nil {
				t.Error(err)
			}
			if ok && !winner.CompareAndSwap(0, int64(n+1)) {
				t.Error("two hosts got the same code")
			}
		})
	}
	wg.Wait()
	wantHost(t, s, production, "6789BC", host(int(winner.Load())))
	wantCount(t, s, production, 1)
}

// testEverything has each goroutine mind its own hosts among all the others.
func testEverything(t *testing.T, s alloc.Store) {
	const goroutines, hosts = 8, 40
	var wg sync.WaitGroup
	for g := range goroutines {
		wg.Go(func() {
			for n := range hosts {
				id := g*hosts + n
				ok, err := s.PutCode(t.Context(), production, code(id), host(id+1))
				if err != nil || !ok {
					t.Errorf("PutCode %s: %v, %v", code(id), ok, err)
				}
				if got, err := s.HostOf(t.Context(), production, code(id)); err != nil || got != host(id+1) {
					t.Errorf("HostOf %s = %v, %v", code(id), got, err)
				}
				if n%2 == 0 {
					forget(t, s, production, host(id+1))
				}
				if _, _, err := s.Codes(t.Context(), production, host(id+1)); err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	wantCount(t, s, production, goroutines*hosts/2)
}

// code returns a code of eight symbols; codes of different n differ.
func code(n int) string {
	b := []byte("66666666")
	for i := len(b) - 1; n > 0; i-- {
		b[i] = joincode.Alphabet[n%len(joincode.Alphabet)]
		n /= len(joincode.Alphabet)
	}
	return string(b)
}

// soon bounds how long what was forgotten may still be there.
const soon = 10 * time.Second

// forget has the store forget the code of a host, and waits until it has.
func forget(t *testing.T, s alloc.Store, tenant alloc.Tenant, host proto.AllocationID) {
	t.Helper()
	code, err := s.CodeOf(t.Context(), tenant, host)
	if err != nil {
		t.Errorf("CodeOf(%v, %v) before Forget: %v", tenant, host, err)
		return
	}
	s.Forget(host)
	gone := func(err error) bool { return errors.Is(err, alloc.ErrCodeNotFound) }
	for deadline := time.Now().Add(soon); time.Now().Before(deadline); time.Sleep(time.Millisecond) {
		_, byHost := s.CodeOf(t.Context(), tenant, host)
		_, byCode := s.HostOf(t.Context(), tenant, code)
		if gone(byHost) && gone(byCode) {
			return
		}
	}
	t.Errorf("the code of %v is there %v after Forget", host, soon)
}

func put(t *testing.T, s alloc.Store, tenant alloc.Tenant, code string, host proto.AllocationID, want bool) {
	t.Helper()
	if got, err := s.PutCode(t.Context(), tenant, code, host); err != nil || got != want {
		t.Fatalf("PutCode(%v, %s, %v) = %v, %v; want %v", tenant, code, host, got, err, want)
	}
}

// wantHost expects code to lead to want, or nowhere if want is zero.
func wantHost(t *testing.T, s alloc.Store, tenant alloc.Tenant, code string, want proto.AllocationID) {
	t.Helper()
	got, err := s.HostOf(t.Context(), tenant, code)
	if problem := answer(got, err, want); problem != "" {
		t.Errorf("HostOf(%v, %s): %s", tenant, code, problem)
	}
}

// wantCode expects host to have the code want, or none if want is empty.
func wantCode(t *testing.T, s alloc.Store, tenant alloc.Tenant, host proto.AllocationID, want string) {
	t.Helper()
	got, err := s.CodeOf(t.Context(), tenant, host)
	if problem := answer(got, err, want); problem != "" {
		t.Errorf("CodeOf(%v, %v): %s", tenant, host, problem)
	}
}

// answer says what is wrong with an answer: the zero value is wanted together
// with ErrCodeNotFound, any other without an error.
func answer[T comparable](got T, err error, want T) string {
	var none T
	switch {
	case want == none && !errors.Is(err, alloc.ErrCodeNotFound):
		return fmt.Sprintf("%v, error %v; want ErrCodeNotFound", got, err)
	case want != none && err != nil:
		return fmt.Sprintf("error %v; want %v", err, want)
	case got != want:
		return fmt.Sprintf("%v; want %v", got, want)
	}
	return ""
}

// wantCount expects that many codes of the tenant in all parts of the store.
func wantCount(t *testing.T, s alloc.Store, tenant alloc.Tenant, want int) {
	t.Helper()
	got, parts := 0, make(map[string]bool)
	var err error
	for n := 1; n < 100 && !parts[""] && err == nil; n++ {
		prefix, codes, failed := s.Codes(t.Context(), tenant, host(n))
		switch {
		case errors.Is(failed, alloc.ErrNotFound): // No part has the host.
		case !parts[prefix]:
			got += codes
			parts[prefix], err = true, failed
		}
	}
	if err != nil || got != want {
		t.Errorf("Codes(%v) = %d, %v; want %d", tenant, got, err, want)
	}
}
