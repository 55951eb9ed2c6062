package engine

import (
	"github.com/ferryrelay/ferry/internal/privateapi"
)

// private implements [privateapi.Relay].
type private struct{ *Server }

// Private returns what the programs of this module use besides, such as the hand-over to another
// process. It may change in any version.
func (s *Server) Private() privateapi.Relay { return private{s} }
