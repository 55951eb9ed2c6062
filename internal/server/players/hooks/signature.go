package hooks

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"strconv"
	"time"
)

const SignatureHeader = "Ferry-Signature"

// MinSecret is the least length of a secret, in bytes.
const MinSecret = 16

// Sign returns the value of the header for a body.
func Sign(secret, body []byte, at time.Time) string {
	t := strconv.FormatInt(at.Unix(), 10)
	mac := hmac.New(sha256.New, secret)
	mac.Write([]byte(t + "."))
	mac.Write(body)
	return "t=" + t + ",v1=" + hex.EncodeToString(mac.Sum(nil))
}

func checkSecret(secret []byte) error {
	if len(secret) < MinSecret {
		return fmt.Errorf("%w: a secret has at least %d bytes: openssl rand -hex 24", ErrConfig, MinSecret)
	}
	return nil
}
