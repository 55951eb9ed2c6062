package process

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"strconv"
	"sync"
	"time"

	"github.com/ferryrelay/ferry/internal/fleet/operator"
	"github.com/ferryrelay/ferry/internal/net/sock"
	"github.com/ferryrelay/ferry/internal/privateapi"
	"github.com/ferryrelay/ferry/internal/server/host/memory"
	"github.com/ferryrelay/ferry/internal/server/operator/admin"
	"github.com/ferryrelay/ferry/internal/server/upgrade"
)

const (
	// prepareWithin is how long a new process may take to be prepared: it reads its settings,
	// and opens what can fail.
	prepareWithin = 10 * time.Second
	// handOverWithin bounds the end of the relay, which takes some 0.4 µs per allocation.
	handOverWithin = 10 * time.Second
	// handedRoom is more than most processes hand over besides the relay, in bytes.
	handedRoom = 64 << 10
)

// The names of the files of a hand-over, besides those of sockets, see udpName.
const (
	apiFile     = "api"
	adminFile   = "admin"
	historyFile = "history"
	// LockFile and RuntimeLockFile are the locks of the state directories.
	LockFile        = "lock"
	RuntimeLockFile = "runtime lock"
)

func udpName(listener, worker int) string {
	return "udp " + strconv.Itoa(listener) + " " + strconv.Itoa(worker)
}

func xdpName(ifindex int) string { return "xdp " + strconv.Itoa(ifindex) }

// handover replaces this process by a new one of the same program, see package upgrade. The fields
// before asking are fixed by its creation.
type handover struct {
	opts    *Options
	from    *takeover // what was handed over to this process; nil: nothing
	relay   *localRelay
	ports   ports
	ready   *readiness
	parents error  // why no process can replace this one, nil if one can
	stop    func() // begins the end of Run

	asking sync.Mutex // one upgrade at a time; taken before mu
	mu     sync.Mutex // guards child
	// child is the process that replaces this one; nil: there is none.
	child *upgrade.Child
	// ours is this process's end of the link for its WebSockets, and historyTo the pipe to the child.
	ours, historyTo *os.File
	given           chan struct{} // closed when the state was passed on, or could not be
	// state is what is handed over besides that of the relay, and err why it cannot be. The parts
	// write them at their end, one after another.
	state handedState
	err   error
}

// handedState is what a process hands over besides the relay, as JSON.
type handedState struct {
	Sessions  privateapi.DTLSHandover
	Held      json.RawMessage // of privateapi.WebSocket.Detach
	Migrating []migratingCode
}

func newHandover(o *Options, from *takeover, r *localRelay, p ports, ready *readiness, stop func()) *handover {
	h := &handover{opts: o, from: from, relay: r, ports: p, ready: ready, stop: stop, given: make(chan struct{})}
	if from == nil { // else a process was replaced here before
		h.parents = upgrade.CheckParents()
	}
	return h
}

// receive takes over from another process, if there is one, before the parts run.
func (h *handover) receive(ctx context.Context) error {
	if h.from == nil {
		return nil
	}
	return h.from.receive(ctx, h.relay)
}

// readHistory reads what happened before, if another process hands over.
func (h *handover) readHistory(context.Context) {
	if h.from == nil || h.from.history == nil {
		return
	}
	if err := h.relay.history.TakeOver(h.from.history); err != nil {
		h.opts.Logger.Warn("upgrade: what happened to allocations before is not known", "error", err)
	}
}

// to returns the process that takes over, nil if there is none.
func (h *handover) to() *upgrade.Child {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.child
}

// Upgrade starts the program of this process again, as it is on the disk now, lets the new
// process take over all sockets, matches and sessions of DTLS, and returns when that serves.
// Run then returns nil. The new process reads the settings again. If it does not get ready, this
// one goes on, and the error wraps admin.ErrNotUpgraded, as it does while allocations of an
// earlier run may come back, in a drain, and in other modes than Serve.
func (h *handover) Upgrade(ctx context.Context) (operator.UpgradeResult, error) {
	result, err := h.start(ctx)
	if err != nil {
		h.opts.Logger.Error("upgrade: not done, this process goes on", "error", err)
		return operator.UpgradeResult{}, fmt.Errorf("%w: %w", admin.ErrNotUpgraded, err)
	}
	h.opts.Logger.Info("upgrade: a new process is prepared and takes over", "process", result.Process)
	h.stop()
	<-h.given
	if h.err != nil {
		return operator.UpgradeResult{}, h.err
	}
	return result, nil
}

func (h *handover) start(ctx context.Context) (operator.UpgradeResult, error) {
	h.asking.Lock()
	defer h.asking.Unlock()
	switch {
	case h.opts.Mode != Serve:
		return operator.UpgradeResult{}, errors.New("only ferry serve can be upgraded without a restart")
	case h.parents != nil:
		return operator.UpgradeResult{}, h.parents
	case h.to() != nil:
		return operator.UpgradeResult{}, errors.New("another upgrade is under way")
	case h.ready.check() == errDraining:
		return operator.UpgradeResult{}, errors.New("the relay drains")
	case h.ready.check() != nil:
		return operator.UpgradeResult{}, errNotReady
	}
	offer, err := h.relay.engine.Private().PrepareHandOver(ctx)
	if err != nil {
		return operator.UpgradeResult{}, err
	}
	files := new(upgrade.Files)
	defer files.Close()
	for i, sockets := range offer.Sockets {
		for j, f := range sockets {
			files.Add(udpName(i, j), f)
		}
	}
	if err := h.checkRoom(offer, memory.Room()); err != nil {
		return operator.UpgradeResult{}, err
	}
	encoded, err := json.Marshal(offer)
	if err != nil {
		return operator.UpgradeResult{}, err
	}
	path, err := upgrade.Executable()
	if err != nil {
		return operator.UpgradeResult{}, err
	}
	if err := h.addFiles(files); err != nil {
		return operator.UpgradeResult{}, err
	}
	ctx, cancel := context.WithTimeout(ctx, prepareWithin)
	defer cancel()
	var s *upgrade.Child
	var from, to *os.File
	ours, err := h.addLinks(files)
	if err == nil {
		from, to, err = os.Pipe()
	}
	if err == nil {
		files.Add(historyFile, from)
		s, err = upgrade.Start(ctx, path, files, encoded, offer.StateSize+handedRoom)
	}
	if err != nil {
		_ = ours.Close() // One that is nil has another error.
		_ = to.Close()
		return operator.UpgradeResult{}, err
	}
	h.mu.Lock()
	h.child, h.ours, h.historyTo = s, ours, to
	h.mu.Unlock()
	return operator.UpgradeResult{Process: s.Process()}, nil
}

func (h *handover) checkRoom(offer *privateapi.Handover, room memory.Limit) error {
	need := memory.Needs(offer.Allocations, h.relay.engine.DTLS.Stats().Sessions) + int64(offer.StateSize+handedRoom)
	or := "raise it, or restart instead"
	if path := h.relay.fastPath; path != nil {
		need += path.Size()
		or = fmt.Sprintf("raise it, set xdp to off, which saves %d MiB, or restart instead", path.Size()>>20)
	}
	if room.From == "" || need <= room.Bytes {
		return nil
	}
	const mebi = 1 << 20
	return fmt.Errorf("a new process beside this one needs about %d MiB of memory, and the limit (%s) leaves %d MiB: %s",
		need/mebi, room.From, max(room.Bytes, 0)/mebi, or)
}

func (h *handover) addFiles(files *upgrade.Files) error {
	for name, f := range h.opts.Locks {
		files.Lend(name, f)
	}
	for name, l := range h.ports {
		f, err := sock.Dup(l, name)
		if err != nil {
			return err
		}
		files.Add(name, f)
	}
	if h.relay.fastPath == nil {
		return nil
	}
	links, err := h.relay.fastPath.Links()
	for ifindex, f := range links {
		files.Add(xdpName(ifindex), f)
	}
	return err
}

func (h *handover) addLinks(files *upgrade.Files) (ours *os.File, err error) {
	if h.relay.engine.WebSocket == nil {
		return nil, nil
	}
	links, far, ours, err := h.relay.engine.WebSocket.Private().Links()
	if err != nil {
		return nil, err
	}
	for i, l := range links {
		f, err := sock.Dup(l, "link")
		if err != nil {
			_ = far.Close()
			return ours, err
		}
		files.Add(linkName(i), f)
	}
	files.Add(linkName(len(links)), far)
	return ours, nil
}

func linkName(n int) string { return "websocket " + strconv.Itoa(n) }

// endRelay hands the relay over, if a new process takes over, and reports whether there is one.
func (h *handover) endRelay() bool {
	if h.to() == nil {
		return false
	}
	ctx, cancel := context.WithTimeout(context.Background(), handOverWithin)
	defer cancel()
	if ws := h.relay.engine.WebSocket; ws != nil {
		h.state.Held, h.err = ws.Private().Detach(h.ours)
	}
	h.err = errors.Join(h.err, h.relay.engine.Private().HandOver(ctx, h.to()))
	h.state.Migrating = h.relay.codes.migrating.codes(h.relay.codes.Store)
	return true
}

// endSessions closes the file of DTLS sessions when ctx ends, which is after the relay.
func (h *handover) endSessions(ctx context.Context) error {
	<-ctx.Done()
	if h.to() != nil {
		h.state.Sessions = h.relay.engine.DTLS.Private().HandOver()
	}
	return h.relay.engine.CloseSessions()
}

// run passes the state on to the new process, if there is one, when ctx ends, which is after all that
// writes what that process reads.
func (h *handover) run(ctx context.Context) error {
	<-ctx.Done()
	if child := h.to(); child != nil {
		h.err = h.give(child)
		close(h.given)
	}
	return nil
}

func (h *handover) give(child *upgrade.Child) error {
	process := child.Process()
	if h.err != nil {
		child.Kill()
		return fmt.Errorf("upgrade: %w", h.err)
	}
	encoded, err := json.Marshal(&h.state)
	if err == nil {
		err = child.Give(encoded)
	}
	if err != nil {
		return err
	}
	h.opts.Logger.Info("upgrade: the new process serves, this one ends", "process", process)
	notify(h.opts.Logger, fmt.Sprintf("MAINPID=%d", process))
	for _, f := range h.opts.Locks {
		_ = f.Close() // The new process alone holds the directories.
	}
	return nil
}

// finish gives the new process the history, and keeps WebSockets for it until they or ctx end. All
// parts have ended. It returns why the hand-over failed.
func (h *handover) finish(ctx context.Context) error {
	if h.err != nil {
		return h.err
	}
	var last sync.WaitGroup
	last.Go(func() { _ = h.relay.history.HandOver(h.historyTo) }) // The new process logs what it lacks.
	defer last.Wait()
	ws := h.relay.engine.WebSocket
	if ws == nil {
		return nil
	}
	if open := ws.Stats().Open; open > 0 {
		h.opts.Logger.Info("upgrade: this process keeps its WebSockets until they end", "websockets", open)
	}
	ws.Private().Drain(ctx)
	return nil
}

// notify tells the service manager about this process, see sd_notify(3).
func notify(log *slog.Logger, state string) {
	path := os.Getenv("NOTIFY_SOCKET")
	if path == "" {
		return
	}
	conn, err := net.DialUnix("unixgram", nil, &net.UnixAddr{Name: path, Net: "unixgram"})
	if err == nil {
		_, err = conn.Write([]byte(state))
		err = errors.Join(err, conn.Close())
	}
	if err != nil {
		log.Warn("the service manager cannot be notified", "error", err)
	}
}
