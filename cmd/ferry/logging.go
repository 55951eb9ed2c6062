package main

import (
	"io"
	"log/slog"

	"github.com/ferryrelay/ferry/internal/config"
)

// newLogger returns the logger that the settings ask for, and its level, which
// may change. The setting has been checked when it was read.
func newLogger(w io.Writer, c config.Config) (*slog.Logger, *slog.LevelVar) {
	var set slog.Level
	if err := set.UnmarshalText([]byte(c.LogLevel)); err != nil {
		set = slog.LevelInfo
	}
	level := new(slog.LevelVar)
	level.Set(set)
	options := &slog.HandlerOptions{Level: level}
	if c.LogFormat == "json" {
		return slog.New(slog.NewJSONHandler(w, options)), level
	}
	return slog.New(slog.NewTextHandler(w, options)), level
}
