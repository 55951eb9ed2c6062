package statefile

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/ferryrelay/ferry/internal/net/endpoint"
	"github.com/ferryrelay/ferry/internal/net/sock"
	"github.com/ferryrelay/ferry/proto"
)

// Sessions is the file of the DTLS sessions of one relay, with which the next process resumes them
// without a handshake. It holds no secret: keys are derived from the allocation's key. One process
// may have it open. Any goroutine may call the methods. A nil *Sessions stores nothing.
//
// # Why it is safe to resume
//
// A sequence number is part of an AEAD nonce and protects against replay, so the bounds in the
// file may be too high but never too low: they are stored before a number at or above them is
// used. The stores of a killed process are kept, in order. A file that may have an older state is
// not read: one of another run of the machine (pages reach a disk in any order), of another relay,
// with a time stamp older than MaxAge, or than that in the counter file (a copy or a backup). A
// slot whose checksums do not match is dropped alone.
type Sessions struct {
	cfg     SessionsConfig
	dir     *os.Root // of the file
	counter *counter // has the last time stamp
	unread  error    // why the file of the previous process is not used
	file    file
	source  *os.File // of the mapping; nil: WriteAt only
	seed    uint32
	found   []FoundSession
	damaged []Place       // neither free nor with a session
	started atomic.Uint64 // sessions ever added, by all processes
	mapped  atomic.Pointer[[]byte]
	state   atomic.Uint32 // sessionsStoring and so on

	mu     sync.Mutex // guards what follows
	stamp  uint64     // the last time stamp
	free   freePlaces
	unmaps []func() error // of all mappings: a goroutine may still use an older one
}

const (
	sessionsStoring  = iota // changes are stored
	sessionsOff             // closed, or failed and invalid: no process reads the file, so its bounds bind nothing
	sessionsReadable        // failed, and the file could be neither marked nor removed
)

type SessionsConfig struct {
	// Path is in a directory that must exist. Path + ".counter" shows whether an older copy was
	// put at Path.
	Path string
	// Capacity is the largest number of sessions, 1 to MaxCapacity, of 192 bytes each. Those of
	// the previous process count until they are removed.
	Capacity int
	Relay    [16]byte
	// Slots at the beginning may hold a session, if the previous process has told it. 0: all.
	Slots int
	// MaxAge is that of the time stamp of a file that is read, see Touch. Not 0.
	MaxAge time.Duration
	// Machine is that of [Config]; unknown, no file is read.
	Machine string
	// Unmapped writes each change with a system call.
	Unmapped bool
	// Fresh removes the file that is there.
	Fresh bool
	// Now is by default time.Now.
	Now func() time.Time
	// OnError is called at most once, with the error after which nothing more is stored. Any
	// goroutine may call it; it must not call the Sessions.
	OnError func(error)
}

type Session struct {
	ID     proto.AllocationID
	Serial uint64
	// Source is the address of the client, see [endpoint.Endpoint.Remote].
	Source endpoint.Endpoint
	// Client and Server are the randoms of the handshake.
	Suite          uint16
	Client, Server [32]byte
	// Hash is the session hash of RFC 7627, at most 48 bytes; empty without the extended master
	// secret.
	Hash []byte
	// Sent is above every sequence number that was sealed, Received above every one that was
	// accepted. At most 2^48.
	Sent, Received uint64
}

type FoundSession struct {
	Session
	Place Place
	order uint64 // the larger one was added later
}

// The layout of the file: a header in a page of its own, then the slots.
//
//	header  0 8 magic, 8 4 size of a slot, 12 4 CRC32C of 0-12 and 16-48,
//	        16 16 relay, 32 16 run of the machine, 48 8 time stamp (a word),
//	        56 8 1 if there is a counter file (a word)
//	slot    0   4  CRC32C of 4 to 176       56  32 client random
//	        4   2  suite                    88  32 server random
//	        6   1  1                        120 48 session hash
//	        7   1  size of the hash         168 8  order
//	        8   16 id                       176 8  sent (a word)
//	        24  8  serial                   184 8  received (a word)
//	        32  24 source
//
// The time stamp is in seconds since 1970, and rises with each store.
const (
	sessionsMagic = "FERRYDT1"
	slotSize      = 192
	slotSum       = 176
	slotSent      = 176
	slotReceived  = 184
	stampAt       = 48
	countedAt     = 56
	hashSize      = 48
	sessionsChunk = 256 << 10
)

// MaxSequence is the largest bound of sequence numbers that can be stored.
const MaxSequence = 1<<wordBits - 1

// OpenSessions accepts any content. It fails if the configuration is invalid or the file cannot be
// created.
func OpenSessions(cfg SessionsConfig) (*Sessions, error) {
	if cfg.Path == "" || cfg.Capacity < 1 || cfg.Capacity > MaxCapacity || cfg.MaxAge <= 0 {
		return nil, fmt.Errorf("statefile: sessions: path %q, capacity %d, maximum age %v", cfg.Path, cfg.Capacity, cfg.MaxAge)
	}
	if cfg.Now == nil {
		cfg.Now = time.Now
	}
	dir, err := os.OpenRoot(filepath.Dir(cfg.Path))
	if err != nil {
		return nil, fmt.Errorf("statefile: %w", err)
	}
	if cfg.Fresh {
		if err := dir.Remove(filepath.Base(cfg.Path)); err != nil && !errors.Is(err, fs.ErrNotExist) {
			_ = dir.Close()
			return nil, fmt.Errorf("statefile: %w", err)
		}
	}
	s, err := openSessionsIn(dir, cfg)
	if err != nil {
		_ = dir.Close()
		return nil, err
	}
	return s, nil
}

func openSessionsIn(dir *os.Root, cfg SessionsConfig) (*Sessions, error) {
	name := filepath.Base(cfg.Path)
	f, size, err := openFile(dir, name)
	if err != nil {
		return nil, err
	}
	if size > 0 && !isSessions(f) {
		if f, err = setAside(dir, name, f); err != nil {
			return nil, err
		}
		size = 0
	}
	c, err := openCounter(dir, name, cfg.Relay)
	if err != nil {
		_ = f.Close()
		return nil, err
	}
	s := &Sessions{
		cfg: cfg, dir: dir, counter: c, file: f,
		seed: recordSeed(cfg.Relay) ^ crc32.Checksum([]byte(sessionsMagic), castagnoli),
	}
	if !cfg.Unmapped {
		s.source = f
	}
	if cfg.Slots > 0 {
		size = min(size, sessionsSize(cfg.Slots))
	}
	s.unread = s.read(size)
	s.free = newFreePlaces(max(cfg.Capacity, s.top()))
	for i := range s.found {
		s.free.take(s.found[i].Place)
	}
	if err := s.start(); err != nil {
		s.fail(err)
	}
	return s, nil
}

// An invalid file of sessions begins with zeros.
func isSessions(f *os.File) bool {
	begin := make([]byte, len(sessionsMagic))
	_, err := f.ReadAt(begin, 0)
	return err == nil && (string(begin) == sessionsMagic || bytes.Equal(begin, make([]byte, len(begin))))
}

// Found returns the sessions of the previous process, the latest first, until they are removed.
func (s *Sessions) Found() []FoundSession {
	if s == nil {
		return nil
	}
	return s.found
}

// Add returns 0 if the file is full or nothing is stored; the session then ends with the process.
func (s *Sessions) Add(x *Session) Place {
	if s == nil || s.state.Load() != sessionsStoring {
		return 0
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	p := s.free.lowest()
	if p == 0 || !s.reserve(p) {
		return 0
	}
	raw := s.encode(x, p, s.started.Add(1))
	// The words first: a slot counts from its checksum on, which is written last.
	if !s.write(raw[4:], slotAt(p)+4) || !s.write(raw[:4], slotAt(p)) || s.state.Load() != sessionsStoring {
		return 0
	}
	s.free.take(p)
	return p
}

// SetSent stores a bound. If it reports false, no number at or above the previous one may be used.
func (s *Sessions) SetSent(p Place, bound uint64) bool { return s.setWord(p, slotSent, bound) }

// SetReceived stores a bound. If it reports false, no record at or above the previous one may be
// accepted.
func (s *Sessions) SetReceived(p Place, bound uint64) bool { return s.setWord(p, slotReceived, bound) }

// Remove frees the place of a session.
func (s *Sessions) Remove(p Place) {
	if s == nil || p == 0 || s.state.Load() != sessionsStoring {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	var zeros [slotSize]byte
	if s.write(zeros[:4], slotAt(p)) && s.write(zeros[:], slotAt(p)) {
		s.free.release(p)
	}
}

// Get works for a file that is not stored any more, too.
func (s *Sessions) Get(p Place) (x Session, ok bool) {
	raw := make([]byte, slotSize)
	if s == nil || p == 0 {
		return x, false
	}
	if _, err := s.file.ReadAt(raw, slotAt(p)); err != nil {
		return x, false
	}
	x, _, ok = s.decode(raw, p)
	return x, ok
}

// Unread returns why the sessions of the previous process are not used; nil if they are, or there
// was no file. It wraps ErrRolledBack for an older copy.
func (s *Sessions) Unread() error {
	if s == nil {
		return nil
	}
	return s.unread
}

// Touch stores the time. The caller must call it more often than every MaxAge, or else the next
// process does not read the file, nor a copy from before the last call.
func (s *Sessions) Touch() {
	if s == nil || s.state.Load() != sessionsStoring {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.stamp = s.nextStamp()
	if !s.writeWord(stampAt, s.stamp) {
		return
	}
	if err := s.counter.set(s.stamp); err != nil {
		s.fail(err)
	}
}

// A stamp that is too far ahead, since the clock was, is not continued.
func (s *Sessions) nextStamp() uint64 {
	now := s.cfg.Now()
	if next := s.stamp + 1; time.Unix(int64(next), 0).Sub(now) < s.cfg.MaxAge {
		return max(next, uint64(now.Unix()))
	}
	return uint64(now.Unix())
}

// Storing reports whether changes are stored.
func (s *Sessions) Storing() bool { return s != nil && s.state.Load() == sessionsStoring }

// Close lets the next process read the file. No other method may run at the same time.
func (s *Sessions) Close() error {
	if s == nil {
		return nil
	}
	s.Touch()
	s.state.Store(sessionsOff)
	s.mu.Lock()
	defer s.mu.Unlock()
	var errs []error
	for _, unmap := range s.unmaps {
		errs = append(errs, unmap())
	}
	s.unmaps = nil
	s.mapped.Store(nil)
	return errors.Join(append(errs, s.file.Close(), s.counter.close(), s.dir.Close())...)
}

func slotAt(p Place) int64 { return headerSize + (int64(p)-1)*slotSize }

func sessionsSize(places int) int64 { return slotAt(Place(places + 1)) }

func (s *Sessions) top() (top int) {
	for i := range s.found {
		top = max(top, int(s.found[i].Place))
	}
	return top
}

// The time stamp is left out.
func (s *Sessions) header() []byte {
	page := make([]byte, headerSize)
	copy(page, sessionsMagic)
	binary.LittleEndian.PutUint32(page[8:], slotSize)
	copy(page[16:], s.cfg.Relay[:])
	machine := machineRun(s.cfg.Machine)
	copy(page[32:], machine[:])
	binary.LittleEndian.PutUint32(page[12:], sessionsHeaderSum(page))
	return page
}

func sessionsHeaderSum(page []byte) uint32 {
	return crc32.Update(crc32.Checksum(page[:12], castagnoli), castagnoli, page[16:stampAt])
}

// An error means that the file must not be used, since its state may be too old.
func (s *Sessions) read(size int64) error {
	s.stamp = s.counter.found
	if size == 0 {
		return ErrAbsent
	}
	page := make([]byte, headerSize)
	if _, err := s.file.ReadAt(page, 0); err != nil || size > sessionsSize(MaxCapacity) {
		return ErrHeader
	}
	want := s.header()
	stamp, ok := parseWord(page[stampAt:], s.seed, stampAt)
	switch {
	case string(page[:12]) != string(want[:12]) || binary.LittleEndian.Uint32(page[12:]) != sessionsHeaderSum(page):
		return ErrHeader
	case string(page[16:32]) != string(want[16:32]):
		return ErrForeign
	case string(page[32:stampAt]) != string(want[32:stampAt]) || [16]byte(want[32:]) == [16]byte{}:
		return ErrMachine
	case !ok:
		return ErrHeader
	}
	counted := stamp
	if string(page[countedAt:countedAt+8]) == string(make([]byte, 8)) && s.counter.found == 0 {
		counted = 0 // of a version that had no counter
	}
	if err := checkCount(counted, s.counter.found); err != nil {
		return err
	}
	if age := s.cfg.Now().Sub(time.Unix(int64(stamp), 0)); age.Abs() > s.cfg.MaxAge {
		return fmt.Errorf("statefile: sessions: the file was used %v ago", age)
	}
	slots := make([]byte, size-headerSize)
	if _, err := s.file.ReadAt(slots, headerSize); err != nil {
		return err
	}
	var zeros [slotSize]byte
	for i := range len(slots) / slotSize {
		p, raw := Place(i+1), slots[i*slotSize:][:slotSize]
		if x, order, ok := s.decode(raw, p); ok {
			s.found = append(s.found, FoundSession{x, p, order})
			s.started.Store(max(s.started.Load(), order))
		} else if !bytes.Equal(raw, zeros[:]) {
			s.damaged = append(s.damaged, p)
		}
	}
	slices.SortFunc(s.found, func(a, b FoundSession) int { return cmp.Compare(b.order, a.order) })
	s.stamp = max(s.stamp, stamp)
	return nil
}

// A file that must not be used is invalid until all of it is written.
func (s *Sessions) start() error {
	if s.unread != nil {
		if err := s.invalidate(); err != nil {
			return err
		}
		if err := s.file.Truncate(headerSize); err != nil {
			return err
		}
	}
	if err := s.clearDamaged(); err != nil {
		return err
	}
	if err := s.file.Truncate(sessionsSize(s.free.count)); err != nil {
		return err
	}
	page := s.header()
	s.stamp = s.nextStamp()
	putWord(page[stampAt:], s.seed, stampAt, s.stamp)
	putWord(page[countedAt:], s.seed, countedAt, 1)
	if _, err := s.file.WriteAt(page, 0); err != nil {
		return err
	}
	if err := s.counter.start(s.stamp, !s.cfg.Unmapped); err != nil {
		return err
	}
	if s.source != nil && !s.growTo(slotAt(Place(s.top()+1))) {
		s.source = nil // WriteAt works too.
	}
	return nil
}

func (s *Sessions) clearDamaged() error {
	var zeros [slotSize]byte
	for _, p := range s.damaged {
		if _, err := s.file.WriteAt(zeros[:], slotAt(p)); err != nil {
			return err
		}
	}
	return nil
}

func (s *Sessions) invalidate() error {
	_, err := s.file.WriteAt(make([]byte, headerSize), 0)
	return err
}

// The caller of reserve holds the lock.
func (s *Sessions) reserve(p Place) bool {
	m := s.mapped.Load()
	return m == nil || slotAt(p+1) <= int64(len(*m)) || s.growTo(slotAt(p+1))
}

// Older mappings stay, since another goroutine may be about to use one: they show the same pages.
func (s *Sessions) growTo(size int64) bool {
	if m := s.mapped.Load(); m != nil {
		size = max(size, 2*int64(len(*m)))
	}
	size = min((size+sessionsChunk-1)/sessionsChunk*sessionsChunk, sessionsSize(s.free.count))
	mapped, unmap, err := sock.MapFile(s.source, int(size))
	if err != nil {
		return false
	}
	s.unmaps = append(s.unmaps, unmap)
	s.mapped.Store(&mapped)
	return true
}

func (s *Sessions) setWord(p Place, at int64, bound uint64) bool {
	switch {
	case s == nil || p == 0 || s.state.Load() == sessionsOff:
		return true
	case bound > MaxSequence:
		return false
	}
	return s.writeWord(slotAt(p)+at, bound)
}

// writeWord allocates nothing where the file is mapped.
func (s *Sessions) writeWord(at int64, value uint64) bool {
	var b [8]byte
	putWord(b[:], s.seed, at, value)
	if m := s.mapped.Load(); m != nil {
		return s.checkWrite(copyMapped((*m)[at:at+8], b[:]))
	}
	return s.write(bytes.Clone(b[:]), at)
}

// write reports false if it fails and the stored bounds still hold.
func (s *Sessions) write(b []byte, at int64) bool {
	if m := s.mapped.Load(); m != nil {
		return s.checkWrite(copyMapped((*m)[at:at+int64(len(b))], b))
	}
	if s.state.Load() == sessionsOff {
		return true
	}
	_, err := s.file.WriteAt(b, at)
	return s.checkWrite(err)
}

// After an error nothing more is stored. checkWrite reports false if the stored bounds still hold,
// since a process may read the file.
func (s *Sessions) checkWrite(err error) bool {
	if err == nil {
		return true
	}
	s.fail(err)
	return s.state.Load() == sessionsOff
}

// fail invalidates or removes the file. If both fail, the stored bounds still hold.
func (s *Sessions) fail(err error) {
	next := uint32(sessionsOff)
	if e := s.invalidate(); e != nil {
		if e := s.dir.Remove(filepath.Base(s.cfg.Path)); e != nil {
			next = sessionsReadable
			err = fmt.Errorf("%w; remove %s before the next start, as that failed: %w", err, s.cfg.Path, e)
		}
	}
	first := s.state.CompareAndSwap(sessionsStoring, next)
	if next == sessionsOff {
		s.state.Store(next)
	}
	if first && s.cfg.OnError != nil {
		s.cfg.OnError(fmt.Errorf("statefile: sessions are not stored any more: %w", err))
	}
}

func (s *Sessions) encode(x *Session, p Place, order uint64) (raw [slotSize]byte) {
	binary.LittleEndian.PutUint16(raw[4:], x.Suite)
	raw[6], raw[7] = 1, byte(len(x.Hash))
	copy(raw[8:], x.ID[:])
	for i, word := range [...]uint64{x.Serial, x.Source.Hi, x.Source.Lo, x.Source.Tail} {
		binary.LittleEndian.PutUint64(raw[24+8*i:], word)
	}
	copy(raw[56:], x.Client[:])
	copy(raw[88:], x.Server[:])
	copy(raw[120:120+hashSize], x.Hash)
	binary.LittleEndian.PutUint64(raw[168:], order)
	putWord(raw[slotSent:], s.seed, slotAt(p)+slotSent, x.Sent)
	putWord(raw[slotReceived:], s.seed, slotAt(p)+slotReceived, x.Received)
	binary.LittleEndian.PutUint32(raw[:], s.sum(raw[4:slotSum], uint64(p)))
	return raw
}

// decode reports false for a free or a damaged slot.
func (s *Sessions) decode(raw []byte, p Place) (x Session, order uint64, ok bool) {
	word := func(at int) uint64 { return binary.LittleEndian.Uint64(raw[at:]) }
	if raw[6] != 1 || raw[7] > hashSize || binary.LittleEndian.Uint32(raw) != s.sum(raw[4:slotSum], uint64(p)) {
		return x, 0, false
	}
	sent, okSent := parseWord(raw[slotSent:], s.seed, slotAt(p)+slotSent)
	received, okReceived := parseWord(raw[slotReceived:], s.seed, slotAt(p)+slotReceived)
	return Session{
		ID:     proto.AllocationID(raw[8 : 8+len(proto.AllocationID{})]),
		Serial: word(24), Source: endpoint.Endpoint{Hi: word(32), Lo: word(40), Tail: word(48)},
		Suite:  binary.LittleEndian.Uint16(raw[4:]),
		Client: [32]byte(raw[56:]), Server: [32]byte(raw[88:]),
		Hash: append([]byte(nil), raw[120:120+int(raw[7])]...),
		Sent: sent, Received: received,
	}, word(168), okSent && okReceived
}

// sum is keyed with the relay and a position.
func (s *Sessions) sum(b []byte, at uint64) uint32 {
	var key [8]byte
	binary.LittleEndian.PutUint64(key[:], at)
	return crc32.Update(crc32.Update(s.seed, castagnoli, key[:]), castagnoli, b)
}
