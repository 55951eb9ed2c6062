// Package traffic reads what a match sends, as times and sizes of datagrams, from a file of
// flows (YAML), from a capture (pcap, pcapng), or from a profile that this package has.
package traffic

import (
	"embed"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/ferryrelay/ferry/bench"
)

// ErrTraffic is wrapped by the errors about the content of a file.
var ErrTraffic = errors.New("traffic")

//go:embed profiles/*.yaml
var profiles embed.FS

// Names returns the names of the profiles, which were measured from captures.
func Names() (names []string) {
	files, _ := fs.Glob(profiles, "profiles/*.yaml")
	for _, f := range files {
		names = append(names, strings.TrimSuffix(filepath.Base(f), ".yaml"))
	}
	return names
}

// Options are for files that leave something open.
type Options struct {
	// Players replaces the number of players of a file of flows. 0: that of the file.
	Players int
	// Host is the host of a capture: an address, an address with its port, or the id of an
	// allocation. Empty: what all datagrams have in common.
	Host string
}

// Read returns the traffic of a profile or of a file. A name with a dot or a slash is that of a
// file; its content, not its name, says what it is. Errors about the content name the file and,
// for YAML, the line; they wrap ErrTraffic.
func Read(name string, o Options) (*bench.Traffic, error) {
	data, err := readFile(name)
	if err != nil {
		return nil, err
	}
	var t *bench.Traffic
	switch {
	case captureOrder(data) != nil && o.Players != 0:
		err = errors.New("a capture has its own number of players")
	case captureOrder(data) != nil:
		t, err = parseCapture(data, o.Host)
	case o.Host != "":
		err = errors.New("a host is for captures only, and this is none")
	default:
		t, err = parseFlows(data, o.Players)
	}
	if err != nil {
		return nil, fmt.Errorf("%w %s: %w", ErrTraffic, name, err)
	}
	t.Name = strings.TrimSuffix(filepath.Base(name), filepath.Ext(name))
	return t, nil
}

// Text returns a file of flows for traffic that Read accepts: that of the profile or the file
// itself, or one that describes a capture.
func Text(name string, o Options) ([]byte, error) {
	t, err := Read(name, o)
	if err != nil {
		return nil, err
	}
	data, err := readFile(name)
	if err == nil && captureOrder(data) != nil {
		data = describe(t)
	}
	return data, err
}

func readFile(name string) ([]byte, error) {
	if strings.ContainsAny(name, "./") {
		return os.ReadFile(name)
	}
	if !slices.Contains(Names(), name) {
		return nil, fmt.Errorf("%w: %q is neither a file nor one of the profiles %s", ErrTraffic, name, strings.Join(Names(), ", "))
	}
	return profiles.ReadFile("profiles/" + name + ".yaml")
}
