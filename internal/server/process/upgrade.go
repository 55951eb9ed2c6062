package process

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"strconv"
	"sync"
	"time"

	"github.com/ferryrelay/ferry/engine"
	"github.com/ferryrelay/ferry/engine/dtls"
	"github.com/ferryrelay/ferry/internal/net/sock"
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

// xdpName names the attachment of the fast path to an interface.
func xdpName(ifindex int) string { return "xdp " + strconv.Itoa(ifindex) }

// upgrading is the hand-over to another process.
type upgrading struct {
	asking sync.Mutex // one upgrade at a time; taken before mu
	mu     sync.Mutex // guards child
	// child is the process that replaces this one; nil: there is none.
	child *upgrade.Child
	// ours is this process's end of the link for its WebSockets, and links are those to
	// processes before this one that keep WebSockets.
	ours  *os.File
	links []*os.File
	given chan struct{} // closed when Run has handed over, or failed to
	// historyTo is the pipe to the process that takes over, and historyFrom that from the one
	// before this one; nil: there is none.
	historyTo, historyFrom *os.File
	// relay is the state of the relay before this one.
	relay io.Reader
	// state is what is handed over besides that of the relay. The components write it at their
	// end, and Run reads it after that.
	state handedState
	err   error
}

// handedState is what a process hands over besides the relay, as JSON.
type handedState struct {
	Sessions  dtls.Handover   // of dtls.Records.HandOver
	Held      json.RawMessage // of websocket.Handover.Detach
	Migrating []migratingCode
}

func (u *upgrading) to() *upgrade.Child {
	u.mu.Lock()
	defer u.mu.Unlock()
	return u.child
}

// Upgrade starts the program of this process again, as it is on the disk now, lets the new
// process take over all sockets, matches and sessions of DTLS, and returns when that serves.
// Run then returns nil. The new process reads the settings again. If it does not get ready, this
// one goes on, and the error wraps admin.ErrNotUpgraded, as it does while allocations of an
// earlier run may come back, in a drain, and in other modes than Serve.
func (a *App) Upgrade(ctx context.Context) (admin.UpgradeResult, error) {
	result, err := a.upgrade(ctx)
	if err != nil {
		a.opts.Logger.Error("upgrade: not done, this process goes on", "error", err)
		return admin.UpgradeResult{}, fmt.Errorf("%w: %w", admin.ErrNotUpgraded, err)
	}
	a.opts.Logger.Info("upgrade: a new process is prepared and takes over", "process", result.Process)
	a.closing.Do(func() { close(a.quit) })
	<-a.upgrades.given
	if err := a.upgrades.err; err != nil {
		return admin.UpgradeResult{}, err
	}
	return result, nil
}

func (a *App) upgrade(ctx context.Context) (admin.UpgradeResult, error) {
	u := &a.upgrades
	u.asking.Lock()
	defer u.asking.Unlock()
	switch {
	case a.opts.Mode != Serve:
		return admin.UpgradeResult{}, errors.New("only ferry serve can be upgraded without a restart")
	case u.to() != nil:
		return admin.UpgradeResult{}, errors.New("another upgrade is under way")
	case a.drainer.isOn():
		return admin.UpgradeResult{}, errors.New("the relay drains")
	case !a.ready.Load():
		return admin.UpgradeResult{}, errNotReady
	}
	offer, err := a.relay.engine.PrepareHandOver(ctx)
	if err != nil {
		return admin.UpgradeResult{}, err
	}
	defer offer.Close()
	if err := a.checkRoom(offer, memory.Room()); err != nil {
		return admin.UpgradeResult{}, err
	}
	files, err := a.handedFiles(offer)
	if err != nil {
		return admin.UpgradeResult{}, err
	}
	encoded, err := json.Marshal(offer)
	if err != nil {
		return admin.UpgradeResult{}, err
	}
	path, err := upgrade.Executable()
	if err != nil {
		return admin.UpgradeResult{}, err
	}
	links, ours, err := a.links(files)
	defer closeAll(links)
	if err != nil {
		closeAll([]*os.File{ours})
		return admin.UpgradeResult{}, err
	}
	from, to, err := os.Pipe()
	if err != nil {
		closeAll([]*os.File{ours})
		return admin.UpgradeResult{}, err
	}
	defer from.Close()
	files.Add(historyFile, from)
	ctx, cancel := context.WithTimeout(ctx, prepareWithin)
	defer cancel()
	s, err := upgrade.Start(ctx, path, files, encoded, offer.StateSize+handedRoom)
	if err != nil {
		closeAll([]*os.File{ours, to})
		return admin.UpgradeResult{}, err
	}
	u.mu.Lock()
	u.child, u.ours, u.historyTo = s, ours, to
	u.mu.Unlock()
	return admin.UpgradeResult{Process: s.Process()}, nil
}

// checkRoom returns an error if there is no memory for a new process beside this one.
func (a *App) checkRoom(offer *engine.Handover, room memory.Limit) error {
	need := memory.Needs(offer.Allocations, a.relay.handshakeStats().Sessions) + int64(offer.StateSize+handedRoom)
	or := "raise it, or restart instead"
	if path := a.relay.fastPath; path != nil {
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

// handedFiles returns what another process takes over.
func (a *App) handedFiles(offer *engine.Handover) (*upgrade.Files, error) {
	files := new(upgrade.Files)
	for i, sockets := range offer.Sockets {
		for j, f := range sockets {
			files.Add(udpName(i, j), f)
		}
	}
	for name, f := range a.opts.Locks {
		files.Add(name, f)
	}
	for name, w := range map[string]*web{apiFile: a.api, adminFile: a.admin} {
		f, err := sock.Dup(w.tcp, name)
		if err != nil {
			return nil, err
		}
		offer.Sockets = append(offer.Sockets, []*os.File{f}) // closed with them
		files.Add(name, f)
	}
	if a.relay.fastPath == nil {
		return files, nil
	}
	links, err := a.relay.fastPath.Links()
	for ifindex, f := range links {
		offer.Sockets = append(offer.Sockets, []*os.File{f})
		files.Add(xdpName(ifindex), f)
	}
	return files, err
}

// links adds the links to all WebSockets to the files.
func (a *App) links(files *upgrade.Files) (theirs []*os.File, ours *os.File, err error) {
	if a.relay.websocket == nil {
		return nil, nil, nil
	}
	links, far, ours, err := a.relay.websocket.Handover().Links()
	if err != nil {
		return nil, nil, err
	}
	for _, l := range links {
		f, err := sock.Dup(l, "link")
		if err != nil {
			return append(theirs, far), ours, err
		}
		theirs = append(theirs, f)
	}
	theirs = append(theirs, far)
	for i, f := range theirs {
		files.Add(linkName(i), f)
	}
	return theirs, ours, nil
}

func linkName(n int) string { return "websocket " + strconv.Itoa(n) }

func closeAll(files []*os.File) {
	for _, f := range files {
		if f != nil {
			_ = f.Close()
		}
	}
}

// keepSessions closes the file of DTLS sessions when ctx ends, which is after the relay.
func (a *App) keepSessions(ctx context.Context) error {
	<-ctx.Done()
	if a.upgrades.to() != nil && a.relay.dtls != nil {
		a.upgrades.state.Sessions = a.relay.dtls.HandOver()
	}
	return a.relay.closeSessionFile()
}

// inheritOffer returns the relay that another process hands over, or nil.
func (a *App) inheritOffer() (*engine.Handover, error) {
	h := a.opts.Parent
	if h == nil {
		return nil, nil
	}
	o := new(engine.Handover)
	if err := json.Unmarshal(h.Offer, o); err != nil {
		return nil, fmt.Errorf("app: upgrade: %w", err)
	}
	o.Sockets = make([][]*os.File, len(o.Listen))
	for i := range o.Listen {
		for f := h.Take(udpName(i, 0)); f != nil; f = h.Take(udpName(i, len(o.Sockets[i]))) {
			o.Sockets[i] = append(o.Sockets[i], f)
		}
	}
	for f := h.Take(linkName(0)); f != nil; f = h.Take(linkName(len(a.upgrades.links))) {
		a.upgrades.links = append(a.upgrades.links, f)
	}
	a.upgrades.historyFrom = h.Take(historyFile)
	o.OnResume = a.resumed
	o.Receive = func(context.Context) (io.Reader, error) { return a.upgrades.relay, nil }
	return o, nil
}

// listen opens a TCP port, or takes over that of another process.
func (a *App) listen(name string, addr netip.AddrPort) (*net.TCPListener, error) {
	if h := a.opts.Parent; h != nil {
		l, err := h.Listener(name, addr.String())
		if err != nil {
			return nil, fmt.Errorf("app: %w", err)
		}
		if l, ok := l.(*net.TCPListener); ok {
			return l, nil
		}
	}
	network := "tcp"
	if addr.Addr().Is4() {
		network = "tcp4" // package net would turn 0.0.0.0 into [::]
	}
	l, err := net.ListenTCP(network, net.TCPAddrFromAddrPort(addr))
	if err != nil {
		return nil, fmt.Errorf("app: %w", err)
	}
	return l, nil
}

// takeOver waits until the process before this one has stopped, and reads what that has
// written last.
func (a *App) takeOver(ctx context.Context) error {
	h := a.opts.Parent
	if err := h.Prepared(); err != nil {
		return err
	}
	relay, rest, err := h.Receive(ctx)
	if err != nil {
		return err
	}
	a.upgrades.relay = relay
	state := &a.upgrades.state
	if err := json.Unmarshal(rest, state); err != nil {
		return fmt.Errorf("app: upgrade: %w", err)
	}
	if a.relay.dtls != nil {
		if err := a.relay.dtls.TakeOver(a.relay.openSessionFile(state.Sessions.Slots), state.Sessions); err != nil {
			return fmt.Errorf("app: upgrade: %w", err)
		}
	}
	if a.relay.websocket != nil {
		if err := a.relay.websocket.Handover().TakeOver(a.upgrades.links, state.Held); err != nil {
			return fmt.Errorf("app: upgrade: %w", err)
		}
	} else {
		closeAll(a.upgrades.links)
	}
	if err := a.usage.load(); err != nil {
		return err
	}
	return a.bans.load()
}

// resumed is called when the matches of the process before this one go on.
func (a *App) resumed() {
	a.codes.restore(a.upgrades.state.Migrating)
	close(a.serving)
	if err := a.opts.Parent.Serving(); err != nil {
		a.opts.Logger.Warn("upgrade: the process before this one does not end", "error", err)
	}
	a.opts.Logger.Info("upgrade: this process has taken over", "allocations", a.relay.allocations())
}

// handOverRelay reports whether the relay's component ends by a hand-over, and carries it out.
func (a *App) handOverRelay() bool {
	if a.upgrades.to() == nil {
		return false
	}
	ctx, cancel := context.WithTimeout(context.Background(), handOverWithin)
	defer cancel()
	u := &a.upgrades
	if a.relay.websocket != nil {
		u.state.Held, u.err = a.relay.websocket.Handover().Detach(u.ours)
	}
	u.err = errors.Join(u.err, a.relay.engine.HandOver(ctx, u.to()))
	u.state.Migrating = a.codes.migrating.codes(a.codes.store)
	return true
}

// give passes the state on to the new process, when all that it reads is written.
func (a *App) give() (err error) {
	u := &a.upgrades
	defer func() {
		u.err = err
		close(u.given)
	}()
	s := u.to()
	process := s.Process()
	if u.err != nil {
		s.Kill()
		return fmt.Errorf("app: upgrade: %w", u.err)
	}
	encoded, err := json.Marshal(&u.state)
	if err == nil {
		err = s.Give(encoded)
	}
	if err != nil {
		return fmt.Errorf("app: %w", err)
	}
	a.opts.Logger.Info("upgrade: the new process serves, this one ends", "process", process)
	a.notify(fmt.Sprintf("MAINPID=%d", process))
	for _, f := range a.opts.Locks {
		_ = f.Close() // The new process alone holds the directories.
	}
	return nil
}

// takeOverHistory reads the history of the process before this one.
func (a *App) takeOverHistory(context.Context) {
	from := a.upgrades.historyFrom
	if from == nil {
		return
	}
	if err := a.history.TakeOver(from); err != nil {
		a.opts.Logger.Warn("upgrade: what happened to allocations before is not known", "error", err)
	}
}

// hold keeps the WebSockets of this process for the new one.
func (a *App) hold(ctx context.Context) {
	if a.relay.websocket == nil {
		return
	}
	if open := a.relay.websocket.Stats().Open; open > 0 {
		a.opts.Logger.Info("upgrade: this process keeps its WebSockets until they end", "websockets", open)
	}
	a.relay.websocket.Handover().Drain(ctx)
}

// notify tells the service manager about this process, see sd_notify(3).
func (a *App) notify(state string) {
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
		a.opts.Logger.Warn("the service manager cannot be notified", "error", err)
	}
}
