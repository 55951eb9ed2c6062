package importrules

import (
	"go/ast"
	"go/token"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"
)

// maxColumns is how long a line of Go may be; a tab counts as one. A string is not split, so
// that one can search for it: beside its longest string a line has at most maxBeside columns.
const maxColumns, maxBeside = 140, 60

func TestLineLength(t *testing.T) {
	for _, s := range sources(t) {
		if ast.IsGenerated(s.file) {
			continue
		}
		text, err := os.ReadFile("../../../" + s.name)
		if err != nil {
			t.Fatal(err)
		}
		literals := literalColumns(s)
		n := 0
		for line := range strings.Lines(string(text)) {
			n++
			columns := utf8.RuneCountInString(strings.TrimSuffix(line, "\n"))
			if columns > maxColumns && columns-literals[n] > maxBeside {
				t.Errorf("%s:%d: the line has %d columns, more than %d", s.name, n, columns, maxColumns)
			}
		}
	}
}

func literalColumns(s source) map[int]int {
	longest := map[int]int{}
	ast.Inspect(s.file, func(n ast.Node) bool {
		if lit, ok := n.(*ast.BasicLit); ok && lit.Kind == token.STRING {
			first := s.files.Position(lit.Pos()).Line
			for i, part := range strings.Split(lit.Value, "\n") {
				longest[first+i] = max(longest[first+i], utf8.RuneCountInString(part))
			}
		}
		return true
	})
	return longest
}

// TestDocCommentNames verifies that no doc comment begins with a name that its declaration had
// before it was renamed.
func TestDocCommentNames(t *testing.T) {
	for _, s := range sources(t) {
		if ast.IsGenerated(s.file) {
			continue
		}
		forEachDoc(s.file, func(doc *ast.CommentGroup, names []string, nameFirst bool) {
			if old := otherName(doc.Text(), names, nameFirst); old != "" {
				t.Errorf("%s:%d: the doc comment of %s begins with %s", s.name, s.files.Position(doc.Pos()).Line, names[0], old)
			}
		})
	}
}

// forEachDoc calls f with each doc comment of a declaration, a field or a method of an
// interface, and the names that it declares. nameFirst: by convention the first word is the name.
func forEachDoc(file *ast.File, f func(doc *ast.CommentGroup, names []string, nameFirst bool)) {
	visit := func(doc *ast.CommentGroup, nameFirst bool, idents ...*ast.Ident) {
		if doc == nil || len(idents) == 0 {
			return
		}
		names := make([]string, len(idents))
		for i, ident := range idents {
			names[i] = ident.Name
		}
		f(doc, names, nameFirst)
	}
	ast.Inspect(file, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.FuncDecl:
			visit(n.Doc, true, n.Name)
		case *ast.GenDecl:
			if n.Tok == token.IMPORT {
				return false
			}
			var all []*ast.Ident
			for _, spec := range n.Specs {
				switch spec := spec.(type) {
				case *ast.TypeSpec:
					visit(spec.Doc, true, spec.Name)
					all = append(all, spec.Name)
				case *ast.ValueSpec:
					visit(spec.Doc, true, spec.Names...)
					all = append(all, spec.Names...)
				}
			}
			visit(n.Doc, len(n.Specs) == 1, all...)
		case *ast.Field:
			visit(n.Doc, false, n.Names...)
		}
		return true
	})
}

var (
	firstWord = regexp.MustCompile(`^([A-Za-z_]\w*)(?:[\s,:.;'(]|$)`)
	mixedCase = regexp.MustCompile(`[a-z0-9][A-Z]|_`)
)

// otherName returns the first word of a doc comment if it looks like an identifier and is none
// of names, and "" otherwise. A word of lower case alone looks like one if nameFirst.
func otherName(text string, names []string, nameFirst bool) string {
	m := firstWord.FindStringSubmatch(text)
	if m == nil || slices.Contains(names, m[1]) {
		return ""
	}
	if mixedCase.MatchString(m[1]) || nameFirst && strings.ToLower(m[1]) == m[1] {
		return m[1]
	}
	return ""
}

func TestOtherName(t *testing.T) {
	for _, c := range []struct {
		text      string
		names     []string
		nameFirst bool
		want      string
	}{
		{"findPeer returns the peer.", []string{"findPeer"}, true, ""},
		{"lookUpPeer returns the peer.", []string{"findPeer"}, true, "lookUpPeer"},
		{"peer returns the peer.", []string{"findPeer"}, true, "peer"},
		{"LookUp, if set, is called.", []string{"Find"}, false, "LookUp"},
		{"TestOld: a test.", []string{"TestNew"}, true, "TestOld"},
		{"The roles.", []string{"RoleHost", "RoleJoiner"}, false, ""},
		{"guards the following fields.", []string{"mu"}, false, ""},
		{"low and high are limits.", []string{"low", "high"}, true, ""},
		{"DTLS records.", []string{"records"}, true, ""},
		{"[Config.Run] calls it.", []string{"hook"}, true, ""},
	} {
		if got := otherName(c.text, c.names, c.nameFirst); got != c.want {
			t.Errorf("%q of %v: %q, want %q", c.text, c.names, got, c.want)
		}
	}
}
