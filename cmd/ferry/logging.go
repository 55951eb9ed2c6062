package main

import (
	"io"
	"log/slog"

	"github.com/ferryrelay/ferry/cmd/ferry/internal/config"
)

// newLogger returns the logger that the settings ask for. The level has been
// checked when it was read.
func newLogger(w io.Writer, c config.Config) *slog.Logger {
	var level slog.Level
	if err := level.UnmarshalText([]byte(c.LogLevel)); err != nil {
		level = slog.LevelInfo
	}
	options := &slog.HandlerOptions{Level: level}
	if c.LogFormat == "json" {
		return slog.New(slog.NewJSONHandler(w, options))
	}
	return slog.New(slog.NewTextHandler(w, options))
}
