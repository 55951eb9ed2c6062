package hooks

import (
	"context"
	"testing"
)

func newContext(t *testing.T) (context.Context, context.CancelFunc) {
	t.Helper()
	return context.WithCancel(context.Background())
}

// FuzzVerdict reads what a program may answer: a verdict or an error, and a reason
// that can be shown.
func FuzzVerdict(f *testing.F) {
	for _, seed := range []string{`{"allow":true}`, `{"allow":false,"reason":"\u0000\ud800 x"}`, `null`, `[]`, `{"allow":null}`, "{\"allow\":false,\"reason\":\"\xff\"}"} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, body []byte) {
		v, err := parseVerdict(body)
		if err != nil && v != (verdict{}) {
			t.Fatalf("%+v with %v", v, err)
		}
		reason := clean(v.Reason)
		if len(reason) > maxReason || clean(reason) != reason {
			t.Fatalf("reason %q", reason)
		}
	})
}
