package redisstore

import (
	"bytes"
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/ferryrelay/ferry/alloc"
	"github.com/ferryrelay/ferry/internal/fleet/placement"
	"github.com/ferryrelay/ferry/proto"
)

const (
	// clockTolerance is added to the end of a seal when it is verified. The clocks of
	// relays and API processes may differ by that much, and a bit more.
	clockTolerance = 5 * time.Minute
	// sealStep is the resolution of the ends of seals. A relay that renews an entry every
	// minute makes the same statement for that long, which a signer signs once.
	sealStep = 5 * time.Minute
	// signerFor is how long a published certificate lasts at least: longer than the
	// entries that it has signed. It is published again every publishEvery.
	signerFor    = time.Hour
	publishEvery = time.Second
	// maxSeal bounds the text of a seal: one by RSA of 4,096 bits takes 713 bytes.
	maxSeal               = 1 << 10
	unverifiedLogInterval = time.Minute
)

// statementPrefix begins all signed statements, so that they are no other ones.
const statementPrefix = "ferry store entry 1\n"

// errUnverified is returned for the home of a host whose entry has no valid signature.
// The host's relay replaces it.
var errUnverified = fmt.Errorf("redisstore: an entry in the store is not signed by a member of the fleet: %w", alloc.ErrStoreUnavailable)

// seal is the signature of an entry, until a time in milliseconds since 1970. Its text
// is "until.key.signature".
type seal struct {
	until     int64
	key       placement.KeyID
	signature []byte
}

func (s seal) String() string {
	enc := base64.RawURLEncoding
	return strconv.FormatInt(s.until, 10) + "." + enc.EncodeToString(s.key[:]) + "." + enc.EncodeToString(s.signature)
}

func parseSeal(text string) (s seal, ok bool) {
	parts := strings.SplitN(text, ".", 3)
	if len(parts) != 3 || len(text) > maxSeal {
		return seal{}, false
	}
	enc := base64.RawURLEncoding.Strict()
	if s.until, ok = parseMilliseconds(parts[0]); !ok || enc.DecodedLen(len(parts[1])) != len(s.key) {
		return seal{}, false
	}
	if _, err := enc.Decode(s.key[:], []byte(parts[1])); err != nil {
		return seal{}, false
	}
	var err error
	s.signature, err = enc.DecodeString(parts[2])
	return s, err == nil && s.String() == text
}

// statement is what a seal signs: what the store says under a key. A statement under
// another key, or after its time, is another one.
type statement struct{ key, value string }

func (s statement) bytes(until int64) []byte {
	return fmt.Appendf(nil, "%s%s\n%s\n%d", statementPrefix, s.key, s.value, until)
}

// codeStatement says that a code leads to a host. Relays and API processes make it.
func (k keys) codeStatement(c hostCode, host proto.AllocationID) statement {
	return statement{k.code(c.tenant, c.code), host.String()}
}

// homeStatement says where a host is. That relay makes it, and API processes do.
func (k keys) homeStatement(host proto.AllocationID, home placement.Home) statement {
	return statement{k.host(host), homeText(home)}
}

// nodeStatement is the announcement of a relay, which alone makes it.
func (k keys) nodeStatement(relay alloc.RelayID, boot, number uint64, text []byte) statement {
	return statement{k.nodes() + ":" + relay.String(), fmt.Sprintf("%s:%d:%s", bootText(boot), number, text)}
}

type sealer struct {
	calls     *client
	keys      keys
	signer    placement.Signer
	published published

	unverified       atomic.Uint64
	mu               sync.Mutex // guards the following field
	unverifiedLogged time.Time
}

// seal signs statements for a time. It publishes the certificate of the key first, so that
// a reader of the entries finds it.
func (s *sealer) seal(ctx context.Context, lasts time.Duration, all ...statement) ([]string, error) {
	until := time.Now().Add(lasts + sealStep).Truncate(sealStep).UnixMilli()
	seals := make([]string, len(all))
	var cert placement.Certificate
	for i, st := range all {
		c, signature, err := s.signer.Sign(st.bytes(until))
		if err != nil {
			return nil, fmt.Errorf("redisstore: sign an entry: %w", err)
		}
		if c.Key != cert.Key {
			if err := s.publish(ctx, c, lasts); err != nil {
				return nil, err
			}
			cert = c
		}
		seals[i] = seal{until: until, key: c.Key, signature: signature}.String()
	}
	return seals, nil
}

type published struct {
	mu  sync.Mutex // guards the following fields; entries for no call
	key placement.KeyID
	at  time.Time
}

func (p *published) due(key placement.KeyID, now time.Time) (due, again bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	again = p.key == key
	if again && now.Sub(p.at) < publishEvery {
		return false, true
	}
	if again {
		p.at = now // Concurrent callers need not wait: it is there.
	}
	return true, again
}

func (p *published) set(key placement.KeyID, at time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.key, p.at = key, at
}

// publish stores a certificate of this process, at most once per publishEvery. A failure
// counts only if the store has never had the certificate.
func (s *sealer) publish(ctx context.Context, c placement.Certificate, lasts time.Duration) error {
	now := time.Now()
	due, again := s.published.due(c.Key, now)
	if !due {
		return nil
	}
	lasts = max(signerFor, lasts+sealStep+clockTolerance)
	err := s.calls.do(ctx, "publish the certificate of the signatures", func(ctx context.Context) error {
		return s.calls.redis.set(ctx, s.keys.signer(c.Key), c.DER, lasts)
	})
	if again {
		return nil
	}
	if err == nil {
		s.published.set(c.Key, now)
	}
	return err
}

// claim is a statement that the store makes, with the text of its seal. verify sets ok.
type claim struct {
	statement
	relay    alloc.RelayID // that may make it
	anyRelay bool          // all relays may make it
	api      bool          // API processes may make it
	text     string
	ok       bool
}

// verify verifies claims, and counts those that no permitted author has signed. Error:
// alloc.ErrStoreUnavailable, if a certificate could not be read.
func (s *sealer) verify(ctx context.Context, claims []claim) error {
	var unknown []placement.KeyID
	seals := make([]seal, len(claims))
	for i := range claims {
		var err error
		if seals[i], err = s.verifyOne(&claims[i]); errors.Is(err, placement.ErrUnknownKey) {
			unknown = append(unknown, seals[i].key)
		} else if err != nil {
			s.countUnverified(claims[i].statement, err)
		}
	}
	if len(unknown) == 0 {
		return nil
	}
	if err := s.learn(ctx, unknown); err != nil {
		return err
	}
	for i := range claims {
		if c := &claims[i]; !c.ok && seals[i].signature != nil {
			if _, err := s.verifyOne(c); err != nil {
				s.countUnverified(c.statement, err)
			}
		}
	}
	return nil
}

func (s *sealer) isGenuine(ctx context.Context, c claim) (bool, error) {
	claims := []claim{c}
	err := s.verify(ctx, claims)
	return claims[0].ok, err
}

// verifyOne verifies a claim by the certificates that are known. It returns the seal only
// with ErrUnknownKey.
func (s *sealer) verifyOne(c *claim) (seal, error) {
	sealed, ok := parseSeal(c.text)
	if !ok {
		return seal{}, fmt.Errorf("%w: it has none", placement.ErrSignature)
	}
	if ended := time.Since(time.UnixMilli(sealed.until)); ended > clockTolerance {
		return seal{}, fmt.Errorf("%w: it has ended %v ago", placement.ErrSignature, ended.Round(time.Second))
	}
	author, err := s.signer.Verify(sealed.key, c.statement.bytes(sealed.until), sealed.signature)
	switch {
	case errors.Is(err, placement.ErrUnknownKey):
		return sealed, err
	case err != nil:
		return seal{}, err
	case author.API && !c.api, !author.API && !c.anyRelay && author.Relay != c.relay:
		return seal{}, fmt.Errorf("%w: it is by another member, relay %v", placement.ErrSignature, author.Relay)
	}
	c.ok = true
	return seal{}, nil
}

func (s *sealer) learn(ctx context.Context, keys []placement.KeyID) error {
	seen := make(map[placement.KeyID]bool)
	for len(keys) > 0 {
		var part []placement.KeyID
		for len(keys) > 0 && len(part) < batch {
			if key := keys[0]; !seen[key] {
				seen[key] = true
				part = append(part, key)
			}
			keys = keys[1:]
		}
		names := make([]string, len(part))
		for i, key := range part {
			names[i] = s.keys.signer(key)
		}
		var texts []string
		if err := s.calls.do(ctx, "read the certificates of signatures", func(ctx context.Context) error {
			var err error
			texts, err = s.calls.redis.getAll(ctx, names)
			return err
		}); err != nil {
			return err
		}
		for i, key := range part {
			if der := texts[i]; der != "" && len(der) <= maxValue {
				// Another certificate leaves the key unknown.
				if err := s.signer.Learn(key, bytes.Clone([]byte(der))); err != nil {
					s.logUnverified(s.keys.signer(key), err)
				}
			}
		}
	}
	return nil
}

func (s *sealer) countUnverified(st statement, err error) {
	s.unverified.Add(1)
	s.logUnverified(st.key, err)
}

// logUnverified logs an entry that cannot be verified, once per unverifiedLogInterval. It
// logs the class of the entry: the key of a code contains the code.
func (s *sealer) logUnverified(key string, err error) {
	now := time.Now()
	s.mu.Lock()
	quiet := now.Sub(s.unverifiedLogged) < unverifiedLogInterval
	if !quiet {
		s.unverifiedLogged = now
	}
	s.mu.Unlock()
	if quiet {
		return
	}
	class, _, _ := strings.Cut(strings.TrimPrefix(key, s.keys.prefix), ":")
	s.calls.logger.Warn("an entry of the store has no valid signature and counts as absent",
		"entry", class, "error", err, "entries", s.unverified.Load())
}
