package placement

import (
	"errors"

	"github.com/ferryrelay/ferry/alloc"
)

// Signer signs what this process writes into the store, and verifies what other
// processes wrote: a store's password alone must not suffice to lead players to another
// host. Its methods may be called concurrently and make no calls.
type Signer interface {
	Sign(statement []byte) (Certificate, []byte, error)
	// Verify returns the author of a statement. Errors: ErrUnknownKey if the
	// certificate of the key must be learned first, ErrSignature.
	Verify(key KeyID, statement, signature []byte) (Author, error)
	// Learn verifies a certificate of another process and remembers it. Error:
	// ErrSignature if the cluster has not issued it or it has another id.
	Learn(key KeyID, certificate []byte) error
}

// KeyID identifies a certificate: a prefix of its SHA-256.
type KeyID [12]byte

type Certificate struct {
	Key KeyID
	DER []byte
}

// Author is the process that signed a statement: an API process, or a relay.
type Author struct {
	API   bool
	Relay alloc.RelayID // zero for an API process
}

var (
	ErrUnknownKey = errors.New("fleet: the certificate of the signer is not known")
	ErrSignature  = errors.New("fleet: no valid signature of a member of the cluster")
)
