package alloc_test

import (
	"errors"
	"testing"
	"time"

	"github.com/ferryrelay/ferry/alloc"
	"github.com/ferryrelay/ferry/proto"
)

func TestRefusedError(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		err  alloc.RefusedError
		is   error
		text string
	}{
		{alloc.RefusedError{Reason: "banned"}, alloc.ErrDenied, "alloc: not admitted: banned"},
		{alloc.RefusedError{Err: alloc.ErrPlayerLimit, Reason: "hosts"}, alloc.ErrPlayerLimit, alloc.ErrPlayerLimit.Error() + ": hosts"},
		{alloc.RefusedError{Err: alloc.ErrMigration, Reason: "silent", RetryAfter: time.Second}, alloc.ErrMigration,
			alloc.ErrMigration.Error() + ": silent; ask again in 1s"},
		{alloc.RefusedError{Err: alloc.ErrHostPresent, Host: proto.AllocationID{1}}, alloc.ErrHostPresent,
			alloc.ErrHostPresent.Error() + ": allocation 01000000-0000-0000-0000-000000000000"},
	} {
		if !errors.Is(c.err, c.is) || c.err.Error() != c.text {
			t.Errorf("%q, want %q, an error %v", c.err.Error(), c.text, c.is)
		}
	}
}
