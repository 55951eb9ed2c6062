package config

import (
	"reflect"
	"strings"
	"testing"
)

// TestGone: each form of each setting that no longer exists is an error with its position and what
// stands in its place. None of them is a setting.
func TestGone(t *testing.T) {
	current := make(map[string]bool)
	for _, s := range settings(reflect.TypeFor[Config]()) {
		current[s.key] = true
		if s.isStructList() {
			for _, m := range settings(s.kind.Elem()) {
				current[s.key+"."+m.key] = true
			}
		}
	}
	for key, instead := range gone {
		if current[key] || instead == "" || strings.HasSuffix(instead, ".") {
			t.Errorf("%s is a setting, or its text is not a clause: %q", key, instead)
		}
		want := " no longer exists; " + instead
		text, typed := "\n"+key+": x\n", key
		if list, member, ok := strings.Cut(key, "."); ok {
			text, typed = list+":\n  - "+member+": x\n", list+"[0]."+member
		}
		file := write(t, text)
		if _, err := load(t, nil, "-c", file); err == nil || !strings.Contains(err.Error(), file+":2: "+typed+want) {
			t.Errorf("%q: %v", text, err)
		}
		if strings.Contains(key, ".") {
			continue
		}
		variable, flag := "FERRY_"+strings.ToUpper(key), strings.ReplaceAll(key, "_", "-")
		if _, err := load(t, []string{variable + "=x"}); err == nil || !strings.Contains(err.Error(), variable+want) {
			t.Errorf("%s: %v", variable, err)
		}
		if err := GoneFlag(flag); err == nil || err.Error() != "--"+flag+want {
			t.Errorf("--%s: %v", flag, err)
		}
	}
	if err := GoneFlag("udp"); err != nil {
		t.Error(err)
	}
}
