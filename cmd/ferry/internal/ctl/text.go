package ctl

import (
	"bytes"
	"io"
	"strings"
	"unicode"
	"unicode/utf8"
)

// TextWriter returns a writer to w for text that another machine may have chosen in part: a
// character that is not printable, such as the begin of a control sequence of a terminal,
// becomes a question mark. Tabs and line ends stay. One goroutine may use it at a time.
func TextWriter(w io.Writer) io.Writer { return &textWriter{w: w} }

// Text does the same with a text.
func Text(text string) string { return strings.Map(textRune, text) }

func textRune(r rune) rune {
	if r == '\n' || r == '\t' || unicode.IsPrint(r) {
		return r
	}
	return '?'
}

type textWriter struct {
	w    io.Writer
	rest []byte // the begin of a character
}

// Write implements io.Writer. A character may come in two parts.
func (t *textWriter) Write(p []byte) (int, error) {
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

// printable is Text for a cell of a table or a part of a line, which has neither tabs nor line
// ends.
func printable(text string) string {
	return strings.Map(func(r rune) rune {
		if unicode.IsPrint(r) {
			return r
		}
		return '?'
	}, text)
}
