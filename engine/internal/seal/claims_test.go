package seal

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
		change func(*Claims)
		want   error
	}{
		{"project too long", func(c *Claims) { c.Project = bytes.Repeat([]byte("p"), alloc.MaxTenantName+1) }, alloc.ErrTenantName},
		{"environment too long", func(c *Claims) { c.Environment = make([]byte, 57) }, alloc.ErrTenantName},
		{"NUL in project", func(c *Claims) { c.Project = []byte("a\x00b") }, alloc.ErrTenantName},
		{"no role", func(c *Claims) { c.Role = alloc.RoleNone }, errClaims},
		{"unknown role", func(c *Claims) { c.Role = 4 }, errClaims},
		{"no id", func(c *Claims) { c.ID = proto.AllocationID{} }, errClaims},
		{"no match", func(c *Claims) { c.Match = proto.AllocationID{} }, errClaims},
		{"host of another match", func(c *Claims) { c.Match = testJoiner }, errClaims},
		{"host with a joiner", func(c *Claims) { c.Joiner = testJoiner }, errClaims},
		{"joiner that is the host", func(c *Claims) { c.Role = alloc.RoleJoiner }, errClaims},
		{"joiner with a joiner", func(c *Claims) { c.Role, c.ID, c.Joiner = alloc.RoleJoiner, testJoiner, testJoiner }, errClaims},
		{"ticket without a joiner", func(c *Claims) { c.Role = RoleTicket }, errClaims},
		{"ticket for the host", func(c *Claims) { c.Role, c.Joiner = RoleTicket, testHost }, errClaims},
		{"ticket of another match", func(c *Claims) {
			c.Role, c.Match, c.Joiner = RoleTicket, testJoiner, testJoiner
		}, errClaims},
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

func TestOpenedNamesCannotGrow(t *testing.T) {
	t.Parallel()
	s := newTestSealer(t, nil)
	data := mustSeal(t, s, hostClaims())
	c, ok := s.Open(new(Scratch), data[:])
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
	s := newTestSealer(f, func(c *Config) { c.Rand = strings.NewReader("twelve bytes") })
	data := mustSeal(f, s, hostClaims())
	f.Add(data[:])
	f.Add(data[:254])
	f.Add(bytes.Repeat([]byte{1}, proto.MaxConnectionData))
	f.Add([]byte{})
	f.Fuzz(func(t *testing.T, in []byte) {
		if _, ok := s.Open(new(Scratch), in); ok != bytes.Equal(in, data[:]) {
			t.Errorf("opened %v: %x", ok, in)
		}
	})
}
