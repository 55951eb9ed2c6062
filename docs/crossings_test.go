package docs

import (
	"bytes"
	"flag"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

var rewrite = flag.Bool("rewrite", false, "write html, and the table at the top of research/crossings.md")

// crossing is a row of a section: the other feature, and what shows that the two work together.
var crossing = regexp.MustCompile(`(?m)^\| ([^|]+) \| ([^|]+) \|$`)

// TestCrossings: the page has every pair of its features once, names tests that exist, and its table says the same.
func TestCrossings(t *testing.T) {
	t.Parallel()
	const page = "research/crossings.md"
	text, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	tests := testNames(t)
	sections := strings.Split(string(text), "\n## ")[1:]
	features := make([]string, len(sections))
	for i, s := range sections {
		features[i], _, _ = strings.Cut(s, "\n")
	}
	signs := map[string]string{}
	for i, s := range sections {
		var with []string
		for _, row := range crossing.FindAllStringSubmatch(s, -1)[1:] {
			with = append(with, row[1])
			signs[features[i]+row[1]] = signOf(row[2])
			for _, name := range regexp.MustCompile(`\bTest\w+`).FindAllString(row[2], -1) {
				if !tests[name] {
					t.Errorf("%s and %s: there is no %s", features[i], row[1], name)
				}
			}
			if signOf(row[2]) == "" {
				t.Errorf("%s and %s: neither a test nor a reason", features[i], row[1])
			}
		}
		if want := features[i+1:]; strings.Join(with, ", ") != strings.Join(want, ", ") {
			t.Errorf("%s is with %q, want %q", features[i], with, want)
		}
	}
	table := crossingTable(features, signs)
	before, rest, found := bytes.Cut(text, []byte("<!-- table -->\n"))
	_, after, ends := bytes.Cut(rest, []byte("<!-- end -->\n"))
	if !found || !ends {
		t.Fatal("no place for the table")
	}
	want := fmt.Appendf(nil, "%s<!-- table -->\n%s<!-- end -->\n%s", before, table, after)
	if *rewrite {
		err = os.WriteFile(page, want, 0o644)
	} else if !bytes.Equal(text, want) {
		err = fmt.Errorf("the table of %s is not that of its sections: go test ./docs -run TestCrossings -rewrite", page)
	}
	if err != nil {
		t.Error(err)
	}
}

// signOf is how the table shows a row: a test, no way to meet, or nothing that covers it.
func signOf(shown string) string {
	switch {
	case strings.HasPrefix(shown, "Empty: "):
		return "○"
	case strings.HasPrefix(shown, "Cannot meet: "):
		return "–"
	case strings.Contains(shown, "Test"):
		return "●"
	}
	return ""
}

func crossingTable(features []string, signs map[string]string) string {
	var b strings.Builder
	fmt.Fprint(&b, "| |")
	for i := range features {
		fmt.Fprintf(&b, " %d |", i+1)
	}
	fmt.Fprint(&b, "\n|---|", strings.Repeat("---|", len(features)), "\n")
	for i, row := range features {
		fmt.Fprintf(&b, "| %d %s |", i+1, row)
		for _, column := range features {
			fmt.Fprintf(&b, " %s |", signs[row+column])
		}
		fmt.Fprintln(&b)
	}
	return b.String()
}

// testNames are the names of all Go tests of the repository.
func testNames(t *testing.T) map[string]bool {
	t.Helper()
	names := map[string]bool{}
	declared := regexp.MustCompile(`(?m)^func (Test\w+)\(`)
	err := filepath.WalkDir("..", func(path string, d fs.DirEntry, err error) error {
		if err != nil || !strings.HasSuffix(path, "_test.go") {
			return err
		}
		text, err := os.ReadFile(path)
		for _, m := range declared.FindAllSubmatch(text, -1) {
			names[string(m[1])] = true
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return names
}
