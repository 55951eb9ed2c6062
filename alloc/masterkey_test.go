package alloc_test

import (
	"testing"

	"github.com/ferryrelay/ferry/alloc"
)

func TestRelayIDPrintsAsUUID(t *testing.T) {
	t.Parallel()
	id := alloc.RelayID{0x01, 0x23, 0x45, 0x67, 0x89, 0xab, 0x4c, 0xde, 0x8f, 0x01, 0x23, 0x45, 0x67, 0x89, 0xab, 0xcd}
	const want = "01234567-89ab-4cde-8f01-23456789abcd"
	if got := id.String(); got != want {
		t.Errorf("String() = %q, want %q", got, want)
	}
	if id.IsZero() || !(alloc.RelayID{}).IsZero() {
		t.Error("IsZero is wrong")
	}
}
