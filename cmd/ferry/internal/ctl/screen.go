package ctl

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/charmbracelet/x/term"

	"github.com/ferryrelay/ferry/internal/base/printable"
)

// screen shows one page after the other.
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
	width, _, err := term.GetSize(stream.(interface{ Fd() uintptr }).Fd())
	if err != nil {
		return 0
	}
	return width
}

// terminal reports whether stream, an input or output, is one that can be
// redrawn.
func terminal(stream any) bool {
	f, ok := stream.(*os.File)
	return ok && os.Getenv("TERM") != "dumb" && term.IsTerminal(f.Fd())
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

// page shows one page.
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
