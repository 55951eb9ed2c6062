package hooks

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"
)

const SignatureHeader = "Ferry-Signature"

// MinSecret is the least length of a secret, in bytes.
const MinSecret = 16

var (
	ErrSignature = errors.New("hooks: wrong signature")
	// ErrOld: the time of the signature is too far from now.
	ErrOld = errors.New("hooks: signature time is out of tolerance")
)

// Sign returns the value of the header for a body.
func Sign(secret, body []byte, at time.Time) string {
	t := strconv.FormatInt(at.Unix(), 10)
	return "t=" + t + ",v1=" + hex.EncodeToString(digest(secret, t, body))
}

// Verify returns nil if body was signed within tolerance of now, else ErrSignature or
// ErrOld.
func Verify(secret, body []byte, header string, now time.Time, tolerance time.Duration) error {
	t, sum, ok := strings.Cut(header, ",")
	t, isTime := strings.CutPrefix(t, "t=")
	sum, isSum := strings.CutPrefix(sum, "v1=")
	at, errTime := strconv.ParseInt(t, 10, 64)
	got, errSum := hex.DecodeString(sum)
	if !ok || !isTime || !isSum || errTime != nil || errSum != nil || !hmac.Equal(got, digest(secret, t, body)) {
		return ErrSignature
	}
	if off := now.Sub(time.Unix(at, 0)).Abs(); off > tolerance {
		return fmt.Errorf("%w: %v off", ErrOld, off.Round(time.Second))
	}
	return nil
}

func digest(secret []byte, t string, body []byte) []byte {
	mac := hmac.New(sha256.New, secret)
	mac.Write([]byte(t))
	mac.Write([]byte("."))
	mac.Write(body)
	return mac.Sum(nil)
}

func checkSecret(secret []byte) error {
	if len(secret) < MinSecret {
		return fmt.Errorf("%w: a secret has at least %d bytes: openssl rand -hex 24", ErrConfig, MinSecret)
	}
	return nil
}
