package proto

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"testing"
)

// loudKey is a key whose bytes no printer could write without being noticed:
// 171, ab, AB, 0o253, 10101011.
func loudKey() Key {
	return Key(bytes.Repeat([]byte{0xAB}, KeyLen))
}

// checkSilent fails when text shows the bytes of loudKey in any notation, or
// does not say that something was left out.
func checkSilent(t *testing.T, what, text string) {
	t.Helper()
	for _, trace := range []string{"171", "ab", "AB", "253", "10101011", "q6ur", "\xab", "«"} {
		if strings.Contains(text, trace) {
			t.Errorf("%s shows the key: %s", what, text)
			return
		}
	}
	if !strings.Contains(text, redacted) {
		t.Errorf("%s says %q, without %s", what, text, redacted)
	}
}

// TestKeySilentVerbs prints keys with every verb, alone and inside others.
func TestKeySilentVerbs(t *testing.T) {
	key := loudKey()
	type holder struct {
		Name string
		K    Key
	}
	values := map[string]any{
		"Key":     key,
		"*Key":    &key,
		"struct":  holder{"name", key},
		"*struct": &holder{"name", key},
		"slice":   []Key{key},
		"map":     map[string]Key{"name": key},
		"map key": map[Key]int{key: 1},
	}
	verbs := []string{"%v", "%+v", "%#v", "%s", "%q", "%x", "%X", "% x", "%#x", "%d", "%o", "%b", "%c", "%U", "%t", "%e", "%100v", "%-100x", "%.3s"}
	for name, value := range values {
		for _, verb := range verbs {
			checkSilent(t, verb+" of "+name, fmt.Sprintf(verb, value))
		}
		checkSilent(t, "Sprint of "+name, fmt.Sprint(value))
		checkSilent(t, "Sprintln of "+name, fmt.Sprintln(value))
	}
}

// TestKeyInUnexportedField holds the advice for structs that keep a key in an
// unexported field: a pointer prints as an address.
func TestKeyInUnexportedField(t *testing.T) {
	key := loudKey()
	for _, verb := range []string{"%v", "%+v", "%#v", "%d"} {
		text := fmt.Sprintf(verb, struct{ key *Key }{&key})
		if strings.Contains(text, "171 171") || strings.Contains(text, "0xab, 0xab") {
			t.Errorf("%s shows the key: %s", verb, text)
		}
	}
}

// TestKeySilentText asks the methods themselves.
func TestKeySilentText(t *testing.T) {
	key := loudKey()
	text, err := key.MarshalText()
	if err != nil {
		t.Fatal(err)
	}
	for name, got := range map[string]string{
		"String":      key.String(),
		"GoString":    key.GoString(),
		"LogValue":    key.LogValue().String(),
		"MarshalText": string(text),
		"an error":    errors.Join(fmt.Errorf("bind with %v", key)).Error(),
	} {
		checkSilent(t, name, got)
	}
}

// TestKeySilentLogs logs keys as values, in groups and inside structs.
func TestKeySilentLogs(t *testing.T) {
	key := loudKey()
	type holder struct{ K Key }
	options := &slog.HandlerOptions{ReplaceAttr: withoutTime}
	for name, handler := range map[string]func(*bytes.Buffer) slog.Handler{
		"text": func(b *bytes.Buffer) slog.Handler { return slog.NewTextHandler(b, options) },
		"JSON": func(b *bytes.Buffer) slog.Handler { return slog.NewJSONHandler(b, options) },
	} {
		for what, value := range map[string]any{
			"Key": key, "*Key": &key, "struct": holder{key}, "*struct": &holder{key}, "slice": []Key{key},
			"group": slog.GroupValue(slog.Any("key", key)),
		} {
			var out bytes.Buffer
			log := slog.New(handler(&out))
			log.Info("bound", "value", value)
			checkSilent(t, "slog "+name+" of "+what, out.String())
		}
	}
}

// withoutTime removes the time, whose digits could look like bytes of the key.
func withoutTime(groups []string, a slog.Attr) slog.Attr {
	if len(groups) == 0 && a.Key == slog.TimeKey {
		return slog.Attr{}
	}
	return a
}

// TestKeySilentJSON marshals keys.
func TestKeySilentJSON(t *testing.T) {
	key := loudKey()
	for name, value := range map[string]any{
		"Key": key, "*Key": &key, "struct": struct{ K Key }{key}, "slice": []Key{key}, "map key": map[Key]int{key: 1},
	} {
		text, err := json.Marshal(value)
		if err != nil {
			t.Fatal(err)
		}
		checkSilent(t, "JSON of "+name, string(text))
	}
}

// TestKeyBytes makes sure that whoever means to can read the key.
func TestKeyBytes(t *testing.T) {
	key := loudKey()
	if !bytes.Equal(key[:], bytes.Repeat([]byte{0xAB}, 64)) {
		t.Error("the bytes of a key are not its bytes")
	}
}
