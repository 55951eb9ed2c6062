package proto

import (
	"fmt"
	"io"
	"log/slog"
)

// KeyLen is the size of a key in bytes. It equals the block size of SHA-256,
// so HMAC uses the key as it is. Real clients refuse any other size.
const KeyLen = 64

// redacted is what every printer of a Key writes.
const redacted = "[redacted]"

// Key is the secret of an allocation: who holds it may bind the allocation.
// The HTTP API hands it out in base64; it never travels on this protocol.
//
// A Key does not print: fmt, slog, encoding/json and every other user of
// encoding.TextMarshaler get "[redacted]". No method can close what is left:
// fmt calls no methods on unexported struct fields, so a struct that keeps its
// key in one keeps a *Key or is never printed; and fmt shows its operand when
// %p or %w is given a Key, which go vet reports.
type Key [KeyLen]byte

// String returns "[redacted]".
func (Key) String() string { return redacted }

// GoString returns "[redacted]"; it stands for %#v.
func (Key) GoString() string { return redacted }

// Format writes "[redacted]" for every verb that fmt lets a value format,
// %x and %d included, which would otherwise reach the bytes past String.
func (Key) Format(f fmt.State, _ rune) { io.WriteString(f, redacted) }

// LogValue returns "[redacted]" to slog.
func (Key) LogValue() slog.Value { return slog.StringValue(redacted) }

// MarshalText returns "[redacted]", so that a Key that slips into a JSON
// answer or a log record by mistake is lost there instead of published. Code
// that means to hand out a key converts it: key[:].
func (Key) MarshalText() ([]byte, error) { return []byte(redacted), nil }
