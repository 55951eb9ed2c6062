package alloc_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"log/slog"
	"strings"
	"testing"

	"github.com/ferryrelay/ferry/alloc"
)

func TestMasterKeyIsNotPrinted(t *testing.T) {
	t.Parallel()
	key := alloc.MasterKey(bytes.Repeat([]byte{0xab}, 32))
	var out bytes.Buffer
	for _, verb := range []string{"%v", "%+v", "%#v", "%s", "%q", "%x", "%d"} {
		fmt.Fprintf(&out, verb+"\n", key)
		fmt.Fprintf(&out, verb+"\n", struct{ Key alloc.MasterKey }{key})
	}
	text, err := json.Marshal(key)
	out.Write(text)
	for _, h := range []slog.Handler{slog.NewTextHandler(&out, nil), slog.NewJSONHandler(&out, nil)} {
		slog.New(h).Info("key", "key", key, "in", struct{ Key alloc.MasterKey }{key})
	}
	if printed := strings.ToLower(out.String()); err != nil || strings.Contains(printed, "abab") ||
		strings.Contains(printed, "171") || strings.Count(printed, "redacted") < 19 {
		t.Errorf("%v\n%s", err, printed)
	}
}
