package importrules

import (
	"bytes"
	"flag"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/yuin/goldmark"
	"github.com/yuin/goldmark/ast"
	"github.com/yuin/goldmark/extension"
	"github.com/yuin/goldmark/text"
)

var rewriteParagraphs = flag.Bool("rewrite", false, "write each paragraph of each .md file on a line of its own")

// TestParagraphs verifies that a paragraph of Markdown is one line: a change of a sentence then moves no
// other line, and nobody wraps by hand.
func TestParagraphs(t *testing.T) {
	for _, name := range markdown(t) {
		if strings.HasSuffix(name, "LICENSE.md") {
			continue
		}
		old, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		page := joinParagraphs(old)
		switch {
		case bytes.Equal(old, page):
		case *rewriteParagraphs:
			if err := os.WriteFile(name, page, 0o644); err != nil {
				t.Fatal(err)
			}
		default:
			at := 0
			for at < len(page) && page[at] == old[at] {
				at++
			}
			t.Errorf("%s:%d: a paragraph goes on in the next line; write it on one line: "+
				"go test ./scripts/ci/importrules -run TestParagraphs -rewrite", name, 1+bytes.Count(old[:at], []byte("\n")))
		}
	}
}

func TestJoinParagraphs(t *testing.T) {
	const tick = "```"
	in := "# A\na\nb `c\nd`\n\n- e\n  f\n  - g\n    h\n\n> i\n> j\n\n" + tick + "\nk\nl\n" + tick + "\n\n| m | n |\n|---|---|\n| o | p |\n\n" +
		"<p>\nq\n</p>\n\nr  \ns\\\nt\n\n[u]: v\n"
	want := "# A\na b `c d`\n\n- e f\n  - g h\n\n> i j\n\n" + tick + "\nk\nl\n" + tick + "\n\n| m | n |\n|---|---|\n| o | p |\n\n" +
		"<p>\nq\n</p>\n\nr  \ns\\\nt\n\n[u]: v\n"
	if got := string(joinParagraphs([]byte(in))); got != want {
		t.Errorf("%q\n becomes %q,\n want %q", in, got, want)
	}
}

// joinParagraphs returns a page with each paragraph on one line, apart from hard line breaks.
func joinParagraphs(page []byte) []byte {
	root := goldmark.New(goldmark.WithExtensions(extension.Table)).Parser().Parse(text.NewReader(page))
	type span struct{ start, end int }
	var breaks []span
	_ = ast.Walk(root, func(n ast.Node, entering bool) (ast.WalkStatus, error) {
		if k := n.Kind(); !entering || k != ast.KindParagraph && k != ast.KindTextBlock {
			return ast.WalkContinue, nil
		}
		lines := n.Lines()
		for i := 1; i < lines.Len(); i++ {
			last, next := lines.At(i-1), lines.At(i)
			line := bytes.TrimSuffix(page[last.Start:last.Stop], []byte("\n"))
			if !bytes.HasSuffix(line, []byte("  ")) && !bytes.HasSuffix(line, []byte(`\`)) {
				breaks = append(breaks, span{last.Start + len(bytes.TrimRight(line, " ")), next.Start})
			}
		}
		return ast.WalkContinue, nil
	})
	for _, b := range slices.Backward(breaks) {
		page = slices.Concat(page[:b.start], []byte(" "), page[b.end:])
	}
	return page
}
