package report

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/ferryrelay/ferry/bench"
)

// ErrFormat says that a file holds no results of a run, or such of another
// version.
var ErrFormat = errors.New("no result of ferry bench")

// Write writes results as JSON objects, one after the other, which [Read] takes.
func Write(w io.Writer, runs ...bench.Result) error {
	enc := json.NewEncoder(w)
	enc.SetIndent("", "  ")
	for _, r := range runs {
		if err := enc.Encode(r); err != nil {
			return fmt.Errorf("report: write JSON: %w", err)
		}
	}
	return nil
}

// Read reads all results of a stream that [Write] wrote: at least one. Members
// that it does not know are left out, so that newer files can be read.
func Read(r io.Reader) (runs []bench.Result, err error) {
	dec := json.NewDecoder(r)
	for {
		var one bench.Result
		err := dec.Decode(&one)
		switch {
		case errors.Is(err, io.EOF) && len(runs) > 0:
			return runs, nil
		case errors.Is(err, io.EOF):
			return nil, fmt.Errorf("%w: it is empty", ErrFormat)
		case err != nil:
			return nil, fmt.Errorf("%w: %w", ErrFormat, err)
		case one.Version != bench.ResultVersion:
			return nil, fmt.Errorf("%w of version %d: it says version %d", ErrFormat, bench.ResultVersion, one.Version)
		}
		runs = append(runs, one)
	}
}

// WriteFile writes results to the file name, which it creates or replaces.
func WriteFile(name string, runs ...bench.Result) error {
	return writeFile(name, func(w io.Writer) error { return Write(w, runs...) })
}

// WriteHTMLFile writes the page of [HTML] to the file name, which it creates or
// replaces.
func WriteHTMLFile(name string, runs []bench.Result) error {
	return writeFile(name, func(w io.Writer) error { return HTML(w, runs) })
}

func writeFile(name string, write func(io.Writer) error) error {
	f, err := os.Create(name)
	if err != nil {
		return err
	}
	return errors.Join(write(f), f.Close())
}

// ReadFile reads all results of the file name.
func ReadFile(name string) ([]bench.Result, error) {
	f, err := os.Open(name)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	runs, err := Read(f)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	return runs, nil
}
