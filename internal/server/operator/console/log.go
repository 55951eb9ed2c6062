package console

import (
	"context"
	"log/slog"
	"strings"
	"sync"
	"time"
)

const (
	// keptLines is how many lines of the log the console shows.
	keptLines = 1000
	// maxLine is how many bytes of the attributes of a line are kept.
	maxLine = 2000
)

type Line struct {
	Time  time.Time `json:"time"`
	Level string    `json:"level"`
	Text  string    `json:"text"`
	Attrs string    `json:"attrs,omitempty"` // "key=value key=value"
}

// Log is a slog.Handler that passes records to another one, and keeps the last lines. Any
// goroutine may use it.
type Log struct {
	next   slog.Handler
	prefix string // attributes of all lines, as text
	group  string // before the key of an attribute
	lines  *lineRing
}

type lineRing struct {
	mu   sync.Mutex // guards what follows
	ring [keptLines]Line
	n    int // lines ever
}

// NewLog returns a handler before next.
func NewLog(next slog.Handler) *Log { return &Log{next: next, lines: new(lineRing)} }

// Lines returns the kept lines, the oldest first.
func (l *Log) Lines() []Line {
	r := l.lines
	r.mu.Lock()
	defer r.mu.Unlock()
	all := make([]Line, 0, min(r.n, keptLines))
	for i := max(0, r.n-keptLines); i < r.n; i++ {
		all = append(all, r.ring[i%keptLines])
	}
	return all
}

// Enabled implements slog.Handler.
func (l *Log) Enabled(ctx context.Context, level slog.Level) bool { return l.next.Enabled(ctx, level) }

// Handle implements slog.Handler.
func (l *Log) Handle(ctx context.Context, r slog.Record) error {
	var b strings.Builder
	b.WriteString(l.prefix)
	r.Attrs(func(a slog.Attr) bool {
		appendAttr(&b, l.group, a)
		return b.Len() < maxLine
	})
	attrs := b.String()
	if len(attrs) > maxLine {
		attrs = strings.ToValidUTF8(attrs[:maxLine], "") + " …"
	}
	l.lines.mu.Lock()
	l.lines.ring[l.lines.n%keptLines] = Line{Time: r.Time, Level: strings.ToLower(r.Level.String()), Text: r.Message, Attrs: attrs}
	l.lines.n++
	l.lines.mu.Unlock()
	return l.next.Handle(ctx, r)
}

func appendAttr(b *strings.Builder, group string, a slog.Attr) {
	if a.Equal(slog.Attr{}) {
		return
	}
	value := a.Value.Resolve()
	if value.Kind() == slog.KindGroup {
		for _, inner := range value.Group() {
			appendAttr(b, group+a.Key+".", inner)
		}
		return
	}
	if b.Len() > 0 {
		b.WriteByte(' ')
	}
	b.WriteString(group + a.Key + "=" + value.String())
}

// WithAttrs implements slog.Handler.
func (l *Log) WithAttrs(attrs []slog.Attr) slog.Handler {
	with := *l
	var b strings.Builder
	b.WriteString(l.prefix)
	for _, a := range attrs {
		appendAttr(&b, l.group, a)
	}
	with.prefix, with.next = b.String(), l.next.WithAttrs(attrs)
	return &with
}

// WithGroup implements slog.Handler.
func (l *Log) WithGroup(name string) slog.Handler {
	with := *l
	with.group, with.next = l.group+name+".", l.next.WithGroup(name)
	return &with
}
