package statefile

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"reflect"
	"sync"
	"testing"
	"time"

	"github.com/ferryrelay/ferry/internal/net/endpoint"
)

func sessionsConfig(t testing.TB, unmapped bool) SessionsConfig {
	t.Helper()
	return SessionsConfig{
		Path: filepath.Join(t.TempDir(), "sessions"), Capacity: 8, Relay: [16]byte{1, 2, 3},
		MaxAge: time.Hour, Machine: "up", Unmapped: unmapped,
		OnError: func(err error) { t.Errorf("OnError: %v", err) },
	}
}

func openSessions(t testing.TB, cfg SessionsConfig) *Sessions {
	t.Helper()
	s, err := OpenSessions(cfg)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func left(t testing.TB, cfg SessionsConfig) map[Place]Session {
	t.Helper()
	s := openSessions(t, cfg)
	all := make(map[Place]Session)
	for _, f := range s.Found() {
		all[f.Place] = f.Session
	}
	if err := s.Close(); err != nil {
		t.Error(err)
	}
	return all
}

func sampleSession(n int) *Session {
	x := &Session{
		ID: [16]byte{15: byte(n)}, Serial: uint64(n) << 40, Source: endpoint.Endpoint{Hi: 1, Lo: uint64(n), Tail: 3},
		Suite: 0xA8, Client: [32]byte{byte(n)}, Server: [32]byte{31: byte(n)}, Sent: uint64(n), Received: MaxSequence - uint64(n),
	}
	for range n % 3 * 16 {
		x.Hash = append(x.Hash, byte(n))
	}
	return x
}

func TestSessions(t *testing.T) {
	for _, unmapped := range []bool{false, true} {
		for _, goodbye := range []bool{false, true} {
			t.Run(fmt.Sprintf("unmapped=%v,goodbye=%v", unmapped, goodbye), func(t *testing.T) {
				cfg := sessionsConfig(t, unmapped)
				s := openSessions(t, cfg)
				want := make(map[Place]Session)
				for n := range cfg.Capacity {
					x := sampleSession(n)
					p := s.Add(x)
					if !s.SetSent(p, x.Sent+100) || !s.SetReceived(p, uint64(n)) {
						t.Fatal("not stored")
					}
					x.Sent, x.Received = x.Sent+100, uint64(n)
					want[p] = *x
				}
				if p := s.Add(sampleSession(1)); p != 0 {
					t.Errorf("place %d in a full file", p)
				}
				s.Remove(3)
				delete(want, 3)
				s.Remove(0)
				if !s.SetSent(0, 5) || s.SetSent(1, MaxSequence+1) {
					t.Error("place 0 binds, or a bound that is too large is stored")
				}
				if goodbye {
					if err := s.Close(); err != nil {
						t.Error(err)
					}
				}
				next := openSessions(t, cfg)
				for i, f := range next.Found() {
					if i > 0 && next.Found()[i-1].Place < f.Place {
						t.Errorf("place %d before %d", next.Found()[i-1].Place, f.Place)
					}
				}
				if p := next.Add(sampleSession(20)); p != 3 {
					t.Errorf("place %d is given, want the free one", p)
				}
				want[3] = *sampleSession(20)
				next.Remove(1)
				delete(want, 1)
				if got := left(t, cfg); !reflect.DeepEqual(got, want) {
					t.Errorf("found %v, want %v", got, want)
				}
			})
		}
	}
}

func TestSessionsFlips(t *testing.T) {
	cfg := sessionsConfig(t, true)
	s := openSessions(t, cfg)
	s.Add(sampleSession(4))
	s.Add(sampleSession(5))
	b, err := os.ReadFile(cfg.Path)
	if err != nil {
		t.Fatal(err)
	}
	for bit := 0; bit < slotSize*8; bit += 5 { // each place within a byte comes
		damaged := append([]byte(nil), b...)
		damaged[headerSize+bit/8] ^= 1 << (bit % 8)
		if err := os.WriteFile(cfg.Path, damaged, 0o600); err != nil {
			t.Fatal(err)
		}
		got := left(t, cfg)
		if x, ok := got[1]; ok && !reflect.DeepEqual(x, *sampleSession(4)) || len(got) == 2 != ok {
			t.Fatalf("bit %d: found %v", bit, got)
		}
		if _, ok := got[1]; ok && bit/8 < 120 {
			t.Errorf("bit %d is not covered", bit)
		}
		s := openSessions(t, cfg)
		if _, there := got[1]; !there && s.Add(sampleSession(6)) != 1 {
			t.Fatalf("bit %d: the place is lost", bit)
		}
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
	}
}

// TestSessionsTorn: a process that is killed during a change never leaves a mixture.
func TestSessionsTorn(t *testing.T) {
	for _, change := range []func(s *Sessions){
		func(s *Sessions) { s.Add(sampleSession(6)) },
		func(s *Sessions) { s.Remove(1) },
		func(s *Sessions) { s.SetSent(1, 1<<40) },
		func(s *Sessions) { s.SetReceived(1, 7) },
	} {
		cfg := sessionsConfig(t, true)
		s := openSessions(t, cfg)
		s.Add(sampleSession(4))
		before := left(t, cfg)
		s = openSessions(t, cfg)
		recorded := &recordedFile{file: s.file}
		s.file = recorded
		change(s)
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
		after := left(t, cfg)
		start := recorded.start
		for _, w := range recorded.writes {
			for n := range len(w.b) + 1 {
				b := append([]byte(nil), start...)
				copy(b[w.at:], w.b[:n])
				if err := os.WriteFile(cfg.Path, b, 0o600); err != nil {
					t.Fatal(err)
				}
				for p, x := range left(t, cfg) {
					if !reflect.DeepEqual(x, before[p]) && !reflect.DeepEqual(x, after[p]) {
						t.Fatalf("after %d of %d bytes at %d: %+v", n, len(w.b), w.at, x)
					}
				}
			}
			copy(start[w.at:], w.b)
		}
	}
}

type recordedFile struct {
	file
	start  []byte
	writes []struct {
		at int64
		b  []byte
	}
}

func (f *recordedFile) WriteAt(b []byte, at int64) (int, error) {
	if f.start == nil {
		f.start = make([]byte, sessionsSize(8))
		if _, err := f.file.ReadAt(f.start, 0); err != nil {
			return 0, err
		}
	}
	f.writes = append(f.writes, struct {
		at int64
		b  []byte
	}{at, append([]byte(nil), b...)})
	return f.file.WriteAt(b, at)
}

// TestSessionsFail: after a failed change the next process finds no session, so the
// stored bounds do not hold any more. They still hold if the file can be neither marked
// nor removed.
func TestSessionsFail(t *testing.T) {
	for _, stuck := range []bool{false, true} {
		t.Run(fmt.Sprint("stuck ", stuck), func(t *testing.T) {
			cfg := sessionsConfig(t, true)
			var errs []error
			cfg.OnError = func(err error) { errs = append(errs, err) }
			s := openSessions(t, cfg)
			p := s.Add(sampleSession(1))
			s.file = &brokenFile{file: s.file, mark: !stuck}
			if stuck {
				s.cfg.Path = filepath.Join(cfg.Path, "cannot be removed")
			}
			for range 3 {
				if s.SetSent(p, 1<<20) == stuck || s.SetReceived(p, 1<<20) == stuck {
					t.Error("whether the bound may be raised does not follow from what the next process finds")
				}
			}
			if s.Add(sampleSession(2)) != 0 || s.Storing() || len(errs) != 1 || !errors.Is(errs[0], errDisk) {
				t.Errorf("storing %v, errors %v", s.Storing(), errs)
			}
			s.Remove(p)
			s.Touch()
			if got := left(t, cfg); len(got) != 0 != stuck {
				t.Errorf("the next process finds %v", got)
			}
		})
	}
}

func TestSessionsGrow(t *testing.T) {
	cfg := sessionsConfig(t, false)
	cfg.Capacity = 6000
	s := openSessions(t, cfg)
	first := s.Add(sampleSession(1))
	stop := make(chan struct{})
	var wg sync.WaitGroup
	wg.Go(func() {
		for n := uint64(0); ; n++ {
			select {
			case <-stop:
				return
			default:
				if !s.SetReceived(first, n) {
					t.Error("not stored")
				}
			}
		}
	})
	for n := 1; n < cfg.Capacity; n++ {
		if s.Add(sampleSession(n)) == 0 {
			t.Fatalf("session %d has no room", n)
		}
	}
	close(stop)
	wg.Wait()
	if got := left(t, cfg); len(got) != cfg.Capacity {
		t.Errorf("found %d of %d", len(got), cfg.Capacity)
	}
	cfg.Capacity = 2 // Those beyond it are found all the same.
	if got := left(t, cfg); len(got) != 6000 {
		t.Errorf("found %d of 6000 with a smaller capacity", len(got))
	}
}

func TestSessionsOpen(t *testing.T) {
	for name, change := range map[string]func(*SessionsConfig){
		"path":      func(c *SessionsConfig) { c.Path = "" },
		"capacity":  func(c *SessionsConfig) { c.Capacity = 0 },
		"age":       func(c *SessionsConfig) { c.MaxAge = 0 },
		"directory": func(c *SessionsConfig) { c.Path = filepath.Join(c.Path, "x") },
	} {
		cfg := sessionsConfig(t, false)
		if change(&cfg); name == "directory" {
			if _, err := OpenSessions(cfg); !errors.Is(err, fs.ErrNotExist) {
				t.Errorf("%s: %v", name, err)
			}
		} else if _, err := OpenSessions(cfg); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
	var none *Sessions
	none.Touch()
	none.Remove(1)
	if none.Add(sampleSession(1)) != 0 || !none.SetSent(1, 1) || none.Storing() || none.Found() != nil || none.Close() != nil {
		t.Error("a nil file does something")
	}
}
