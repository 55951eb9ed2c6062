package dtls

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/ferryrelay/ferry/engine/internal/driver"
	"github.com/ferryrelay/ferry/engine/internal/statefile"
	"github.com/ferryrelay/ferry/internal/base/keyfile"
	"github.com/ferryrelay/ferry/internal/net/endpoint"
	"github.com/ferryrelay/ferry/internal/privateapi"
)

// sessionMaxAge is longer than any client waits for a relay, and short enough that
// a copy of the file from a backup is not read.
const sessionMaxAge = 2 * time.Minute

// SessionFileConfig is the configuration of a [SessionFile].
type SessionFileConfig struct {
	// Path is the path of the file. Its directory must exist. The file with
	// ".counter" added to the path shows whether an older copy was put at the path.
	// Neither may belong to another user, be open to others, or be a link.
	Path string
	// Relay is the id of the relay. A file of another relay is replaced.
	Relay [16]byte
	// MaxSessions is [Config].MaxSessions. The file has room for twice as many,
	// since those of the previous process count until they resume or expire. Zero
	// means 65,536.
	MaxSessions int
	// Slots is for the programs of this module, see [Records.Private].
	Slots int
	// OnError is called with the error after which no session is stored, and OnStored when
	// all are again, after which an error is reported again. Any goroutine may call them.
	// They must not block. Nil: not called.
	OnError  func(error)
	OnStored func()
}

// SessionFile stores what the next process needs to resume the DTLS sessions of a
// relay without a handshake. It holds no key. One process may have it open at a
// time, and only one [Records] may use it.
type SessionFile struct {
	conf     statefile.SessionsConfig
	onStored func()
	file     atomic.Pointer[statefile.Sessions]
	unstored atomic.Bool // a session may have no place in it

	// The rest belongs to the goroutine of Records.Run, and then to that of Close.
	failed *statefile.Sessions // the one before, which a worker may be about to use
	lacked bool                // OnStored is to be called
}

// OpenSessionFile opens the file, or creates it. A file that is damaged, too old, an
// older copy or of another relay is replaced. It fails if the configuration is invalid, or
// another user may have planted or can read it. A file that cannot be created or written for
// another reason, as on a full disk, is an error for OnError, and is opened again later.
func OpenSessionFile(c SessionFileConfig) (*SessionFile, error) {
	return openSessionFile(statefile.SessionsConfig{
		Path: c.Path, Relay: c.Relay, MaxAge: sessionMaxAge, OnError: c.OnError, Slots: c.Slots,
		Capacity: min(2*cmp.Or(c.MaxSessions, defaultMaxSessions), statefile.MaxCapacity),
	}, c.OnStored)
}

func openSessionFile(c statefile.SessionsConfig, onStored func()) (*SessionFile, error) {
	f := &SessionFile{conf: c, onStored: onStored}
	file, err := statefile.OpenSessions(c)
	if err != nil {
		if keyfile.IsRefusal(err) || errors.Is(err, fs.ErrPermission) || errors.Is(err, fs.ErrNotExist) || c.OnError == nil {
			return nil, err
		}
		c.OnError(err)
	}
	f.file.Store(file)
	return f, nil
}

// Found returns the number of sessions that the previous process left.
func (f *SessionFile) Found() int { return len(f.file.Load().Found()) }

// Unread returns why the sessions that the previous process left cannot resume; nil if
// they can.
func (f *SessionFile) Unread() error { return f.file.Load().Unread() }

// Close closes the file, so that the next process can read it. No session may be in
// use any more.
func (f *SessionFile) Close() error { return errors.Join(f.file.Load().Close(), f.failed.Close()) }

// reopen begins a new file if the present one cannot be written.
func (f *SessionFile) reopen() bool {
	old := f.file.Load()
	if old.Storing() {
		return true
	}
	f.lacked = true
	conf := f.conf
	conf.Fresh, conf.Slots = true, 0
	var storing atomic.Bool // What was an error remains one, and is not reported again.
	conf.OnError = func(err error) {
		if storing.Load() && f.conf.OnError != nil {
			f.conf.OnError(err)
		}
	}
	next, err := statefile.OpenSessions(conf)
	if err != nil {
		return false
	}
	if !next.Storing() {
		_ = next.Close()
		return false
	}
	storing.Store(true)
	_ = f.failed.Close()
	f.failed = old
	f.file.Store(next)
	f.unstored.Store(true)
	return true
}

// sentBlock is how many sequence numbers of ours are reserved by one store. A
// restart skips the unused ones, which clients tolerate.
const sentBlock = 1 << 20

const (
	// receivedBlockMax is how many of a client's next records one store may reserve
	// at most; a restart loses those that the client sends with unused numbers.
	receivedBlockMax = 1 << 12
	// A block that lasts less than receivedFast is doubled, and one that lasts more
	// than receivedSlow is halved. A session thus stores about ten times a second
	// at most, and a restart loses its records of about a fifth of a second.
	receivedFast = int64(50e6)  // ns
	receivedSlow = int64(200e6) // ns
)

// reservation holds the bounds of a session that are in the session file. No
// sequence number at or above a bound is used before a higher bound is stored, so
// the bounds that the next process reads are above all numbers that were used.
type reservation struct {
	sent     atomic.Uint64
	received atomic.Uint64

	mu       sync.Mutex // guards what follows, and orders stores
	file     *statefile.Sessions
	place    statefile.Place    // 0: it is not stored, so the bounds bind nothing
	unstored *statefile.Session // what is not stored; nil: it is, or has ended
	block    uint64             // records reserved beyond the current one
	last     int64              // time of the last change of received, since the start of Records
}

// reserveSent reports false if seq must not be used.
func (v *reservation) reserveSent(seq uint64) bool {
	if seq < v.sent.Load() {
		return true
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	bound := min(seq+sentBlock, statefile.MaxSequence)
	return seq < v.sent.Load() || seq < bound && storeBound(&v.sent, v.file.SetSent, v.place, bound)
}

// reserveReceived reports false if the record must be dropped.
func (v *reservation) reserveReceived(seq uint64, now func() int64) bool {
	if seq < v.received.Load() {
		return true
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	if seq < v.received.Load() {
		return true
	}
	at := now()
	switch took := at - v.last; {
	case took < receivedFast:
		v.block = min(2*v.block+1, receivedBlockMax)
	case took > receivedSlow:
		v.block /= 2
	}
	v.last = at
	bound := min(seq+1+v.block, statefile.MaxSequence)
	return seq < bound && storeBound(&v.received, v.file.SetReceived, v.place, bound)
}

// storeBound stores a bound before it takes effect.
func storeBound(bound *atomic.Uint64, store func(statefile.Place, uint64) bool, place statefile.Place, to uint64) bool {
	if !store(place, to) {
		return false
	}
	bound.Store(to)
	return true
}

func (v *reservation) release() {
	v.mu.Lock()
	file, place := v.file, v.place
	v.place, v.unstored = 0, nil
	v.mu.Unlock()
	file.Remove(place)
}

// storeIn reports false if there is no space. The bounds are above all numbers that were used.
func (v *reservation) storeIn(file *statefile.Sessions) bool {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.file != file && v.place != 0 {
		if x, ok := v.file.Get(v.place); ok {
			v.unstored = &x
		}
		v.place = 0 // If it cannot be read, it needs a handshake in the next process.
	}
	v.file = file
	if v.unstored == nil {
		return true
	}
	v.unstored.Sent, v.unstored.Received = v.sent.Load(), v.received.Load()
	if v.place = file.Add(v.unstored); v.place == 0 {
		return false
	}
	v.unstored = nil
	return true
}

const restoreFileTicks = 20

var errNoSpace = errors.New("dtls: the session file has no space for another session")

func (r *layer) storeAgain() {
	f := r.file
	if f == nil || !f.reopen() || !f.unstored.Swap(false) {
		return
	}
	file, all := f.file.Load(), true
	for i := range r.table.sources {
		for s := r.table.sources[i].Load(); s != nil; s = s.bySource.Load() {
			if s.stored != nil && !s.ended.Load() {
				all = s.stored.storeIn(file) && all
			}
		}
	}
	for _, d := range r.dormant.all() {
		all = d.storeIn(file) && all
	}
	if !all {
		f.unstored.Store(true)
		if !f.lacked && f.conf.OnError != nil {
			f.conf.OnError(errNoSpace)
		}
		f.lacked = true
		return
	}
	if f.lacked && f.onStored != nil {
		f.onStored()
	}
	f.lacked = false
}

// store stores the bounds of a session that has received the client's Finished and sent nothing.
func (r *layer) store(s *session, h *halfOpen, finished uint64) {
	if r.file == nil {
		return
	}
	x := &statefile.Session{
		ID: s.id, Serial: s.serial, Source: s.from.Remote(),
		Suite: h.suite.id, Client: h.client, Server: h.server, Sent: sentBlock, Received: finished + 1,
	}
	if h.extended {
		x.Hash = h.unverified.transcript
	}
	file := r.file.file.Load()
	s.stored = &reservation{file: file, place: file.Add(x), last: r.now()}
	if s.stored.place == 0 {
		s.stored.unstored = x
		r.file.unstored.Store(true)
	}
	s.stored.sent.Store(x.Sent)
	s.stored.received.Store(x.Received)
}

// dormant is a session of the previous process without an authentic record yet.
type dormant struct {
	found statefile.FoundSession

	mu   sync.Mutex          // guards what follows, and the place in found
	file *statefile.Sessions // which has it
	keys *secrets            // nil until the first record is received
	gone bool                // resumed or dropped
}

func (d *dormant) storeIn(file *statefile.Sessions) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.gone || d.file == file && d.found.Place != 0 {
		return true
	}
	d.file, d.found.Place = file, file.Add(&d.found.Session)
	return d.found.Place != 0
}

type dormants struct {
	count atomic.Int64
	mu    sync.Mutex // guards the map
	by    map[endpoint.Endpoint]*dormant
}

// loadDormant loads the latest session of each source, and removes all others from the file.
func (r *layer) loadDormant() {
	r.dormant.by = make(map[endpoint.Endpoint]*dormant)
	if r.file == nil {
		return
	}
	file := r.file.file.Load()
	for _, f := range file.Found() {
		_, hasLater := r.dormant.by[f.Source]
		if hasLater || suiteByID(f.Suite) == nil || len(r.dormant.by) == r.conf.MaxSessions {
			file.Remove(f.Place)
			continue
		}
		r.dormant.by[f.Source] = &dormant{found: f, file: file}
		r.table.skipSerial(f.Serial)
	}
	r.dormant.count.Store(int64(len(r.dormant.by)))
}

func (d *dormants) find(from endpoint.Endpoint) *dormant {
	if d.count.Load() == 0 {
		return nil
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.by[from.Remote()]
}

// The caller of remove holds its lock.
func (d *dormants) remove(x *dormant) {
	x.gone = true
	d.mu.Lock()
	defer d.mu.Unlock()
	delete(d.by, x.found.Source)
	d.count.Store(int64(len(d.by)))
}

// resume returns the dormant session of a source if pkt begins with an authentic record of it
// that is not replayed, and its allocation can still be bound. It does not change pkt.
func (r *layer) resume(from endpoint.Endpoint, pkt []byte) *session {
	d, relay := r.dormant.find(from), r.relay.Load()
	if d == nil || relay == nil {
		return nil
	}
	rec, _, ok := parseRecord(pkt)
	if !ok || rec.epoch != epoch1 || rec.seq < d.found.Received {
		return nil
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.gone {
		return r.table.source(from)
	}
	if !(*relay).MayBind(d.found.ID) || d.keys == nil && !r.deriveKeys(d, *relay) {
		r.dropDormant(d)
		return nil
	}
	if _, ok := d.keys.in.open(bytes.Clone(rec.whole), new(scratch)); !ok {
		return nil
	}
	return r.revive(d, from, *relay)
}

// revive establishes a dormant session at its source; nil: there is no room. The caller holds
// its lock.
func (r *layer) revive(d *dormant, from endpoint.Endpoint, relay driver.RecordsRelay) *session {
	s := &session{
		serial: d.found.Serial, id: d.found.ID, from: from, in: d.keys.in, out: d.keys.out, minReceived: d.found.Received,
		stored: &reservation{file: d.file, place: d.found.Place, last: r.now()},
	}
	s.stored.sent.Store(d.found.Sent)
	s.stored.received.Store(d.found.Received)
	s.sent.Store(d.found.Sent)
	if d.found.Place == 0 {
		s.stored.unstored = &d.found.Session
		r.file.unstored.Store(true)
	}
	s.lastReceived.Store(r.clock.Load())
	r.dormant.remove(d)
	shed, ok := r.table.restore(s, relay)
	r.counters[eventShed].Add(uint64(shed))
	if !ok {
		s.stored.release()
		r.counters.count(dropSessionsFull)
		return nil
	}
	r.counters.count(eventResumed)
	return s
}

// private implements [privateapi.DTLS].
type private struct{ *Records }

// Private returns what the programs of this module use besides. It may change in any version.
func (r *Records) Private() privateapi.DTLS[*SessionFile] { return private{r} }

func (r private) TakeOver(f *SessionFile, c privateapi.DTLSHandover) error {
	if f == nil {
		return nil
	}
	l := r.layer
	if err := json.Unmarshal(c.Sources, &l.connected); err != nil {
		return fmt.Errorf("dtls: connected sessions: %w", err)
	}
	l.file = f
	l.loadDormant()
	return nil
}

func (r private) HandOver() privateapi.DTLSHandover { return r.layer.leave() }

func (r *layer) leave() privateapi.DTLSHandover {
	c, sources := privateapi.DTLSHandover{Slots: 1}, make(map[uint64]endpoint.Endpoint)
	for i := range r.table.sources {
		for s := r.table.sources[i].Load(); s != nil; s = s.bySource.Load() {
			if v := s.stored; v != nil && !s.ended.Load() {
				v.mu.Lock()
				v.file.SetSent(v.place, s.sent.Load())
				v.file.SetReceived(v.place, max(s.window.next(), s.minReceived))
				v.mu.Unlock()
				sources[s.serial] = s.from
				c.Slots = max(c.Slots, int(v.place))
			}
		}
	}
	for _, d := range r.dormant.all() {
		c.Slots = max(c.Slots, int(d.found.Place))
	}
	c.Sources, _ = json.Marshal(sources) // A map of numbers has no error.
	return c
}

// reviveConnected establishes the dormant sessions whose clients are connected.
func (r *layer) reviveConnected(relay driver.RecordsRelay) {
	for _, d := range r.dormant.all() {
		from, ok := r.connected[d.found.Serial]
		if !ok {
			continue
		}
		d.mu.Lock()
		if !d.gone && r.deriveKeys(d, relay) {
			r.revive(d, from, relay)
		}
		d.mu.Unlock()
	}
	r.connected = nil
}

func (d *dormants) all() []*dormant {
	d.mu.Lock()
	defer d.mu.Unlock()
	return slices.Collect(maps.Values(d.by))
}

func (r *layer) deriveKeys(d *dormant, relay driver.RecordsRelay) bool {
	f, key := &d.found, relay.KeyOf(d.found.ID)
	keys, err := derive(suiteByID(f.Suite), &key, f.Client[:], f.Server[:], len(f.Hash) > 0, f.Hash)
	d.keys = &keys
	return err == nil
}

// replaceDormant ends the dormant session at the source of a new session, which
// takes over its serial if both are of the same allocation. It reports false if the new
// one is unbindable and the dormant one of another allocation, which stays.
func (r *layer) replaceDormant(s *session) bool {
	d := r.dormant.find(s.from)
	if d == nil {
		return true
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	switch {
	case d.gone:
		return true
	case d.found.ID == s.id:
		s.serial = d.found.Serial
	case s.unbindable:
		return false
	}
	r.dropDormant(d)
	return true
}

// dropDormant also removes it from the session file. The caller holds its lock.
func (r *layer) dropDormant(d *dormant) {
	r.dormant.remove(d)
	d.file.Remove(d.found.Place)
}

func (r *layer) dropEnded(relay driver.RecordsRelay) {
	r.dropDormants(func(d *dormant) bool { return !relay.MayBind(d.found.ID) })
}

func (r *layer) expireDormant() {
	if r.dormant.count.Load() == 0 || r.clock.Load() < int64(r.conf.Idle) {
		return
	}
	r.dropDormants(func(*dormant) bool { return true })
}

func (r *layer) dropDormants(which func(*dormant) bool) {
	for _, d := range r.dormant.all() {
		d.mu.Lock()
		if !d.gone && which(d) {
			r.dropDormant(d)
		}
		d.mu.Unlock()
	}
}
