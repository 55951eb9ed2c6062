// Package upgrade replaces a process by a new one of the same command without closing its
// sockets. It owns how both processes find each other and what they say.
//
// The old process starts the new one with its arguments, and with a channel and all sockets
// and locks as further descriptors ([Start]). The new one takes them by [Inherit], prepares
// whatever can fail, and says so ([Parent.Prepared]). Up to then the old one serves as before,
// and goes on if the new one ends or takes too long. Then the old one stops, and passes its
// state on ([Child.Write], [Child.Give]); the new one serves when it has it ([Parent.Receive]).
//
//	old process                        new process
//	Start: files, offer         →      Inherit
//	                                   reads settings, opens nothing twice, checks
//	                            ←      Prepared
//	stops; sockets keep what arrives
//	Write: state
//	Give: the rest              →      Receive
//	                                   Serving
//	ends                        ←
//
// Datagrams wait while the state is on its way. The state is therefore written to memory that both
// processes have, and that is allocated before the old one stops: through a pipe, each 200 KB
// would wait until both have run.
package upgrade

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"time"

	"github.com/ferryrelay/ferry/internal/net/sock"
)

// Variable is the environment variable by which a process knows that it replaces another one.
// Settings begin with FERRY_, so it is none.
const Variable = "_FERRY_UPGRADE"

const protocolVersion = 2

const (
	// channelDescriptor is the first one behind standard input, output and error.
	channelDescriptor = 3
	// serveWithin is how long the new process may take to begin with the state: a million
	// allocations take about a second.
	serveWithin = 30 * time.Second
)

// ErrFailed is wrapped by the error of Start about a new process that did not become ready.
var ErrFailed = errors.New("upgrade: the new process has failed")

type Files struct {
	names []string
	all   []*os.File
	own   []*os.File // of all
}

// Add adds a file, which Close closes.
func (f *Files) Add(name string, file *os.File) {
	f.Lend(name, file)
	f.own = append(f.own, file)
}

// Lend adds a file that stays the caller's.
func (f *Files) Lend(name string, file *os.File) {
	f.names = append(f.names, name)
	f.all = append(f.all, file)
}

// Close closes all files, except for those that were lent.
func (f *Files) Close() {
	for _, file := range f.own {
		_ = file.Close()
	}
}

// hello is the first message of the old process, as JSON. The last one has the sizes of the state
// and of the rest. Prepared and Serving are an empty message of the new process; another one
// says why it has failed.
type hello struct {
	Version int
	Names   []string // of the descriptors after the channel and the memory
	Offer   json.RawMessage
}

// maxMessage bounds a message in bytes. The largest is hello, with some 100 bytes per file.
const maxMessage = 1 << 20

// send begins a message with its size in 4 bytes, little-endian.
func send(to io.Writer, message []byte) error {
	_, err := to.Write(append(binary.LittleEndian.AppendUint32(nil, uint32(len(message))), message...))
	return err
}

func receive(from io.Reader) ([]byte, error) {
	var size [4]byte
	if _, err := io.ReadFull(from, size[:]); err != nil {
		return nil, err
	}
	n := binary.LittleEndian.Uint32(size[:])
	if n > maxMessage {
		return nil, fmt.Errorf("a message of %d bytes", n)
	}
	message := make([]byte, n)
	_, err := io.ReadFull(from, message)
	return message, err
}

// Executable returns the path of this program, also after another file has taken its place.
func Executable() (string, error) {
	path, err := os.Executable()
	return strings.TrimSuffix(path, " (deleted)"), err
}

// Child is the new process, as the old one sees it. One goroutine uses it.
type Child struct {
	cmd     *exec.Cmd
	channel net.Conn
	memory  *os.File
	written int64 // to memory
}

// Start starts the program at path with the arguments, environment, output and error output of
// this process, and waits until it is prepared. It gets the files and the offer, which is JSON;
// room is about how many bytes will be written. If others than root and the user of this process may
// have written the program, or the new process ends, says that it has failed, or is not
// prepared before ctx ends, it is killed, and the error wraps ErrFailed.
func Start(ctx context.Context, path string, files *Files, offer []byte, room int) (*Child, error) {
	if err := checkOwner(path); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrFailed, err)
	}
	began := time.Now()
	first, err := json.Marshal(hello{protocolVersion, files.names, offer})
	if err != nil {
		return nil, fmt.Errorf("upgrade: %w", err)
	}
	memory, err := sock.OpenMemory(room)
	if err != nil {
		return nil, fmt.Errorf("upgrade: %w", err)
	}
	ours, theirs, err := socketPair()
	if err != nil {
		_ = memory.Close()
		return nil, fmt.Errorf("upgrade: %w", err)
	}
	s := &Child{cmd: exec.Command(path, os.Args[1:]...), channel: ours, memory: memory}
	s.cmd.Args[0] = os.Args[0]
	s.cmd.Stdin, s.cmd.Stdout, s.cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	s.cmd.Env = append(os.Environ(), Variable+"=1")
	s.cmd.ExtraFiles = append([]*os.File{theirs, memory}, files.all...)
	err = s.cmd.Start()
	_ = theirs.Close() // or its end would not end the channel
	if err != nil {
		s.close()
		return nil, fmt.Errorf("%w: %w", ErrFailed, err)
	}
	stop := context.AfterFunc(ctx, func() { _ = ours.SetDeadline(time.Now()) })
	defer stop()
	err = send(ours, first)
	if err == nil || errors.Is(err, syscall.EPIPE) { // then it has ended, and may have said why
		err = s.hear()
	}
	if err == nil && !stop() {
		err = ctx.Err()
	}
	if err != nil {
		s.Kill()
		switch {
		case errors.Is(ctx.Err(), context.DeadlineExceeded):
			err = fmt.Errorf("it was not prepared within %s", time.Since(began).Round(100*time.Millisecond))
		case ctx.Err() != nil:
			err = errors.New("the caller did not wait until it was prepared")
		}
		return nil, fmt.Errorf("%w: %w", ErrFailed, err)
	}
	return s, nil
}

func (s *Child) hear() error {
	failed, err := receive(s.channel)
	switch {
	case errors.Is(err, io.EOF) || errors.Is(err, syscall.ECONNRESET):
		return errors.New("it has ended; its log says why")
	case err != nil:
		return err
	case len(failed) > 0:
		return errors.New(string(failed))
	}
	return nil
}

// Process returns the id of the new process.
func (s *Child) Process() int { return s.cmd.Process.Pid }

// Write adds to the state that the new process gets.
func (s *Child) Write(state []byte) (int, error) {
	n, err := s.memory.WriteAt(state, s.written)
	s.written += int64(n)
	return n, err
}

// Give passes the state on that was written, and the rest, and waits until the new process
// serves. This one serves nothing any more, and the new one goes on without it.
func (s *Child) Give(rest []byte) error {
	defer s.close()
	_ = s.channel.SetDeadline(time.Now().Add(serveWithin))
	sizes := binary.LittleEndian.AppendUint64(nil, uint64(s.written))
	sizes = binary.LittleEndian.AppendUint64(sizes, uint64(len(rest)))
	_, err := s.Write(rest)
	if err == nil {
		err = send(s.channel, sizes)
	}
	if err == nil {
		err = s.hear()
	}
	if err != nil {
		return fmt.Errorf("upgrade: the new process has failed after the hand-over: %w", err)
	}
	return s.cmd.Process.Release()
}

// Kill ends the new process, which is not to serve, and waits for its end.
func (s *Child) Kill() {
	s.close()
	_ = s.cmd.Process.Kill()
	_ = s.cmd.Wait()
}

func (s *Child) close() {
	_ = s.channel.Close()
	_ = s.memory.Close()
}

// Parent is what the new process has of the old one. One goroutine at a time uses it.
type Parent struct {
	Offer []byte

	files   map[string]*os.File
	channel net.Conn
	memory  *os.File
}

// Inherit returns what the old process gives, or nil if there is none. It is called once, before
// anything is opened, and removes the variable.
func Inherit() (*Parent, error) {
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
	h := &Parent{files: make(map[string]*os.File), channel: conn}
	message, err := receive(conn)
	if err != nil {
		return nil, fmt.Errorf("upgrade: %w", err)
	}
	var first hello
	if err := json.Unmarshal(message, &first); err != nil {
		return nil, fmt.Errorf("upgrade: %w", err)
	}
	if first.Version != protocolVersion {
		err := fmt.Errorf("upgrade: the old process has version %d of the hand-over, this one %d: restart it instead", first.Version, protocolVersion)
		return nil, errors.Join(err, h.Fail(err))
	}
	if h.memory, err = inherited(channelDescriptor+1, "state"); err != nil {
		return nil, fmt.Errorf("upgrade: %w", err)
	}
	for i, name := range first.Names {
		if h.files[name], err = inherited(channelDescriptor+2+i, name); err != nil {
			return nil, fmt.Errorf("upgrade: %s: %w", name, err)
		}
	}
	h.Offer = first.Offer
	return h, nil
}

// Take returns a file by its name, once, or nil if the old process has none. It is then the
// caller's.
func (h *Parent) Take(name string) *os.File {
	if h == nil {
		return nil
	}
	f := h.files[name]
	delete(h.files, name)
	return f
}

// Listener returns a listener at an address by its name, or nil if the old process has none
// there.
func (h *Parent) Listener(name, address string) (net.Listener, error) {
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

func sameAddress(has, want string) bool {
	host, port, err := net.SplitHostPort(want)
	hasHost, hasPort, hasErr := net.SplitHostPort(has)
	return err == nil && hasErr == nil && host == hasHost && (port == hasPort || port == "0")
}

// Fail tells the old process why this one will not replace it.
func (h *Parent) Fail(why error) error { return send(h.channel, []byte(why.Error())) }

// Prepared tells the old process that this one has all that it needs. What was not taken is
// closed.
func (h *Parent) Prepared() error {
	for _, f := range h.files {
		_ = f.Close()
	}
	return send(h.channel, nil)
}

// Receive waits until the old process has stopped, and returns its state and the rest. The state
// can be read until Serving.
func (h *Parent) Receive(ctx context.Context) (state io.Reader, rest []byte, err error) {
	stop := context.AfterFunc(ctx, func() { _ = h.channel.SetDeadline(time.Now()) })
	defer stop()
	sizes, err := receive(h.channel)
	if err == nil && len(sizes) != 16 {
		err = fmt.Errorf("a message of %d bytes", len(sizes))
	}
	if err != nil {
		return nil, nil, fmt.Errorf("upgrade: the old process goes on, or has ended: %w", err)
	}
	size := int64(binary.LittleEndian.Uint64(sizes))
	rest, err = io.ReadAll(io.NewSectionReader(h.memory, size, int64(binary.LittleEndian.Uint64(sizes[8:]))))
	if err != nil {
		return nil, nil, fmt.Errorf("upgrade: %w", err)
	}
	return io.NewSectionReader(h.memory, 0, size), rest, nil
}

// Serving tells the old process that it may end.
func (h *Parent) Serving() error {
	return errors.Join(send(h.channel, nil), h.channel.Close(), h.memory.Close())
}
