package proto

import (
	"encoding/hex"
	"fmt"
	"regexp"
	"strings"
	"testing"
)

func TestIDString(t *testing.T) {
	for _, c := range []struct {
		id   AllocationID
		want string
	}{
		{AllocationID{}, "00000000-0000-0000-0000-000000000000"},
		{goldenHost, "10111213-1415-1617-1819-1a1b1c1d1e1f"},
		{goldenJoiner, "a0a1a2a3-a4a5-a6a7-a8a9-aaabacadaeaf"},
	} {
		if got := c.id.String(); got != c.want {
			t.Errorf("got %s, want %s", got, c.want)
		}
		if got := fmt.Sprint(c.id); got != c.want {
			t.Errorf("fmt prints %s, want %s", got, c.want)
		}
	}
}

func TestIDStringForm(t *testing.T) {
	form := regexp.MustCompile(`^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$`)
	rng := newRand(15)
	for range 1000 {
		id := randomID(rng)
		text := id.String()
		if !form.MatchString(text) {
			t.Fatalf("%s is not a UUID in text form", text)
		}
		for _, spelled := range []string{text, strings.ToUpper(text)} {
			if parsed, err := ParseAllocationID(spelled); err != nil || parsed != id {
				t.Fatalf("ParseAllocationID(%s): %s, %v", spelled, parsed, err)
			}
		}
		back, err := hex.DecodeString(strings.ReplaceAll(text, "-", ""))
		if err != nil || AllocationID(back) != id {
			t.Fatalf("%s is not the text of %x", text, id[:])
		}
	}
}

func TestIDIsZero(t *testing.T) {
	if !(AllocationID{}).IsZero() {
		t.Error("the zero id is not zero")
	}
	for bit := range idLen * 8 {
		var id AllocationID
		id[bit/8] = 1 << (bit % 8)
		if id.IsZero() {
			t.Errorf("zero with bit %d of byte %d set", bit%8, bit/8)
		}
	}
}

func TestParseAllocationIDRefuses(t *testing.T) {
	text := goldenHost.String()
	bad := []string{
		"", text[:35], text + "0", "{" + text + "}", "urn:uuid:" + text, strings.ReplaceAll(text, "-", ""),
		strings.Replace(text, "-", "0", 1), strings.Replace(text, "a", "g", 1), " " + text[1:], text[:35] + "-",
	}
	for i := range 4 { // each hyphen one place later
		at := 8 + 5*i
		bad = append(bad, text[:at]+text[at+1:at+2]+"-"+text[at+2:])
	}
	for _, text := range bad {
		if id, err := ParseAllocationID(text); err != ErrIDText || !id.IsZero() {
			t.Errorf("ParseAllocationID(%q): %s, %v", text, id, err)
		}
	}
}
