package proto

import (
	"os/exec"
	"regexp"
	"testing"
)

// mustInline are the functions that the serving path calls for each datagram.
var mustInline = []string{
	"ParseType",
	"Type.FromClient",
	"Type.FromServer",
	"ParsePing",
	"ParseRelay",
	"ParseConnectRequest",
	"ParseDisconnect",
	"ParseClose",
	"AllocationID.IsZero",
	"BindReceived.Append",
	"Accepted.Append",
	"Rejected.Append",
	"Error.Append",
	"Relay.Append",
	"headerMismatch",
}

// TestInline runs the compiler with -m and checks that it inlines mustInline.
func TestInline(t *testing.T) {
	tool, err := exec.LookPath("go")
	if err != nil {
		t.Skip("no go command: ", err)
	}
	out, err := exec.Command(tool, "build", "-gcflags=-m", ".").CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	inlined := make(map[string]bool)
	for _, match := range regexp.MustCompile(`(?m)can inline (\S+)$`).FindAllSubmatch(out, -1) {
		inlined[string(match[1])] = true
	}
	for _, name := range mustInline {
		if !inlined[name] {
			t.Errorf("%s does not inline; see go build -gcflags=-m=2 .", name)
		}
	}
	// A pattern that matches every name would pass the loop above.
	for _, name := range []string{"Decode", "Signer.Verify"} {
		if inlined[name] {
			t.Errorf("%s inlines: the pattern matches too much", name)
		}
	}
}
