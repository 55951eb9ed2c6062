//go:build linux && sockportable

package sock

import "errors"

// AddConn returns errors.ErrUnsupported.
func (*Poller) AddConn(*Conn, int32) error { return errors.ErrUnsupported }
