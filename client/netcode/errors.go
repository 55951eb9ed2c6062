package netcode

import "errors"

// The errors of this package. A closed Driver answers with net.ErrClosed.
var (
	// ErrConfig is wrapped by every refusal of a configuration.
	ErrConfig = errors.New("netcode: configuration is not usable")
	// ErrNotServer is a server's call on a client.
	ErrNotServer = errors.New("netcode: this driver is no server")
	// ErrNotClient is a client's call on a server.
	ErrNotClient = errors.New("netcode: this driver is no client")
	// ErrAlreadyListening is Listen, or a change of what must be set before it,
	// on a server that listens.
	ErrAlreadyListening = errors.New("netcode: already listening")
	// ErrAlreadyConnecting is Connect while the client has a connection.
	ErrAlreadyConnecting = errors.New("netcode: there is a connection already")
	// ErrAddr is an address to which, or at which, this driver's link can not be.
	ErrAddr = errors.New("netcode: address is not usable")
	// ErrPortZero is Connect to port 0.
	ErrPortZero = errors.New("netcode: port is 0")
	// ErrGone is a call for a connection that has ended or never was.
	ErrGone = errors.New("netcode: connection has ended")
	// ErrNotAllowedInState is a call that the state of the connection forbids,
	// as commands are before both Connected and SetInGame.
	ErrNotAllowedInState = errors.New("netcode: not allowed in this state of the connection")
	// ErrApprovalNotRequired is Approve on a server that approves everybody.
	ErrApprovalNotRequired = errors.New("netcode: this server requires no approval")
	// ErrUnknownRPC is an RPC of another registry, or one that was registered
	// after the driver was made.
	ErrUnknownRPC = errors.New("netcode: RPC is not registered")
	// ErrTooLarge is an RPC that does not fit into one packet, or a command or
	// snapshot above the fragmentation capacity.
	ErrTooLarge = errors.New("netcode: message is too large")
	// ErrQueueFull is an RPC above Config.MaxRPCQueue.
	ErrQueueFull = errors.New("netcode: RPC queue is full")
	// ErrRegistered is a name that is registered already, or one too many.
	ErrRegistered = errors.New("netcode: RPC can not be registered")
)
