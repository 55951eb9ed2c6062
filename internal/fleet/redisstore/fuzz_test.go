package redisstore

import (
	"testing"
	"time"

	"github.com/ferryrelay/ferry/alloc"
	"github.com/ferryrelay/ferry/internal/fleet/placement"
)

// FuzzValues: whatever the store has, reading it ends no program, and what is
// read is what it was written from.
func FuzzValues(f *testing.F) {
	home := placement.Home{Relay: alloc.RelayID{1, 2, 3}, Boot: 1<<64 - 1}
	node, err := encodeNode(placement.Node{Region: "north", RecoverFor: time.Minute, Endpoints: []alloc.ServerEndpoint{{Host: "a", Port: 1}}})
	if err != nil {
		f.Fatal(err)
	}
	for _, text := range []string{
		"", ":", "::::", hostID(1).String() + ":1767322245000", homeText(home), hostCode{7, codeText(5)}.String(),
		"1767322245000:00000000000000ff:17:1.AAAAAAAAAAAAAAAA.AA:" + string(node), "1:0000000000000001:1::null", "9007199254740993:0:0::{}",
		"1767322245000.AAAAAAAAAAAAAAAA.AAAA", "0..",
		"# Replication\r\nrole:master\r\nmaster_replid:0123\r\n", "00000000-0000-0000-0000-00000000000G:1",
	} {
		f.Add(text, int64(1767322245000))
	}
	r := &Registry{keys: testKeys}
	f.Fuzz(func(t *testing.T, text string, now int64) {
		if h, ok := parseHome(text); ok && homeText(h) != text {
			t.Errorf("home %q is read as %v", text, h)
		}
		if c, ok := parseHostCode(text); ok && c.String() != text {
			t.Errorf("code of a host %q is read as %v", text, c)
		}
		if id, _, ok := parseCodeValue(text); ok && text[:36] != id.String() {
			t.Errorf("value of a code %q is read as %v", text, id)
		}
		if sealed, ok := parseSeal(text); ok && sealed.String() != text {
			t.Errorf("seal %q is read as %v", text, sealed)
		}
		if len(history(text)) > maxHistory {
			t.Errorf("history of %q is long", text)
		}
		n, ok := r.parseEntry(alloc.RelayID{1}.String(), text, now)
		if ok && (n.Age < 0 || n.RecoverFor < 0 || lastsFor(n.Node) < 0) {
			t.Errorf("entry %q is read as %+v", text, n)
		}
		if _, _, ok := r.parseNodes([]any{text, []any{text, text}}); ok && now == 0 && text == "" {
			t.Error("nodes without a time are read")
		}
	})
}

func TestParseNodes(t *testing.T) {
	t.Parallel()
	r := &Registry{keys: testKeys}
	for name, reply := range map[string]any{
		"nothing": nil, "a number": int64(1), "no list": []any{"1"}, "three": []any{"1", []any{}, "x"},
		"a time that is none": []any{"-1", []any{}}, "a number for a list": []any{"1", int64(1)}, "an odd list": []any{"1", []any{"a"}},
	} {
		if seen, _, ok := r.parseNodes(reply); ok {
			t.Errorf("%s: %v", name, seen)
		}
	}
	if seen, damaged, ok := r.parseNodes([]any{"1", []any{int64(1), nil, "x", "y"}}); !ok || damaged != 2 || len(seen) != 0 {
		t.Errorf("damaged entries: %v, %d, %v", seen, damaged, ok)
	}
}
