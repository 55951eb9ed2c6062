package httpapi

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"log/slog"

	"github.com/ferryrelay/ferry/alloc"
)

// The bounds in bytes of a token's secret. The lower one leaves no hope to a
// guesser; the upper one fits the header limit of [NewServer].
const (
	MinSecret = 16
	MaxSecret = 4096
)

// Errors of [New] about one token. They are wrapped with its index, never with
// its secret.
var (
	// ErrSecret: too short, too long, or with bytes that no header can carry.
	ErrSecret = errors.New("secret is not 16 to 4096 visible ASCII characters")
	// ErrDuplicate: two tokens have one secret.
	ErrDuplicate = errors.New("secret is that of another token")
	// ErrTokenTenant: project or environment is empty.
	ErrTokenTenant = errors.New("project and environment are required")
	// ErrTokenKind: neither player nor server.
	ErrTokenKind = errors.New("kind is neither player nor server")
)

// Token is a bearer token and what it stands for.
type Token struct {
	// Secret is what a caller sends, 16 to 4096 visible ASCII characters.
	Secret string
	// Project and Environment name the tenant. Both are required, at most 56
	// bytes each.
	Project, Environment string
	// Player is the name of the player; empty derives one from the secret.
	// Tokens of one tenant, player and kind are one principal.
	Player string
	// Kind is player unless said otherwise.
	Kind Kind
}

// String returns kind, tenant and player, and no secret.
func (t Token) String() string {
	return fmt.Sprintf("%s %s/%s %s", t.Kind, t.Project, t.Environment, t.Player)
}

// Format writes what String returns, whatever the verb.
func (t Token) Format(s fmt.State, _ rune) { _, _ = io.WriteString(s, t.String()) }

// LogValue returns what String returns.
func (t Token) LogValue() slog.Value { return slog.StringValue(t.String()) }

func (t Token) tenant() alloc.Tenant {
	return alloc.Tenant{Project: t.Project, Environment: t.Environment}
}

func (t Token) validate() error {
	switch {
	case !validSecret(t.Secret):
		return ErrSecret
	case t.Project == "" || t.Environment == "":
		return ErrTokenTenant
	case t.Kind != KindPlayer && t.Kind != KindServer:
		return ErrTokenKind
	}
	return t.tenant().Validate()
}

func validSecret(s string) bool {
	if len(s) < MinSecret || len(s) > MaxSecret {
		return false
	}
	for i := range len(s) {
		if s[i] <= ' ' || s[i] >= 0x7f {
			return false
		}
	}
	return true
}

// player returns the name of the player. A derived one is a digest under a
// prefix of its own, so that it says nothing about the secret's place in the
// table of tokens.
func (t Token) player() string {
	if t.Player != "" {
		return t.Player
	}
	sum := sha256.Sum256([]byte("ferry player\x00" + t.Secret))
	return "token-" + hex.EncodeToString(sum[:16])
}
