package sock

import (
	"go/parser"
	"go/token"
	"os"
	"strings"
	"testing"
)

// TestUnsafeInOneFile holds the package to what doc.go promises.
func TestUnsafeInOneFile(t *testing.T) {
	entries, err := os.ReadDir(".")
	if err != nil {
		t.Fatal(err)
	}
	seen := false
	for _, e := range entries {
		if !strings.HasSuffix(e.Name(), ".go") {
			continue
		}
		f, err := parser.ParseFile(token.NewFileSet(), e.Name(), nil, parser.ImportsOnly)
		if err != nil {
			t.Fatal(err)
		}
		for _, imp := range f.Imports {
			switch {
			case imp.Path.Value != `"unsafe"`:
			case e.Name() == "mmsg_linux.go":
				seen = true
			default:
				t.Errorf("%s imports unsafe", e.Name())
			}
		}
	}
	if !seen {
		t.Error("mmsg_linux.go does not import unsafe: is this test out of date?")
	}
}
