package statefile

import (
	"errors"
	"os"
	"runtime"
	"slices"
	"testing"
)

func TestRoundTrip(t *testing.T) {
	t.Parallel()
	modes(t, func(t *testing.T, cfg Config) {
		l, left := open(t, cfg)
		wantIncomplete(t, left, ErrAbsent)
		all := fill(t, l, 6)
		l.SetBinding(all[0].Place, 0xFEDC, 0x123456789ABCDEF0, Bound|Linked)
		all[0].Nonce, all[0].Endpoint, all[0].Flags = 0xFEDC, 0x123456789ABCDEF0, Bound|Linked
		l.SetEndpoint(all[1].Place, 77)
		all[1].Endpoint = 77
		l.SetLinks(all[2].Place, 65535, Host|Linked)
		all[2].Links, all[2].Flags = 65535, Host|Linked
		l.SetCode(all[3].Place, code(t, "WWWWWWWWWWWW"))
		all[3].Code = code(t, "WWWWWWWWWWWW")
		l.SetCode(all[4].Place, Code{})
		all[4].Code = Code{}
		l.Remove(all[5].Place)
		all = all[:5]
		crash(t, l)

		cfg.Boot++
		left = openAndCrash(t, cfg)
		wantRecords(t, left, all)
		wantComplete(t, left, 1)
	})
}

// TestCrashTwice: found and new records are stored after a second crash.
func TestCrashTwice(t *testing.T) {
	t.Parallel()
	modes(t, func(t *testing.T, cfg Config) {
		l, _ := open(t, cfg)
		all := fill(t, l, 3)
		crash(t, l)

		cfg.Boot++
		l, left := open(t, cfg)
		wantRecords(t, left, all)
		r := sample(t, 50)
		all = append(all, FoundRecord{r, l.Add(&r)})
		l.SetLinks(all[1].Place, 9, Host)
		all[1].Links, all[1].Flags = 9, Host
		crash(t, l)

		cfg.Boot++
		l, left = open(t, cfg)
		wantRecords(t, left, all)
		wantComplete(t, left, 2)
		l.Remove(all[0].Place)
		crash(t, l)

		cfg.Boot++
		wantRecords(t, openAndCrash(t, cfg), all[1:])
	})
}

func TestLowestPlace(t *testing.T) {
	t.Parallel()
	l, _ := open(t, testConfig(t, false))
	defer closed(t, l)
	fill(t, l, 6)
	for _, p := range []Place{5, 2, 4} {
		l.Remove(p)
	}
	for _, want := range []Place{2, 4, 5, 7, 8} {
		r := sample(t, 1)
		if p := l.Add(&r); p != want {
			t.Errorf("place %d, want %d", p, want)
		}
	}
}

// TestFull: if there is no place for an allocation, absence proves nothing.
func TestFull(t *testing.T) {
	t.Parallel()
	modes(t, func(t *testing.T, cfg Config) {
		var reported []error
		cfg.OnError = func(err error) { reported = append(reported, err) }
		l, _ := open(t, cfg)
		all := fill(t, l, cfg.Capacity)
		r := sample(t, 99)
		for range 3 {
			if p := l.Add(&r); p != 0 {
				t.Fatalf("place %d of %d", p, cfg.Capacity)
			}
		}
		if len(reported) != 1 || !errors.Is(reported[0], ErrFull) || !l.Storing() {
			t.Errorf("reported %v, storing %v", reported, l.Storing())
		}
		l.Remove(1)
		if p := l.Add(&r); p != 1 {
			t.Errorf("place %d, want the one that became free", p)
		}
		all[0].Record = r
		l.Settle()
		crash(t, l)
		cfg.Boot++
		left := openAndCrash(t, cfg)
		wantRecords(t, left, all)
		wantIncomplete(t, left, ErrUnstored)
		cfg.Boot++
		wantComplete(t, openAndCrash(t, cfg), 2)
	})
}

// TestBoots: for which boots absence is a proof.
func TestBoots(t *testing.T) {
	t.Parallel()
	cfg := testConfig(t, false)
	run := func(boot uint64, settle bool) PreviousRun {
		cfg.Boot = boot
		l, left := open(t, cfg)
		if settle {
			l.Settle()
		}
		crash(t, l)
		return left
	}
	wantIncomplete(t, run(10, false), ErrAbsent)
	wantComplete(t, run(11, false), 10) // 10 said nothing of those before it
	wantComplete(t, run(12, true), 11)
	wantComplete(t, run(13, false), 12, 11, 10) // 12 settled it
	wantComplete(t, run(14, false), 13, 12, 11, 10)

	cfg.Relay[0]++
	wantIncomplete(t, run(15, true), ErrForeign)
	left := run(16, false)
	wantComplete(t, left, 15)
	if left.Ended(14) || !left.Ended(15) || left.Ended(16) {
		t.Error("a new file speaks for boots before it")
	}
	for boot := range uint64(40) {
		left = run(100+boot, true)
	}
	if len(left.Boots) != maxBoots || left.Boots[0] != 138 || !left.Ended(123) || left.Ended(122) {
		t.Errorf("boots %v", left.Boots)
	}
}

// TestMachine: a crash of the machine loses data that is not on the disk, so only a
// closed file is complete then.
func TestMachine(t *testing.T) {
	t.Parallel()
	modes(t, func(t *testing.T, cfg Config) {
		l, _ := open(t, cfg)
		all := fill(t, l, 3)
		crash(t, l)
		cfg.Machine, cfg.Boot = "up again", 2
		l, left := open(t, cfg)
		wantIncomplete(t, left, ErrMachine)
		wantRecords(t, left, all)
		l.Settle()
		closed(t, l)
		cfg.Machine, cfg.Boot = "and again", 3
		left = openAndCrash(t, cfg)
		wantComplete(t, left, 2, 1)
		wantRecords(t, left, all)
		cfg.Machine, cfg.Boot = "at last", 4
		wantIncomplete(t, openAndCrash(t, cfg), ErrMachine)
	})
}

func TestMachineRun(t *testing.T) {
	t.Parallel()
	if id := machineRun(""); (id != [16]byte{}) != (runtime.GOOS == "linux") || id != machineRun("") || id == machineRun("other") {
		t.Errorf("run %x", id)
	}
	h := header{state: stateComplete, capacity: 1}
	if err := h.checkComplete(h.relay, [16]byte{}, fileSize(1)); !errors.Is(err, ErrMachine) {
		t.Errorf("an unknown run: %v", err)
	}
}

func TestCapacityChanges(t *testing.T) {
	t.Parallel()
	modes(t, func(t *testing.T, cfg Config) {
		cfg.Capacity = 3000
		l, _ := open(t, cfg)
		all := fill(t, l, 2500)
		for p := Place(5); p < 2400; p++ {
			l.Remove(p)
		}
		all = slices.Delete(all, 4, 2399)
		crash(t, l)

		cfg.Capacity, cfg.Boot = 6, 2
		l, left := open(t, cfg)
		wantComplete(t, left, 1)
		wantRecords(t, left, all)
		wantSize(t, cfg, 2500)
		var places []Place
		for range 2 {
			r := sample(t, 1)
			places = append(places, l.Add(&r))
		}
		if !slices.Equal(places, []Place{5, 6}) {
			t.Errorf("places %v", places)
		}
		l.SetEndpoint(2450, 5)
		for p := Place(2451); p <= 2500; p++ {
			l.Remove(p)
		}
		for range 2 {
			l.Remove(places[len(places)-1])
			places = places[:len(places)-1]
		}
		crash(t, l)
		all = all[:len(all)-50]
		all[len(all)-1].Endpoint = 5

		for i, capacity := range []int{1, 5000, 1} {
			cfg.Capacity, cfg.Boot = capacity, cfg.Boot+1
			left := openAndCrash(t, cfg)
			wantComplete(t, left, cfg.Boot-1)
			wantRecords(t, left, all)
			wantSize(t, cfg, []int{2450, 5000, 2450}[i])
		}
	})
}

func TestGrowth(t *testing.T) {
	t.Parallel()
	modes(t, func(t *testing.T, cfg Config) {
		cfg.Capacity = 40*chunkPlaces + 7
		l, _ := open(t, cfg)
		before := len(l.disk.mapped)
		all := fill(t, l, 9*chunkPlaces+1)
		if l.IsMapped() && (before != int(fileSize(chunkPlaces)) || len(l.disk.mapped) != int(fileSize(16*chunkPlaces))) {
			t.Errorf("mapped %d, then %d bytes", before, len(l.disk.mapped))
		}
		for p := Place(1); p <= 9*chunkPlaces; p++ {
			l.Remove(p)
		}
		crash(t, l)
		cfg.Boot++
		l, left := open(t, cfg)
		wantComplete(t, left, 1)
		wantRecords(t, left, all[9*chunkPlaces:])
		l.SetEndpoint(9*chunkPlaces+1, 1234)
		fill(t, l, cfg.Capacity-1)
		crash(t, l)
		cfg.Boot++
		left = openAndCrash(t, cfg)
		if wantComplete(t, left, 2); len(left.Records) != cfg.Capacity || left.Records[9*chunkPlaces].Endpoint != 1234 {
			t.Errorf("%d records of %d", len(left.Records), cfg.Capacity)
		}
	})
}

func wantSize(t testing.TB, cfg Config, places int) {
	t.Helper()
	info, err := os.Stat(cfg.Path)
	if err != nil || info.Size() != fileSize(places) {
		t.Errorf("%d bytes, want %d (%v)", info.Size(), fileSize(places), err)
	}
}

func TestPermissions(t *testing.T) {
	t.Parallel()
	if runtime.GOOS == "windows" {
		t.Skip("Windows has no modes of files")
	}
	cfg := testConfig(t, false)
	openAndCrash(t, cfg)
	for _, path := range []string{cfg.Path, cfg.Path + counterSuffix} {
		if info, err := os.Stat(path); err != nil || info.Mode() != 0o600 {
			t.Errorf("%s: mode %v (%v)", path, info.Mode(), err)
		}
	}
}

func TestOpenErrors(t *testing.T) {
	t.Parallel()
	good := testConfig(t, false)
	for name, change := range map[string]func(*Config){
		"no path":      func(c *Config) { c.Path = "" },
		"a directory":  func(c *Config) { c.Path = t.TempDir() },
		"no directory": func(c *Config) { c.Path += "/below/file" },
		"no capacity":  func(c *Config) { c.Capacity = 0 },
		"too much":     func(c *Config) { c.Capacity = MaxCapacity + 1 },
		"no boot":      func(c *Config) { c.Boot = 0 },
	} {
		cfg := good
		change(&cfg)
		if l, _, err := Open(cfg); err == nil || l != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestClosed(t *testing.T) {
	t.Parallel()
	modes(t, func(t *testing.T, cfg Config) {
		l, _ := open(t, cfg)
		all := fill(t, l, 2)
		closed(t, l)
		r := sample(t, 3)
		if p := l.Add(&r); p != 0 || l.Storing() {
			t.Errorf("place %d, storing %v after Close", p, l.Storing())
		}
		l.Remove(1)
		l.Settle()
		if err := l.Close(); !errors.Is(err, os.ErrClosed) {
			t.Errorf("second Close: %v", err)
		}
		cfg.Boot++
		left := openAndCrash(t, cfg)
		wantRecords(t, left, all)
		wantComplete(t, left, 1)
	})
}

func TestPlaceZero(t *testing.T) {
	t.Parallel()
	l, _ := open(t, testConfig(t, false))
	defer closed(t, l)
	l.SetBinding(0, 1, 2, Bound)
	l.SetEndpoint(0, 1)
	l.SetLinks(0, 1, Host)
	l.SetCode(0, Code{})
	l.Remove(0)
	if !l.Storing() {
		t.Error("place 0 ended storing")
	}
}
