package seal

import (
	"bytes"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"log/slog"
	"strings"
	"testing"

	"github.com/ferryrelay/ferry/alloc"
	"github.com/ferryrelay/ferry/proto"
)

func TestNothingPrintsSecrets(t *testing.T) {
	t.Parallel()
	master := alloc.MasterKey(bytes.Repeat([]byte{0xC5, 0x7B, 0xE9, 0x91}, 8))
	cfg := Config{Master: master, Relay: testRelay, Boot: 1, Now: testClock(0)}
	sealer, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	deriver := sealer.NewDeriver()
	var key proto.Key
	deriver.Key(proto.AllocationID{1}, &key)

	values := map[string]any{
		"master": master, "master pointer": &master, "config": cfg, "config pointer": &cfg,
		"sealer": sealer, "deriver": deriver, "holder of a sealer": struct{ s *Sealer }{sealer},
		"key": key, "reservation": alloc.Reservation{Key: key},
	}
	for name, v := range values {
		for _, verb := range []string{"%v", "%+v", "%#v", "%s", "%q", "%x", "%X", "% x", "%d", "%b", "%o", "%T"} {
			refuseSecrets(t, name+" "+verb, fmt.Sprintf(verb, v), master[:], key[:])
		}
		var log bytes.Buffer
		slog.New(slog.NewTextHandler(&log, nil)).Info("text", "value", v)
		slog.New(slog.NewJSONHandler(&log, nil)).Info("json", "value", v)
		refuseSecrets(t, name+" slog", log.String(), master[:], key[:])
	}
	for name, v := range map[string]any{"master": master, "in a struct": struct{ K alloc.MasterKey }{master}} {
		out, err := json.Marshal(v)
		if err != nil {
			t.Fatal(err)
		}
		refuseSecrets(t, name+" JSON", string(out), master[:], key[:])
		if !strings.Contains(string(out), "[redacted]") {
			t.Errorf("%s: JSON %s does not say [redacted]", name, out)
		}
	}
}

// refuseSecrets fails the test if text shows four bytes of a secret in a row,
// however they are spelled.
func refuseSecrets(t *testing.T, what, text string, secrets ...[]byte) {
	t.Helper()
	for _, secret := range secrets {
		part := secret[:4]
		spellings := []string{string(part), hex.EncodeToString(part), strings.ToUpper(hex.EncodeToString(part))}
		for _, verb := range []string{"%d", "%#v", "% x", "% X", "%b", "%o", "%q", "%x", "%X"} {
			one := fmt.Sprintf(verb, part)
			spellings = append(spellings, strings.Trim(one, `[]"`))
		}
		spellings = append(spellings, fmt.Sprintf("0x%x, 0x%x, 0x%x", part[0], part[1], part[2]))
		for _, s := range spellings {
			if strings.Contains(text, s) {
				t.Errorf("%s shows a secret as %q: %.200s", what, s, text)
			}
		}
	}
}
