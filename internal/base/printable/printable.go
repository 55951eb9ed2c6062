// Package printable makes text harmless that another machine or a player may have chosen: a character
// that is not printable, such as the begin of a control sequence of a terminal, becomes a question mark.
package printable

import (
	"bytes"
	"io"
	"strings"
	"unicode"
	"unicode/utf8"
)

// Line returns text as a part of a line or a cell of a table, which has neither tabs nor line ends.
func Line(text string) string { return strings.Map(lineRune, text) }

// IsLine reports whether Line would change nothing.
func IsLine(text string) bool {
	return !strings.ContainsFunc(text, func(r rune) bool { return !unicode.IsPrint(r) })
}

// Text returns text, in which tabs and line ends stay.
func Text(text string) string { return strings.Map(textRune, text) }

func lineRune(r rune) rune {
	if unicode.IsPrint(r) {
		return r
	}
	return '?'
}

func textRune(r rune) rune {
	if r == '\n' || r == '\t' {
		return r
	}
	return lineRune(r)
}

// NewWriter returns a writer to w, which gets what Text returns. One goroutine may use it at a time.
func NewWriter(w io.Writer) io.Writer { return &writer{w: w} }

type writer struct {
	w    io.Writer
	rest []byte // the begin of a character
}

// Write implements io.Writer. A character may come in two parts.
func (t *writer) Write(p []byte) (int, error) {
	text := append(t.rest, p...)
	end := len(text)
	for i := end - 1; i >= max(0, end-utf8.UTFMax); i-- {
		if utf8.RuneStart(text[i]) {
			if !utf8.FullRune(text[i:]) {
				end = i
			}
			break
		}
	}
	t.rest = bytes.Clone(text[end:])
	if _, err := t.w.Write(bytes.Map(textRune, text[:end])); err != nil {
		return 0, err
	}
	return len(p), nil
}
