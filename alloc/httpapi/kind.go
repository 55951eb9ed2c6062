package httpapi

import "fmt"

// Kind says what a token stands for. The zero value is the lesser right.
type Kind uint8

// The kinds of token.
const (
	// KindPlayer is one player, who owns what it allocates.
	KindPlayer Kind = iota
	// KindServer is a backend, which owns all of its tenant's allocations and
	// has limits of its own.
	KindServer
)

// String returns "player" or "server".
func (k Kind) String() string {
	switch k {
	case KindPlayer:
		return "player"
	case KindServer:
		return "server"
	}
	return fmt.Sprintf("kind(%d)", uint8(k))
}

// ParseKind reads what [Kind.String] writes.
func ParseKind(s string) (Kind, error) {
	switch s {
	case "player":
		return KindPlayer, nil
	case "server":
		return KindServer, nil
	}
	return 0, fmt.Errorf("httpapi: token kind %q is neither player nor server", s)
}
