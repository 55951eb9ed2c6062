// Package upgrade replaces a process by a new one of the same command without closing its
// sockets. It owns how both processes find each other and what they say.
//
// The old process starts the new one with its arguments, and with a channel and all sockets
// and locks as further descriptors ([Start]). The new one takes them by [Inherit], prepares
// whatever can fail, and says so ([Heir.Prepared]). Up to then the old one serves as before,
// and goes on if the new one ends or takes too long. Then the old one stops, and passes its
// state on ([Successor.Give]); the new one serves when it has it ([Heir.Receive]).
//
//	old process                        new process
//	Start: files, offer         →      Inherit
//	                                   reads settings, opens nothing twice, checks
//	                            ←      Prepared
//	stops; sockets keep what arrives
//	Give: state                 →      Receive
//	                                   Serving
//	ends                        ←
//
// A process that is killed in the few milliseconds between the last two is what it always is:
// players recover when the service manager has started another one.
package upgrade

import (
	"context"
	"encoding/gob"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"time"
)

// Variable is the environment variable by which a process knows that it replaces another one.
// Settings begin with FERRY_, so it is none.
const Variable = "_FERRY_UPGRADE"

// protocolVersion changes with the messages.
const protocolVersion = 1

const (
	// channelDescriptor is the first one behind standard input, output and error.
	channelDescriptor = 3
	// serveWithin is how long the new process may take to begin with the state: a million
	// allocations take about a second.
	serveWithin = 30 * time.Second
)

// ErrFailed is wrapped by the error of Start about a new process that did not become ready.
var ErrFailed = errors.New("upgrade: the new process has failed, this one goes on")

// Files are what the new process takes over, by name.
type Files struct {
	Names []string
	Files []*os.File
}

// Add adds a file.
func (f *Files) Add(name string, file *os.File) {
	f.Names = append(f.Names, name)
	f.Files = append(f.Files, file)
}

// Close closes all files.
func (f *Files) Close() {
	for _, file := range f.Files {
		_ = file.Close()
	}
}

// hello is the first message of the old process, prepared and serving those of the new one,
// and state the last one.
type (
	hello struct {
		Version int
		Names   []string // of the descriptors after the channel
		Offer   []byte
	}
	answer struct{ Failed string }
	state  struct{ State []byte }
)

// Executable returns the path of the program of this process, also after another file has
// taken its place there.
func Executable() (string, error) {
	path, err := os.Executable()
	return strings.TrimSuffix(path, " (deleted)"), err
}

// Successor is the new process, as the old one sees it. One goroutine uses it.
type Successor struct {
	cmd     *exec.Cmd
	channel net.Conn
	encoder *gob.Encoder
	decoder *gob.Decoder
}

// Start starts the program at path with the arguments, environment, output and error output of
// this process, and waits until it is prepared. It gets the files and the offer. If it ends,
// says that it has failed, or is not prepared before ctx ends, it is killed, and the error
// wraps ErrFailed.
func Start(ctx context.Context, path string, files *Files, offer []byte) (*Successor, error) {
	ours, theirs, err := socketPair()
	if err != nil {
		return nil, fmt.Errorf("upgrade: %w", err)
	}
	s := &Successor{cmd: exec.Command(path, os.Args[1:]...), channel: ours, encoder: gob.NewEncoder(ours), decoder: gob.NewDecoder(ours)}
	s.cmd.Args[0] = os.Args[0]
	s.cmd.Stdin, s.cmd.Stdout, s.cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	s.cmd.Env = append(os.Environ(), Variable+"=1")
	s.cmd.ExtraFiles = append([]*os.File{theirs}, files.Files...)
	err = s.cmd.Start()
	_ = theirs.Close() // or its end would not end the channel
	if err != nil {
		_ = ours.Close()
		return nil, fmt.Errorf("%w: %w", ErrFailed, err)
	}
	stop := context.AfterFunc(ctx, func() { _ = ours.SetDeadline(time.Now()) })
	defer stop()
	err = s.encoder.Encode(hello{protocolVersion, files.Names, offer})
	if err == nil {
		err = s.hear()
	}
	if err == nil && !stop() {
		err = ctx.Err()
	}
	if err != nil {
		s.Kill()
		if ctx.Err() != nil {
			err = errors.New("it was not prepared in time")
		}
		return nil, fmt.Errorf("%w: %w", ErrFailed, err)
	}
	return s, nil
}

// hear waits for an answer of the new process.
func (s *Successor) hear() error {
	var a answer
	err := s.decoder.Decode(&a)
	switch {
	case errors.Is(err, io.EOF) || errors.Is(err, syscall.ECONNRESET):
		return errors.New("it has ended; its log says why")
	case err != nil:
		return err
	case a.Failed != "":
		return errors.New(a.Failed)
	}
	return nil
}

// Process returns the id of the new process.
func (s *Successor) Process() int { return s.cmd.Process.Pid }

// Give passes the state of this process on, which serves nothing any more, and waits until the
// new one serves. The new process goes on without this one.
func (s *Successor) Give(all []byte) error {
	defer s.channel.Close()
	_ = s.channel.SetDeadline(time.Now().Add(serveWithin))
	err := s.encoder.Encode(state{all})
	if err == nil {
		err = s.hear()
	}
	if err != nil {
		return fmt.Errorf("upgrade: the new process has failed after the hand-over: %w", err)
	}
	return s.cmd.Process.Release()
}

// Kill ends the new process, which is not to serve, and waits for its end.
func (s *Successor) Kill() {
	_ = s.channel.Close()
	_ = s.cmd.Process.Kill()
	_ = s.cmd.Wait()
}

// Heir is what the new process has of the old one. One goroutine at a time uses it.
type Heir struct {
	Offer []byte

	files   map[string]*os.File
	channel net.Conn
	encoder *gob.Encoder
	decoder *gob.Decoder
}

// Inherit returns what the old process gives, or nil if there is none. It is called once, before
// anything is opened, and removes the variable.
func Inherit() (*Heir, error) {
	if os.Getenv(Variable) == "" {
		return nil, nil
	}
	if err := os.Unsetenv(Variable); err != nil {
		return nil, err
	}
	channel, err := inherited(channelDescriptor, "upgrade")
	if err != nil {
		return nil, fmt.Errorf("upgrade: this process was not started by another one: %w", err)
	}
	conn, err := net.FileConn(channel)
	_ = channel.Close()
	if err != nil {
		return nil, fmt.Errorf("upgrade: %w", err)
	}
	h := &Heir{files: make(map[string]*os.File), channel: conn, encoder: gob.NewEncoder(conn), decoder: gob.NewDecoder(conn)}
	var first hello
	if err := h.decoder.Decode(&first); err != nil {
		return nil, fmt.Errorf("upgrade: %w", err)
	}
	h.Offer = first.Offer
	for i, name := range first.Names {
		if h.files[name], err = inherited(channelDescriptor+1+i, name); err != nil {
			return nil, fmt.Errorf("upgrade: %s: %w", name, err)
		}
	}
	if first.Version != protocolVersion {
		err := fmt.Errorf("upgrade: the old process has version %d of the hand-over, this one %d: restart it instead", first.Version, protocolVersion)
		return nil, errors.Join(err, h.Fail(err))
	}
	return h, nil
}

// Take returns a file by its name, once, or nil if the old process has none. It is then the
// caller's.
func (h *Heir) Take(name string) *os.File {
	if h == nil {
		return nil
	}
	f := h.files[name]
	delete(h.files, name)
	return f
}

// Listener returns a listener at an address by its name, or nil if the old process has none
// there.
func (h *Heir) Listener(name, address string) (net.Listener, error) {
	f := h.Take(name)
	if f == nil {
		return nil, nil
	}
	defer f.Close()
	l, err := net.FileListener(f)
	if err != nil {
		return nil, fmt.Errorf("upgrade: %s: %w", name, err)
	}
	if !sameAddress(l.Addr().String(), address) {
		return nil, l.Close()
	}
	return l, nil
}

// sameAddress reports whether a listener is at the wanted address, whose port may be 0.
func sameAddress(has, want string) bool {
	host, port, err := net.SplitHostPort(want)
	hasHost, hasPort, hasErr := net.SplitHostPort(has)
	return err == nil && hasErr == nil && host == hasHost && (port == hasPort || port == "0")
}

// Fail tells the old process why this one will not replace it.
func (h *Heir) Fail(why error) error { return h.encoder.Encode(answer{why.Error()}) }

// Prepared tells the old process that this one has all that it needs. What was not taken is
// closed.
func (h *Heir) Prepared() error {
	for _, f := range h.files {
		_ = f.Close()
	}
	return h.encoder.Encode(answer{})
}

// Receive waits until the old process has stopped, and returns its state.
func (h *Heir) Receive(ctx context.Context) ([]byte, error) {
	stop := context.AfterFunc(ctx, func() { _ = h.channel.SetDeadline(time.Now()) })
	defer stop()
	var s state
	if err := h.decoder.Decode(&s); err != nil {
		return nil, fmt.Errorf("upgrade: the old process goes on, or has ended: %w", err)
	}
	return s.State, nil
}

// Serving tells the old process that it may end.
func (h *Heir) Serving() error {
	return errors.Join(h.encoder.Encode(answer{}), h.channel.Close())
}
