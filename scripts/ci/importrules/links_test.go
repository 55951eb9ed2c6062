package importrules

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

var link = regexp.MustCompile(`\]\(([^)\s]+)\)|\bsrc="([^"]+)"`)

var heading = regexp.MustCompile(`(?m)^#+ (.+)$`)

func TestLinks(t *testing.T) {
	count := 0
	for _, name := range markdown(t) {
		text, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range link.FindAllStringSubmatch(string(text), -1) {
			target, anchor, _ := strings.Cut(m[1]+m[2], "#")
			if strings.Contains(target, ":") {
				continue
			}
			count++
			path := name
			if target != "" {
				path = filepath.Join(filepath.Dir(name), target)
			}
			if _, err := os.Stat(path); err != nil {
				t.Errorf("%s: %v", name, err)
			} else if anchor != "" && !hasHeading(t, path, anchor) {
				t.Errorf("%s: %s has no heading #%s", name, path, anchor)
			}
		}
	}
	if count < 20 {
		t.Errorf("only %d links: the test looks in the wrong place", count)
	}
}

// markdown returns the names of all Markdown files of the repository.
func markdown(t *testing.T) (names []string) {
	t.Helper()
	const root = "../../.."
	err := filepath.WalkDir(root, func(name string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && (strings.HasPrefix(d.Name(), ".") && name != root || d.Name() == "node_modules"):
			return filepath.SkipDir
		case strings.HasSuffix(name, ".md"):
			names = append(names, name)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return names
}

// hasHeading reports whether a page has a heading with an anchor as GitHub makes
// it: lower case, without punctuation, with hyphens for spaces.
func hasHeading(t *testing.T, path, anchor string) bool {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	drop := regexp.MustCompile(`[^\pL\pN _-]`)
	for _, m := range heading.FindAllStringSubmatch(string(text), -1) {
		if strings.ReplaceAll(drop.ReplaceAllString(strings.ToLower(m[1]), ""), " ", "-") == anchor {
			return true
		}
	}
	return false
}
