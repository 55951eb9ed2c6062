package seal

import (
	"bytes"
	"crypto/aes"
	"crypto/cipher"
	"crypto/hkdf"
	"crypto/sha256"
	"encoding/binary"
	"strings"
	"testing"
)

// TestSealLayout opens connection data by the table in claims.go and the
// standard library alone. A program that changes the layout cannot rebuild the
// matches of the one before it, so this test is the format.
func TestSealLayout(t *testing.T) {
	t.Parallel()
	nonce := "twelve bytes"
	s := newTestSealer(t, func(c *Config) { c.Rand = strings.NewReader(nonce) })
	claims := hostClaims()
	claims.Individual = true
	claims.Role, claims.Joiner, claims.Network = RoleTicket, testJoiner, NetworkTag{7, 8, 9}
	player := strings.Repeat("p", 45) + "layer"
	claims.PlayerName = []byte(player)
	data := mustSeal(t, s, claims)

	header := append([]byte{1, testEpoch >> 8, testEpoch & 0xFF}, nonce...)
	if !bytes.Equal(data[:15], header) {
		t.Fatalf("header %x, want %x", data[:15], header)
	}
	key, err := hkdf.Key(sha256.New, testMaster[:], testRelay[:], "ferry connection data v1 \x6f\x20", 32)
	if err != nil {
		t.Fatal(err)
	}
	block, err := aes.NewCipher(key)
	if err != nil {
		t.Fatal(err)
	}
	gcm, err := cipher.NewGCM(block)
	if err != nil {
		t.Fatal(err)
	}
	plain, err := gcm.Open(nil, data[3:15], data[15:], data[:15])
	if err != nil {
		t.Fatal(err)
	}
	pad := func(name string) []byte { return append([]byte(name), make([]byte, 56-len(name))...) }
	want := bytes.Join([][]byte{
		testRelay[:],
		binary.BigEndian.AppendUint64(nil, 77),
		{3},
		{0, 8},
		binary.BigEndian.AppendUint64(nil, 1<<56|2900*604800),
		testHost[:], testHost[:], testJoiner[:],
		{0x01, 0x23, 0x45, 0x67, 0x89, 0xab, 0xcd, 0xef},
		append([]byte{1, 2, 3}, make([]byte, 13)...),
		{10}, {10},
		pad("project-id" + player[:46]), pad("production" + player[46:]),
		{7, 8, 9},
	}, nil)
	if !bytes.Equal(plain, want) {
		t.Errorf("plaintext\n%x, want\n%x", plain, want)
	}
}
