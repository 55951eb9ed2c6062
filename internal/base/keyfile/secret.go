package keyfile

import (
	"bytes"
	"errors"
	"strings"
)

// DecodeSecret returns the secret that is all of a file: without line ends at its end, and without the byte order mark
// that editors of Windows write. An empty one and UTF-16 are errors, which go on after the name of the file.
func DecodeSecret(content []byte) (string, error) {
	if bytes.HasPrefix(content, []byte("\xff\xfe")) || bytes.HasPrefix(content, []byte("\xfe\xff")) {
		return "", errors.New("is UTF-16, which > of Windows PowerShell writes: save it as UTF-8")
	}
	secret := strings.TrimRight(string(bytes.TrimPrefix(content, []byte("\ufeff"))), "\r\n")
	if secret == "" {
		return "", errors.New("is empty")
	}
	return secret, nil
}
