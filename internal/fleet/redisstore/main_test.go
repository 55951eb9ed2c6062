package redisstore

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"log/slog"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/ferryrelay/ferry/alloc"
	"github.com/ferryrelay/ferry/internal/base/joincode"
	"github.com/ferryrelay/ferry/internal/fleet/placement"
	"github.com/ferryrelay/ferry/internal/test/testkit"
	"github.com/ferryrelay/ferry/proto"
)

func TestMain(m *testing.M) {
	testkit.DefaultParallel(16)
	SetLogger(slog.New(slog.DiscardHandler))
	goleak.VerifyTestMain(m)
}

const testTimeout = 20 * time.Second

var tenant = alloc.Tenant{Project: "game", Environment: "production"}

var testKeys = keys{defaultPrefix}

func lease(ctx context.Context, s *Store, scope, holder string, used int64, ttl time.Duration) error {
	return s.Leases.Set(ctx, holder, ttl, []Use{{scope, used}})
}

func hostID(n int) proto.AllocationID {
	return proto.AllocationID{0: 0xC0, 13: byte(n >> 16), 14: byte(n >> 8), 15: byte(n)}
}

func codeText(n int) string {
	smallest, _ := joincode.Pack("66666666")
	return joincode.Unpack(smallest + uint64(n))
}

func open(t testing.TB, c Config) *Store {
	t.Helper()
	if c.Signer == nil {
		c.Signer = &anySigner{learned: make(map[placement.KeyID]placement.Author)}
	}
	s, err := New(c)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error)
	go func() { ended <- s.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Errorf("Run: %v", err)
		}
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	return s
}

// signingKey is the key of all members of the test's fleet.
var signingKey = sync.OnceValue(func() *ecdsa.PrivateKey {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		panic(err)
	}
	return key
})

// anySigner is a signer that is every relay and every API process of a fleet: it signs as
// the one that may make the statement. The store's tests of calls have one store for all;
// package process tests stores with a role. A certificate is the name of its author.
type anySigner struct {
	mu      sync.Mutex // guards the following field
	learned map[placement.KeyID]placement.Author
}

func (a *anySigner) Sign(statement []byte) (placement.Certificate, []byte, error) {
	name := "api"
	if _, relay, ok := bytes.Cut(statement, []byte("{nodes}:")); ok && !bytes.HasPrefix(relay, []byte("api:")) {
		name = string(relay[:36])
	}
	sum := sha256.Sum256(statement)
	signature, err := ecdsa.SignASN1(rand.Reader, signingKey(), sum[:])
	return placement.Certificate{Key: testKeyID(name), DER: []byte(name)}, signature, err
}

func (a *anySigner) Verify(key placement.KeyID, statement, signature []byte) (placement.Author, error) {
	a.mu.Lock()
	author, ok := a.learned[key]
	a.mu.Unlock()
	sum := sha256.Sum256(statement)
	switch {
	case !ok:
		return author, placement.ErrUnknownKey
	case !ecdsa.VerifyASN1(&signingKey().PublicKey, sum[:], signature):
		return author, placement.ErrSignature
	}
	return author, nil
}

func (a *anySigner) Learn(key placement.KeyID, certificate []byte) error {
	id, err := proto.ParseAllocationID(string(certificate))
	if testKeyID(string(certificate)) != key || err != nil && string(certificate) != "api" {
		return placement.ErrSignature
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.learned[key] = placement.Author{API: err != nil, Relay: alloc.RelayID(id)}
	return nil
}

func testKeyID(name string) (id placement.KeyID) {
	sum := sha256.Sum256([]byte(name))
	copy(id[:], sum[:])
	return id
}
