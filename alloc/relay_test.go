package alloc_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/ferryrelay/ferry/alloc"
)

func TestUnavailable(t *testing.T) {
	all := map[string]error{
		"relay": alloc.ErrUnavailable, "store": alloc.ErrStoreUnavailable, "admission": alloc.ErrAdmissionUnavailable,
	}
	for part, err := range all {
		wrapped := fmt.Errorf("look up: %w: %w", err, errors.New("refused"))
		if !errors.Is(wrapped, alloc.ErrUnavailable) {
			t.Errorf("%v is no ErrUnavailable", wrapped)
		}
		for other, wanted := range all {
			if got := errors.Is(wrapped, wanted); got != (other == part || other == "relay") {
				t.Errorf("%v is the error of the %s: %v", wrapped, other, got)
			}
			if got := strings.Contains(wrapped.Error(), other); got != (other == part) {
				t.Errorf("%q names the %s: %v", wrapped, other, got)
			}
		}
	}
}
