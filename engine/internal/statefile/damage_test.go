package statefile

import (
	"bytes"
	"encoding/binary"
	"hash/crc32"
	"os"
	"slices"
	"testing"
)

func image(t testing.TB, cfg Config) (file []byte, all []FoundRecord, last Place) {
	t.Helper()
	l, _ := open(t, cfg)
	all = fill(t, l, 6)
	l.Remove(3)
	l.SetLinks(5, 12, Host)
	all[4].Links, all[4].Flags = 12, Host
	all = slices.Delete(all, 2, 3)
	l.Settle()
	crash(t, l)
	return contents(t, cfg), all, 5
}

func contents(t testing.TB, cfg Config) []byte {
	t.Helper()
	b, err := os.ReadFile(cfg.Path)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func scanBytes(b []byte, cfg Config) PreviousRun {
	s := scanFile(bytes.NewReader(b), int64(len(b)), cfg.Relay, machineRun(cfg.Machine), nil)
	return s.previousRun()
}

func checkScan(t testing.TB, what string, at int, left PreviousRun, all []FoundRecord) {
	t.Helper()
	for _, r := range left.Records {
		if !slices.Contains(all, r) {
			t.Fatalf("%s %d: found %+v, which was not stored", what, at, r)
		}
	}
	if left.Complete && len(left.Records) != len(all) || left.Complete != (left.Err == nil) || left.Complete != (len(left.Boots) > 0) {
		t.Fatalf("%s %d: %d records of %d, %d damaged, boots %v: %v", what, at, len(left.Records), len(all), left.Damaged, left.Boots, left.Err)
	}
}

func TestBitFlips(t *testing.T) {
	t.Parallel()
	cfg := testConfig(t, true)
	file, all, last := image(t, cfg)
	checkScan(t, "whole", 0, scanBytes(file, cfg), all)
	for bit := range len(file) * 8 {
		file[bit/8] ^= 1 << (bit % 8)
		left := scanBytes(file, cfg)
		file[bit/8] ^= 1 << (bit % 8)
		checkScan(t, "bit", bit, left, all)
		at := int64(bit / 8)
		inLast := at >= offset(last) && at < offset(last+1)
		unused := at >= headerLen && at < countAt || at >= journalAt && at < headerSize
		if want := unused || inLast; left.Complete != want {
			t.Fatalf("bit %d of byte %d: complete %v, %v", bit%8, at, left.Complete, left.Err)
		}
		if at >= headerSize && !inLast && left.Damaged != 1 || len(left.Records) < len(all)-1 {
			t.Fatalf("byte %d: %d damaged, %d records", at, left.Damaged, len(left.Records))
		}
	}
}

// TestOpenDamaged: intact records are kept, and the file accounts for no earlier boot.
func TestOpenDamaged(t *testing.T) {
	t.Parallel()
	modes(t, func(t *testing.T, cfg Config) {
		file, all, last := image(t, cfg)
		cfg.Boot = 2
		for at := 0; at < len(file); at++ {
			if at == headerLen {
				at = headerSize
			}
			if at%7 != 0 && at != int(offset(3)) || int64(at) >= offset(last) && int64(at) < offset(last+1) {
				continue
			}
			broken := slices.Clone(file)
			broken[at] ^= 0x10
			if err := os.WriteFile(cfg.Path, broken, 0o600); err != nil {
				t.Fatal(err)
			}
			l, left := open(t, cfg)
			checkScan(t, "byte", at, left, all)
			wantIncomplete(t, left, nil)
			r := sample(t, 70)
			now := append(slices.Clone(left.Records), FoundRecord{r, l.Add(&r)})
			crash(t, l)
			slices.SortFunc(now, func(a, b FoundRecord) int { return int(a.Place) - int(b.Place) })

			cfg.Boot = 3
			left = openAndCrash(t, cfg)
			cfg.Boot = 2
			wantRecords(t, left, now)
			wantComplete(t, left, 2)
		}
	})
}

func TestTruncations(t *testing.T) {
	t.Parallel()
	cfg := testConfig(t, true)
	file, all, _ := image(t, cfg)
	for size := range file {
		left := scanBytes(file[:size], cfg)
		checkScan(t, "size", size, left, all)
		if whole := max(0, size-headerSize) / recordSize; left.Complete || len(left.Records) < min(whole, 2) {
			t.Fatalf("size %d: complete %v with %d records: %v", size, left.Complete, len(left.Records), left.Err)
		}
	}
	for _, size := range []int{0, 1, headerLen, headerSize - 1, headerSize, headerSize + 1, headerSize + 100, len(file) - 1} {
		if err := os.WriteFile(cfg.Path, file[:size], 0o600); err != nil {
			t.Fatal(err)
		}
		cfg.Boot = 2
		wantIncomplete(t, openAndCrash(t, cfg), nil)
		wantSize(t, cfg, cfg.Capacity)
		cfg.Boot = 3
		wantComplete(t, openAndCrash(t, cfg), 2)
	}
}

func TestTorn(t *testing.T) {
	t.Parallel()
	r := sample(t, 33)
	for name, change := range map[string]func(l *File) Place{
		"add":     func(l *File) Place { return l.Add(&r) },
		"binding": func(l *File) Place { l.SetBinding(2, 900, 901, Bound); return 2 },
		"remove":  func(l *File) Place { l.Remove(4); return 4 },
	} {
		t.Run(name, func(t *testing.T) {
			cfg := testConfig(t, true)
			before, _, _ := image(t, cfg)
			l, left := open(t, cfg)
			p := change(l)
			crash(t, l)
			next := contents(t, cfg)
			old, fresh := left.Records, scanBytes(next, cfg).Records
			if slices.Equal(old, fresh) {
				t.Fatal("nothing changed")
			}
			torn := before
			for n := range entrySize + recordSize {
				at := journalAt + n
				if n >= entrySize {
					at = int(offset(p)) + n - entrySize
				}
				torn[at] = next[at]
				left := scanBytes(torn, cfg)
				if want := n >= entrySize; !left.Complete || !slices.Equal(left.Records, old) && !slices.Equal(left.Records, fresh) ||
					want && n == entrySize+recordSize-1 && !slices.Equal(left.Records, fresh) {
					t.Fatalf("after %d bytes: %v, %v", n+1, left.Err, left.Records)
				}
			}
		})
	}
}

// TestTornWithoutJournal: a torn record that is not in the journal is damaged.
func TestTornWithoutJournal(t *testing.T) {
	t.Parallel()
	cfg := testConfig(t, true)
	file, all, _ := image(t, cfg)
	seed := recordSeed(cfg.Relay)
	var raw rawRecord
	r := sample(t, 44)
	raw.encode(&r)
	raw.seal(seed, 2)
	for n := 1; n < recordSize; n++ {
		torn := slices.Clone(file)
		copy(torn[offset(2):], raw[:n])
		left := scanBytes(torn, cfg)
		checkScan(t, "torn after", n, left, all)
		wantIncomplete(t, left, ErrDamaged)
	}
}

// TestMoved: a record at the place of another, or with an invalid join code, is damaged.
func TestMoved(t *testing.T) {
	t.Parallel()
	cfg := testConfig(t, true)
	file, all, _ := image(t, cfg)
	copy(file[offset(7):], file[offset(1):offset(2)])
	left := scanBytes(file, cfg)
	checkScan(t, "moved to", 7, left, all)
	wantIncomplete(t, left, ErrDamaged)

	file, _, _ = image(t, testConfig(t, true))
	raw := (*rawRecord)(file[offset(1):])
	raw.setCode(Code{1 << 52})
	raw.seal(recordSeed(cfg.Relay), 1)
	wantIncomplete(t, scanBytes(file, cfg), ErrDamaged)
}

// TestSetAside: a file of another relay is kept.
func TestSetAside(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		change func(file []byte, cfg *Config) []byte
		reason error
	}{
		"foreign": {func(file []byte, cfg *Config) []byte { cfg.Relay[15]++; return file }, ErrForeign},
		"version": {func(file []byte, cfg *Config) []byte { return otherVersion(file, *cfg) }, ErrVersion},
		"text":    {func([]byte, *Config) []byte { return []byte("not a state file") }, ErrHeader},
		"zeros":   {func([]byte, *Config) []byte { return make([]byte, 10_000) }, ErrHeader},
		"noise":   {func([]byte, *Config) []byte { return bytes.Repeat([]byte("noise"), 10_000) }, ErrHeader},
	} {
		t.Run(name, func(t *testing.T) {
			cfg := testConfig(t, false)
			file, _, _ := image(t, cfg)
			file = c.change(file, &cfg)
			if err := os.WriteFile(cfg.Path, file, 0o600); err != nil {
				t.Fatal(err)
			}
			left := openAndCrash(t, cfg)
			wantIncomplete(t, left, c.reason)
			wantRecords(t, left, nil)
			wantSize(t, cfg, cfg.Capacity)
			if old, err := os.ReadFile(cfg.Path + setAsideSuffix); err != nil || !bytes.Equal(old, file) {
				t.Errorf("the old file has %d bytes: %v", len(old), err)
			}
		})
	}
}

func otherVersion(file []byte, cfg Config) []byte {
	binary.LittleEndian.PutUint16(file[versionAt:], version+1)
	binary.LittleEndian.PutUint32(file[headerSumAt:], crc32.Checksum(file[:headerSumAt], castagnoli))
	other := binary.LittleEndian.AppendUint16([]byte(magic), version+1)
	seed := crc32.Checksum(append(other, cfg.Relay[:]...), castagnoli)
	for p := Place(1); int(p) <= cfg.Capacity; p++ {
		if raw := (*rawRecord)(file[offset(p):]); !raw.free() {
			raw.seal(seed, p)
		}
	}
	return file
}

func FuzzScan(f *testing.F) {
	cfg := testConfig(f, true)
	file, _, _ := image(f, cfg)
	f.Add(file)
	f.Add(file[:headerSize+100])
	f.Add([]byte(magic))
	f.Add([]byte{})
	f.Fuzz(func(t *testing.T, b []byte) {
		left := scanBytes(b, cfg)
		if left.Complete != (left.Err == nil) || len(left.Records)+left.Damaged > placesIn(int64(len(b))) {
			t.Errorf("%+v", left)
		}
		for i, r := range left.Records {
			if offset(r.Place+1) > int64(len(b))+recordSize || i > 0 && r.Place <= left.Records[i-1].Place {
				t.Errorf("place %d of %d bytes", r.Place, len(b))
			}
		}
	})
}
