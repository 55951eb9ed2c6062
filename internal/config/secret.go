package config

import (
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"strings"
)

// hidden is what every secret prints as.
const hidden = "[hidden]"

// maxSecretFile bounds a file with a secret, in bytes: twice the longest token.
const maxSecretFile = 8 << 10

// Secret is a text that prints as "[hidden]" in every format. Whoever needs it
// converts it to a string.
type Secret string

// String returns "[hidden]", or nothing for an empty secret.
func (s Secret) String() string {
	if s == "" {
		return ""
	}
	return hidden
}

// Format writes what String returns, whatever the verb.
func (s Secret) Format(f fmt.State, _ rune) { _, _ = io.WriteString(f, s.String()) }

// LogValue returns what String returns.
func (s Secret) LogValue() slog.Value { return slog.StringValue(s.String()) }

// MarshalText returns what String returns.
func (s Secret) MarshalText() ([]byte, error) { return []byte(s.String()), nil }

// resolve fills in what a token's file leaves to be found.
func (t *Token) resolve() error {
	if (t.Secret == "") == (t.SecretFile == "") {
		return errors.New("needs either secret or secret_file")
	}
	if t.Kind == "" {
		t.Kind = "player"
	}
	if t.SecretFile == "" {
		return nil
	}
	secret, err := ReadSecret(t.SecretFile)
	if err != nil {
		return fmt.Errorf("secret_file: %w", err)
	}
	t.Secret = secret
	return nil
}

// ReadSecret reads a file that holds one secret, without the end of its line.
func ReadSecret(path string) (Secret, error) {
	text, err := readAtMost(path, maxSecretFile)
	if err != nil {
		return "", err
	}
	secret := Secret(strings.TrimRight(string(text), "\r\n"))
	if secret == "" {
		return "", fmt.Errorf("%s is empty", path)
	}
	return secret, nil
}

func readAtMost(path string, limit int64) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	text, err := io.ReadAll(io.LimitReader(f, limit+1))
	if err == nil && int64(len(text)) > limit {
		err = fmt.Errorf("%s is larger than %d bytes", path, limit)
	}
	return text, err
}
