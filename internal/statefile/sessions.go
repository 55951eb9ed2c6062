package statefile

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/ferryrelay/ferry/internal/endpoint"
	"github.com/ferryrelay/ferry/internal/sock"
	"github.com/ferryrelay/ferry/proto"
)

// Sessions is the file of the DTLS sessions of one relay: what the next process
// needs to go on with a session without a handshake. It holds no secret: keys
// follow from the allocation's key, which is not in it.
//
// The file belongs to one process at a time; all methods may be called by any
// goroutine. A nil *Sessions stores nothing.
//
// # What makes it safe to go on
//
// A sequence number is part of an AEAD nonce, and what keeps replayed records
// out, so the file may say too much but never too little. Sent and Received are
// therefore bounds that are stored before a number at or above them is used. A
// process that is killed leaves its stores to the file behind, in order. What
// could hold an older state than the one that was left is not read at all: a file
// of another run of the machine (pages reach a disk in any order), of another
// relay, or one whose time stamp is older than MaxAge (a copy, a backup). A slot
// whose checksums do not hold is dropped alone.
type Sessions struct {
	cfg     SessionsConfig
	file    file
	source  *os.File // of the mapping; nil: WriteAt only
	seed    uint32
	found   []FoundSession
	started atomic.Uint64 // sessions ever added, by all processes
	mapped  atomic.Pointer[[]byte]
	state   atomic.Uint32 // sessionsStoring and so on

	mu     sync.Mutex // guards what follows
	free   freePlaces
	unmaps []func() error // of all mappings: a goroutine may still use an older one
}

// States of a Sessions.
const (
	sessionsStoring  = iota // changes are stored
	sessionsOff             // closed, or failed and invalid: no process reads the file, so its bounds bind nothing
	sessionsReadable        // failed, and the file could be neither marked nor removed
)

// SessionsConfig says where the file is and whose.
type SessionsConfig struct {
	// Path is where the file is. Its directory must exist.
	Path string
	// Capacity is how many sessions it takes, 1 to MaxCapacity, 192 bytes each.
	// Those that the process before left count until they are removed.
	Capacity int
	// Relay is the relay's id. A file of another relay is not read.
	Relay [16]byte
	// MaxAge is how old the last change of the time stamp may be, see Touch. Not 0.
	MaxAge time.Duration
	// Machine names this run of the machine. Default: what the kernel says (Linux);
	// elsewhere unknown, and no file is read.
	Machine string
	// Unmapped writes each change with a system call, as on platforms without a
	// mapping.
	Unmapped bool
	// Now is the clock. Default time.Now.
	Now func() time.Time
	// OnError is called at most once, when nothing is stored any more. Any
	// goroutine may call it; it must not call the Sessions. Default: not called.
	OnError func(error)
}

// Session is what goes on after a restart of the process.
type Session struct {
	ID     proto.AllocationID
	Serial uint64
	// Source is where the client is, without what only the process before knew.
	Source endpoint.Endpoint
	// Suite is the cipher suite, Client and Server are the randoms of the handshake.
	Suite          uint16
	Client, Server [32]byte
	// Hash is the session hash of RFC 7627; empty without the extended master
	// secret. At most 48 bytes.
	Hash []byte
	// Sent is above every sequence number that was sealed, Received above every one
	// that was accepted. At most 2^48.
	Sent, Received uint64
}

// FoundSession is a session that the process before left, and where it is.
type FoundSession struct {
	Session
	Place Place
	order uint64 // the larger one was added later
}

// The layout of the file: a header in a page of its own, then the slots.
//
//	header  0 8 magic, 8 4 size of a slot, 12 4 CRC32C of 0-12 and 16-48,
//	        16 16 relay, 32 16 run of the machine, 48 8 time stamp (a word)
//	slot    0   4  CRC32C of 4 to 176       56  32 client random
//	        4   2  suite                    88  32 server random
//	        6   1  1                        120 48 session hash
//	        7   1  size of the hash         168 8  order
//	        8   16 id                       176 8  sent (a word)
//	        24  8  serial                   184 8  received (a word)
//	        32  24 source
//
// A word is one aligned store: 48 bits, and a checksum of 16 that is keyed with
// relay, place and position.
const (
	sessionsMagic = "FERRYDT1"
	slotSize      = 192
	slotSum       = 176
	slotSent      = 176
	slotReceived  = 184
	stampAt       = 48
	hashSize      = 48
	wordBits      = 48
	// sessionsChunk is by how much the mapping grows at least, in bytes.
	sessionsChunk = 256 << 10
)

// MaxSequence is the largest bound of sequence numbers that can be stored.
const MaxSequence = 1<<wordBits - 1

// OpenSessions opens the file or makes a new one. Whatever is in it, the result
// can be used; the error means that the configuration is wrong or no file can be
// made. Sessions of the process before are in Found.
func OpenSessions(cfg SessionsConfig) (*Sessions, error) {
	if cfg.Path == "" || cfg.Capacity < 1 || cfg.Capacity > MaxCapacity || cfg.MaxAge <= 0 {
		return nil, fmt.Errorf("statefile: sessions: path %q, capacity %d, maximum age %v", cfg.Path, cfg.Capacity, cfg.MaxAge)
	}
	if cfg.Now == nil {
		cfg.Now = time.Now
	}
	f, size, err := openFile(cfg.Path)
	if err != nil {
		return nil, err
	}
	s := &Sessions{cfg: cfg, file: f, seed: recordSeed(cfg.Relay) ^ crc32.Checksum([]byte(sessionsMagic), castagnoli)}
	if !cfg.Unmapped {
		s.source = f
	}
	intact := s.read(size)
	s.free = newFreePlaces(max(cfg.Capacity, s.top()))
	for i := range s.found {
		s.free.take(s.found[i].Place)
	}
	if err := s.start(size, intact); err != nil {
		s.fail(err)
	}
	return s, nil
}

// Found returns the sessions that the process before left, the latest first.
// They stay in the file until they are removed.
func (s *Sessions) Found() []FoundSession {
	if s == nil {
		return nil
	}
	return s.found
}

// Add stores a session. It returns 0 when there is no room or nothing is stored;
// the session then does not go on after a restart.
func (s *Sessions) Add(x *Session) Place {
	if s == nil || s.state.Load() != sessionsStoring {
		return 0
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	p := s.free.lowest()
	if p == 0 || !s.room(p) {
		return 0
	}
	raw := s.encode(x, p, s.started.Add(1))
	// The words first: a slot counts from its checksum on, which is written last.
	if !s.write(raw[4:], slotAt(p)+4) || !s.write(raw[:4], slotAt(p)) {
		return 0
	}
	s.free.take(p)
	return p
}

// SetSent stores the bound of the sequence numbers sent. False means that none at
// or above the bound before may be used.
func (s *Sessions) SetSent(p Place, bound uint64) bool { return s.setWord(p, slotSent, bound) }

// SetReceived stores the bound of the sequence numbers received. False means that
// no record at or above the bound before may be accepted.
func (s *Sessions) SetReceived(p Place, bound uint64) bool { return s.setWord(p, slotReceived, bound) }

// Remove frees the place of a session.
func (s *Sessions) Remove(p Place) {
	if s == nil || p == 0 || s.state.Load() != sessionsStoring {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	var none [slotSize]byte
	if s.write(none[:4], slotAt(p)) && s.write(none[:], slotAt(p)) {
		s.free.release(p)
	}
}

// Touch stores the time. It is to be called more often than every MaxAge, else
// the next process does not read the file.
func (s *Sessions) Touch() {
	if s != nil && s.state.Load() == sessionsStoring {
		s.writeWord(stampAt, uint64(s.cfg.Now().Unix()))
	}
}

// Storing reports whether changes are stored.
func (s *Sessions) Storing() bool { return s != nil && s.state.Load() == sessionsStoring }

// Close closes the file, which the next process then reads. Nothing may use the
// Sessions while Close runs, and nothing is stored afterwards.
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
	return errors.Join(append(errs, s.file.Close())...)
}

func slotAt(p Place) int64 { return headerSize + (int64(p)-1)*slotSize }

func sessionsSize(places int) int64 { return slotAt(Place(places + 1)) }

// top returns the highest place that holds a session.
func (s *Sessions) top() (top int) {
	for i := range s.found {
		top = max(top, int(s.found[i].Place))
	}
	return top
}

// header returns the page with everything but the time stamp.
func (s *Sessions) header() []byte {
	page := make([]byte, headerSize)
	copy(page, sessionsMagic)
	binary.LittleEndian.PutUint32(page[8:], slotSize)
	copy(page[16:], s.cfg.Relay[:])
	machine := machineRun(s.cfg.Machine)
	copy(page[32:], machine[:])
	sum := crc32.Update(crc32.Checksum(page[:12], castagnoli), castagnoli, page[16:stampAt])
	binary.LittleEndian.PutUint32(page[12:], sum)
	return page
}

// read finds the sessions in the file. It reports false if the file may not be
// believed.
func (s *Sessions) read(size int64) bool {
	page := make([]byte, headerSize)
	if _, err := s.file.ReadAt(page, 0); err != nil || size > sessionsSize(MaxCapacity) {
		return false
	}
	want := s.header()
	if string(page[:stampAt]) != string(want[:stampAt]) || [16]byte(want[32:]) == [16]byte{} {
		return false
	}
	stamp, ok := s.parseWord(page[stampAt:], stampAt)
	age := s.cfg.Now().Sub(time.Unix(int64(stamp), 0))
	if !ok || age.Abs() > s.cfg.MaxAge {
		return false
	}
	slots := make([]byte, size-headerSize)
	if _, err := s.file.ReadAt(slots, headerSize); err != nil {
		return false
	}
	for i := range len(slots) / slotSize {
		p := Place(i + 1)
		if x, order, ok := s.decode(slots[i*slotSize:][:slotSize], p); ok {
			s.found = append(s.found, FoundSession{x, p, order})
			s.started.Store(max(s.started.Load(), order))
		}
	}
	slices.SortFunc(s.found, func(a, b FoundSession) int { return cmp.Compare(b.order, a.order) })
	return true
}

// start makes the file this process's. One that is not believed is invalid until all of it
// has been written.
func (s *Sessions) start(size int64, intact bool) error {
	if !intact {
		if err := s.invalidate(); err != nil {
			return err
		}
		if err := s.file.Truncate(headerSize); err != nil {
			return err
		}
		size = headerSize
	}
	if err := s.clearDamaged(size); err != nil {
		return err
	}
	if err := s.file.Truncate(sessionsSize(s.free.count)); err != nil {
		return err
	}
	page := s.header()
	s.putWord(page[stampAt:], stampAt, uint64(s.cfg.Now().Unix()))
	if _, err := s.file.WriteAt(page, 0); err != nil {
		return err
	}
	if s.source != nil && !s.growTo(slotAt(Place(s.top()+1))) {
		s.source = nil // WriteAt does as well.
	}
	return nil
}

// clearDamaged writes zeros to every slot in which no session was found.
func (s *Sessions) clearDamaged(size int64) error {
	found := make(map[Place]bool, len(s.found))
	for i := range s.found {
		found[s.found[i].Place] = true
	}
	var raw, none [slotSize]byte
	for p := Place(1); slotAt(p+1) <= size; p++ {
		if found[p] {
			continue
		}
		if _, err := s.file.ReadAt(raw[:], slotAt(p)); err != nil {
			return err
		}
		if raw == none {
			continue // Writing would take room on the disk.
		}
		if _, err := s.file.WriteAt(none[:], slotAt(p)); err != nil {
			return err
		}
	}
	return nil
}

func (s *Sessions) invalidate() error {
	_, err := s.file.WriteAt(make([]byte, headerSize), 0)
	return err
}

// room makes sure that a place can be written through the mapping, if there is
// one. The caller holds the lock.
func (s *Sessions) room(p Place) bool {
	m := s.mapped.Load()
	return m == nil || slotAt(p+1) <= int64(len(*m)) || s.growTo(slotAt(p+1))
}

// growTo maps at least so many bytes. Older mappings stay, since another goroutine
// may be about to use one: they show the same pages.
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
	s.putWord(b[:], at, value)
	if m := s.mapped.Load(); m != nil {
		return s.stored(guarded((*m)[at:at+8], b[:]))
	}
	return s.write(bytes.Clone(b[:]), at)
}

// write changes the file. It reports false if what was stored before still binds.
func (s *Sessions) write(b []byte, at int64) bool {
	if m := s.mapped.Load(); m != nil {
		return s.stored(guarded((*m)[at:at+int64(len(b))], b))
	}
	if s.state.Load() == sessionsOff {
		return true
	}
	_, err := s.file.WriteAt(b, at)
	return s.stored(err)
}

// stored deals with the result of a change. After a failure nothing is stored any
// more, and what was stored before binds nothing if no process will read the file.
func (s *Sessions) stored(err error) bool {
	if err == nil {
		return true
	}
	s.fail(err)
	return s.state.Load() == sessionsOff
}

// fail ends storing, and makes sure that no process believes the file; where even
// that fails, the bounds that are stored stay in force.
func (s *Sessions) fail(err error) {
	next := uint32(sessionsOff)
	if e := s.invalidate(); e != nil {
		if e := os.Remove(s.cfg.Path); e != nil {
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
	s.putWord(raw[slotSent:], slotAt(p)+slotSent, x.Sent)
	s.putWord(raw[slotReceived:], slotAt(p)+slotReceived, x.Received)
	binary.LittleEndian.PutUint32(raw[:], s.sum(raw[4:slotSum], uint64(p)))
	return raw
}

// decode reads the slot at p. It reports false for a free or a damaged one.
func (s *Sessions) decode(raw []byte, p Place) (x Session, order uint64, ok bool) {
	word := func(at int) uint64 { return binary.LittleEndian.Uint64(raw[at:]) }
	if raw[6] != 1 || raw[7] > hashSize || binary.LittleEndian.Uint32(raw) != s.sum(raw[4:slotSum], uint64(p)) {
		return x, 0, false
	}
	sent, okSent := s.parseWord(raw[slotSent:], slotAt(p)+slotSent)
	received, okReceived := s.parseWord(raw[slotReceived:], slotAt(p)+slotReceived)
	return Session{
		ID:     proto.AllocationID(raw[8 : 8+proto.IDLen]),
		Serial: word(24), Source: endpoint.Endpoint{Hi: word(32), Lo: word(40), Tail: word(48)},
		Suite:  binary.LittleEndian.Uint16(raw[4:]),
		Client: [32]byte(raw[56:]), Server: [32]byte(raw[88:]),
		Hash: append([]byte(nil), raw[120:120+int(raw[7])]...),
		Sent: sent, Received: received,
	}, word(168), okSent && okReceived
}

// sum is a checksum that is keyed with the relay and a position.
func (s *Sessions) sum(b []byte, at uint64) uint32 {
	var key [8]byte
	binary.LittleEndian.PutUint64(key[:], at)
	return crc32.Update(crc32.Update(s.seed, castagnoli, key[:]), castagnoli, b)
}

// putWord writes a word that stands at a position of the file.
func (s *Sessions) putWord(b []byte, at int64, value uint64) {
	// The multiplications of SplitMix64: the upper bits are well mixed.
	x := value ^ uint64(s.seed)<<16 ^ uint64(at)*0x9E3779B97F4A7C15
	x = (x ^ x>>30) * 0xBF58476D1CE4E5B9
	x = (x ^ x>>27) * 0x94D049BB133111EB
	binary.LittleEndian.PutUint64(b, x&^uint64(MaxSequence)|value)
}

func (s *Sessions) parseWord(b []byte, at int64) (value uint64, ok bool) {
	var want [8]byte
	value = binary.LittleEndian.Uint64(b) & MaxSequence
	s.putWord(want[:], at, value)
	return value, want == [8]byte(b[:8])
}
