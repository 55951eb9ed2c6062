package ctl

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/ferryrelay/ferry/internal/base/printable"
	"github.com/ferryrelay/ferry/internal/net/sock"
)

type screen struct {
	w     io.Writer
	clear bool // it is a terminal, so the last page goes away
	shown int
}

// Width returns the columns of a terminal, 0 for any other stream.
func Width(stream any) int {
	if !terminal(stream) {
		return 0
	}
	width, _ := sock.TerminalWidth(stream.(*os.File))
	return width
}

// Wrap breaks text between words into lines of at most width columns; 0: one line. The first line begins
// at one column, the others at another.
func Wrap(text string, width, first, others int) string {
	var b strings.Builder
	line, empty := strings.Repeat(" ", first), true
	for word := range strings.FieldsSeq(text) {
		if !empty && width > 0 && utf8.RuneCountInString(line)+1+utf8.RuneCountInString(word) > width {
			b.WriteString(line + "\n")
			line, empty = strings.Repeat(" ", others), true
		}
		if !empty {
			line += " "
		}
		line, empty = line+word, false
	}
	return b.String() + line + "\n"
}

// terminal reports whether stream is one that can be redrawn.
func terminal(stream any) bool {
	f, ok := stream.(*os.File)
	if !ok || os.Getenv("TERM") == "dumb" {
		return false
	}
	_, ok = sock.TerminalWidth(f)
	return ok
}

// The sequences of ECMA-48 that redraw without a flicker: to the upper left, each
// line to its end, and from the last one down.
const (
	home      = "\x1b[H"
	clearLine = "\x1b[K\n"
	clearDown = "\x1b[J"
	clearAll  = "\x1b[2J"
)

// repeat shows a page at once and after each every, times times; 0: until ctx
// ends, which is a good end. A page that fails ends it, unless one was shown
// before: then the failure is shown in its place, since what is watched may
// come back.
func (s *screen) repeat(ctx context.Context, every time.Duration, times int, draw func(io.Writer) error) error {
	ticker := time.NewTicker(every)
	defer ticker.Stop()
	for n := 1; ; n++ {
		var b bytes.Buffer
		err := draw(&b)
		switch {
		case ctx.Err() != nil:
			return nil
		case err != nil && s.shown == 0:
			return err
		case err != nil:
			b.Reset()
			fmt.Fprintln(&b, printable.Text(err.Error()))
		}
		if err := s.page(b.Bytes()); err != nil {
			return err
		}
		if n == times {
			return err
		}
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C:
		}
	}
}

func (s *screen) page(text []byte) error {
	var b bytes.Buffer
	switch {
	case !s.clear:
		if s.shown > 0 {
			b.WriteByte('\n')
		}
		b.Write(text)
	default:
		if s.shown == 0 {
			b.WriteString(clearAll)
		}
		b.WriteString(home)
		b.Write(bytes.ReplaceAll(text, []byte("\n"), []byte(clearLine)))
		b.WriteString(clearDown)
	}
	s.shown++
	_, err := s.w.Write(b.Bytes())
	if errors.Is(err, os.ErrClosed) {
		return nil
	}
	return err
}
