package state

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"strings"

	"github.com/ferryrelay/ferry/alloc"
	"github.com/ferryrelay/ferry/engine"
)

// Identity is the id and the master key of a relay. The key prints as "[redacted]".
type Identity struct {
	Relay  alloc.RelayID
	Master alloc.MasterKey
}

// NewIdentity returns a new identity: a random UUID and 32 random bytes.
func NewIdentity() (Identity, error) {
	id, err := engine.NewIdentity()
	if err != nil {
		return Identity{}, fmt.Errorf("state: %w", err)
	}
	return Identity{id.Relay, id.Master}, nil
}

// ErrDamaged is wrapped by the error about an identity file that is not as it was written.
var ErrDamaged = errors.New("is damaged; restore it from a copy, or move it away to make a new identity, which ends all matches")

// The version changes with the form of the identity file.
const (
	identityTitle = "ferry relay identity 1"
	relayWord     = "relay "
	masterWord    = "master "
	sumWord       = "sha256 "
)

func (i Identity) encode() []byte {
	text := fmt.Sprintf("%s\n%s%s\n%s%s\n",
		identityTitle, relayWord, i.Relay, masterWord, hex.EncodeToString(i.Master[:]))
	sum := sha256.Sum256([]byte(text))
	return fmt.Appendf(nil, "%s%s%x\n", text, sumWord, sum)
}

// The errors of decode quote nothing of the file.
func decode(file []byte) (Identity, error) {
	text := string(file)
	at := strings.LastIndex(text, sumWord)
	if at < 0 || !strings.HasPrefix(text, identityTitle+"\n") {
		return Identity{}, ErrDamaged
	}
	sum := sha256.Sum256([]byte(text[:at]))
	if text[at:] != fmt.Sprintf("%s%x\n", sumWord, sum) {
		return Identity{}, ErrDamaged
	}
	lines := strings.Split(text[:at], "\n")
	if len(lines) != 4 || lines[3] != "" {
		return Identity{}, ErrDamaged
	}
	id, err := alloc.ParseRelayID(strings.TrimPrefix(lines[1], relayWord))
	if err != nil || id.IsZero() {
		return Identity{}, ErrDamaged
	}
	master, err := hex.DecodeString(strings.TrimPrefix(lines[2], masterWord))
	if err != nil || len(master) != len(alloc.MasterKey{}) {
		return Identity{}, ErrDamaged
	}
	i := Identity{id, alloc.MasterKey(master)}
	if i.Master.IsZero() {
		return Identity{}, ErrDamaged
	}
	return i, nil
}
