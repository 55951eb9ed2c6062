package alloc_test

import (
	"bytes"
	"errors"
	"strings"
	"testing"

	"github.com/ferryrelay/ferry/alloc"
	"github.com/ferryrelay/ferry/proto"
)

func TestSealRefusesClaims(t *testing.T) {
	t.Parallel()
	s := newTestSealer(t, nil)
	tests := []struct {
		name   string
		change func(*alloc.Claims)
		want   error
	}{
		{"project too long", func(c *alloc.Claims) { c.Project = bytes.Repeat([]byte("p"), alloc.MaxTenantName+1) }, alloc.ErrTenantName},
		{"environment too long", func(c *alloc.Claims) { c.Environment = make([]byte, 57) }, alloc.ErrTenantName},
		{"NUL in project", func(c *alloc.Claims) { c.Project = []byte("a\x00b") }, alloc.ErrTenantName},
		{"no role", func(c *alloc.Claims) { c.Role = alloc.RoleNone }, alloc.ErrClaims},
		{"unknown role", func(c *alloc.Claims) { c.Role = 4 }, alloc.ErrClaims},
		{"no id", func(c *alloc.Claims) { c.ID = proto.AllocationID{} }, alloc.ErrClaims},
		{"no match", func(c *alloc.Claims) { c.Match = proto.AllocationID{} }, alloc.ErrClaims},
		{"host of another match", func(c *alloc.Claims) { c.Match = testJoiner }, alloc.ErrClaims},
		{"host with a joiner", func(c *alloc.Claims) { c.Joiner = testJoiner }, alloc.ErrClaims},
		{"joiner that is the host", func(c *alloc.Claims) { c.Role = alloc.RoleJoiner }, alloc.ErrClaims},
		{"joiner with a joiner", func(c *alloc.Claims) { c.Role, c.ID, c.Joiner = alloc.RoleJoiner, testJoiner, testJoiner }, alloc.ErrClaims},
		{"ticket without a joiner", func(c *alloc.Claims) { c.Role = alloc.RoleTicket }, alloc.ErrClaims},
		{"ticket for the host", func(c *alloc.Claims) { c.Role, c.Joiner = alloc.RoleTicket, testHost }, alloc.ErrClaims},
		{"ticket of another match", func(c *alloc.Claims) {
			c.Role, c.Match, c.Joiner = alloc.RoleTicket, testJoiner, testJoiner
		}, alloc.ErrClaims},
	}
	for _, tt := range tests {
		c := hostClaims()
		tt.change(&c)
		data, err := s.Seal(c)
		if !errors.Is(err, tt.want) || data != (alloc.ConnectionData{}) {
			t.Errorf("%s: error %v, want %v", tt.name, err, tt.want)
		}
	}
}

// TestOpenedNamesCannotGrow: appending to an opened name must not run over the
// claims next to it.
func TestOpenedNamesCannotGrow(t *testing.T) {
	t.Parallel()
	s := newTestSealer(t, nil)
	data := mustSeal(t, s, hostClaims())
	c, ok := s.Open(new(alloc.Scratch), data[:])
	if !ok {
		t.Fatal("does not open")
	}
	_ = append(c.Project, bytes.Repeat([]byte("x"), 60)...)
	if string(c.Environment) != "production" {
		t.Errorf("environment became %q", c.Environment)
	}
}

// FuzzOpen: only sealed data opens, and Open never panics.
func FuzzOpen(f *testing.F) {
	// The nonce is fixed, so that all processes of the fuzzer seal the same data.
	s := newTestSealer(f, func(c *alloc.SealerConfig) { c.Rand = strings.NewReader("twelve bytes") })
	data := mustSeal(f, s, hostClaims())
	f.Add(data[:])
	f.Add(data[:254])
	f.Add(bytes.Repeat([]byte{1}, alloc.ConnectionDataLen))
	f.Add([]byte{})
	f.Fuzz(func(t *testing.T, in []byte) {
		if _, ok := s.Open(new(alloc.Scratch), in); ok != bytes.Equal(in, data[:]) {
			t.Errorf("opened %v: %x", ok, in)
		}
	})
}
