//go:build !linux

package sock

import "errors"

// canShare is false: SO_REUSEPORT of macOS and most BSDs hands all unicast
// datagrams of a port to one of its sockets, so that more than one has no use.
const canShare = false

func setShared(int) error { return errors.ErrUnsupported }

func setOptions(int, *Config, bool) (Capabilities, error) { return Capabilities{}, nil }
