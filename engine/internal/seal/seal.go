// Package seal seals a reservation into the connection data of its client, and derives keys.
package seal

import (
	"cmp"
	"crypto/cipher"
	"crypto/hkdf"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha512"
	"encoding/binary"
	"errors"
	"fmt"
	"hash"
	"io"
	"sync"
	"sync/atomic"
	"time"

	"github.com/ferryrelay/ferry/alloc"
	"github.com/ferryrelay/ferry/proto"
)

type Config struct {
	Master alloc.MasterKey  // required
	Relay  alloc.RelayID    // required
	Boot   uint64           // identifies this run of the process; zero: a random one
	Epoch  time.Duration    // a number of whole hours from 1 h to 4 weeks; zero: DefaultEpoch
	Now    func() time.Time // the wall clock; nil: time.Now
	Rand   io.Reader        // the source of nonces, for one goroutine at a time; nil: crypto/rand
}

// Scratch belongs to one goroutine; opened claims alias it until its next use. Keep it in a
// long-lived struct: a local variable would escape to the heap.
type Scratch [plainLen]byte

// Sealer may be used concurrently. Nonces are random, so one epoch's key is safe for 2^32 seals
// (NIST SP 800-38D, 8.3): 7,100 per second for a week, 1,775 for four.
type Sealer struct {
	Derivers sync.Pool // of *Deriver, for goroutines that have none of their own

	relay alloc.RelayID
	boot  uint64
	now   func() time.Time

	// Closures hold the secrets, because fmt prints unexported fields without their Format
	// methods.
	epochKey func(epoch uint16) (cipher.AEAD, error)
	newMAC   func() hash.Hash

	epochHours   int64
	started      int64     // hour at which the process began
	recoverUntil time.Time // when recovering ends

	keys       atomic.Pointer[keyring]
	recovering atomic.Bool // cleared with s.mu held

	mu        sync.Mutex // guards the following fields, and every change of keys
	rand      io.Reader
	retained  map[uint16]int      // allocations by epoch
	recovered map[uint16]struct{} // older epochs that Open was asked for while recovering
}

// New fails for an invalid field of cfg, or with the error of Rand.
func New(cfg Config) (*Sealer, error) {
	if cfg.Master.IsZero() {
		return nil, errors.New("Identity.Master is zero")
	}
	if cfg.Relay.IsZero() {
		return nil, errors.New("Identity.Relay is zero")
	}
	cfg.Epoch = cmp.Or(cfg.Epoch, DefaultEpoch)
	if cfg.Epoch < minEpoch || cfg.Epoch > maxEpoch || cfg.Epoch%time.Hour != 0 {
		return nil, errors.New("Identity.Epoch is not a number of whole hours from 1 h to 4 weeks")
	}
	if cfg.Now == nil {
		cfg.Now = time.Now
	}
	cfg.Rand = cmp.Or(cfg.Rand, rand.Reader)
	for cfg.Boot == 0 {
		var b [8]byte
		if _, err := io.ReadFull(cfg.Rand, b[:]); err != nil {
			return nil, fmt.Errorf("boot id: %w", err)
		}
		cfg.Boot = binary.BigEndian.Uint64(b[:])
	}
	root, err := hkdf.Extract(sha512.New, cfg.Master[:], []byte(deriverSalt))
	if err != nil {
		return nil, fmt.Errorf("derive from the master key: %w", err)
	}
	s := &Sealer{
		relay:    cfg.Relay,
		boot:     cfg.Boot,
		now:      cfg.Now,
		epochKey: func(epoch uint16) (cipher.AEAD, error) { return sealingKey(cfg.Master, cfg.Relay, epoch) },
		newMAC:   func() hash.Hash { return hmac.New(sha512.New, root) },
		rand:     cfg.Rand,
		retained: make(map[uint16]int),

		epochHours: int64(cfg.Epoch / time.Hour),
		recovered:  make(map[uint16]struct{}),
	}
	s.Derivers.New = func() any { return s.NewDeriver() }
	now := s.now()
	s.started, s.recoverUntil = hourOf(now), now.Add(recoverFor)
	s.recovering.Store(true)
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.rotate(s.epochOf(now)); err != nil {
		return nil, err
	}
	return s, nil
}

// Boot returns the id of this run of the process.
func (s *Sealer) Boot() uint64 { return s.boot }

// Relay returns the id of the relay.
func (s *Sealer) Relay() alloc.RelayID { return s.relay }

// Seal sets Epoch, Relay, Boot and Issued itself. Errors: alloc.ErrTenantName, a tag or ids that
// do not fit, or the error of Rand.
func (s *Sealer) Seal(c Claims) (alloc.ConnectionData, error) {
	var data alloc.ConnectionData
	if err := c.validate(); err != nil {
		return data, err
	}
	now := s.now()
	c.Relay, c.Boot, c.Issued = s.relay, s.boot, now.Unix()
	key, err := s.nonceAndKey(s.epochOf(now), data[nonceAt:headerLen])
	if err != nil {
		return alloc.ConnectionData{}, err
	}
	data[0] = sealVersion
	binary.BigEndian.PutUint16(data[epochAt:], key.epoch)
	var plain [plainLen]byte
	c.encode(&plain)
	key.aead.Seal(data[:headerLen], data[nonceAt:headerLen], plain[:], data[:headerLen])
	return data, nil
}

// nonceAndKey rotates if the epoch has changed.
func (s *Sealer) nonceAndKey(epoch int64, nonce []byte) (epochKey, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.keys.Load().current != epoch {
		if err := s.rotate(epoch); err != nil {
			return epochKey{}, err
		}
	}
	if _, err := io.ReadFull(s.rand, nonce); err != nil {
		return epochKey{}, fmt.Errorf("engine: nonce: %w", err)
	}
	return s.keys.Load().keys[0], nil
}

// Open reports false for data that this relay did not seal, or in an epoch that is neither recent
// nor retained; in the first hour of a process, one that began in the four weeks before is recent.
// Forged data costs one comparison of the epoch and at most one AEAD open. Open neither locks nor
// allocates, except for the first data of each earlier epoch in that hour. The scratch must not
// overlap data.
func (s *Sealer) Open(scratch *Scratch, data []byte) (Claims, bool) {
	if len(data) != proto.MaxConnectionData || data[0] != sealVersion {
		return Claims{}, false
	}
	epoch := binary.BigEndian.Uint16(data[epochAt:])
	aead := s.keys.Load().find(epoch)
	if aead == nil {
		aead = s.recoverKey(epoch)
	}
	if aead == nil {
		return Claims{}, false
	}
	header := data[:headerLen]
	if _, err := aead.Open(scratch[:0], header[nonceAt:], data[headerLen:], header); err != nil {
		return Claims{}, false
	}
	c := Claims{Epoch: epoch}
	if !c.decode((*[plainLen]byte)(scratch)) || c.Relay != s.relay {
		return Claims{}, false
	}
	return c, true
}
