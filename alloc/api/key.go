package api

import (
	"fmt"
	"io"
	"log/slog"
)

// redacted stands where a secret would be printed.
const redacted = "[redacted]"

// Key is the 64-byte HMAC key of an allocation. It travels as base64 and is
// assignable to and from []byte, but every way of printing it prints
// "[redacted]", so that no log can give it away by accident.
type Key []byte

// String returns "[redacted]".
func (Key) String() string { return redacted }

// GoString returns "[redacted]".
func (Key) GoString() string { return redacted }

// Format writes "[redacted]" whatever the verb.
func (Key) Format(s fmt.State, _ rune) { _, _ = io.WriteString(s, redacted) }

// LogValue returns "[redacted]".
func (Key) LogValue() slog.Value { return slog.StringValue(redacted) }
