package engine

import (
	"bufio"
	"cmp"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"net/netip"
	"runtime"
	"slices"
	"sync"
	"time"

	"github.com/ferryrelay/ferry/alloc"
	"github.com/ferryrelay/ferry/engine/internal/statefile"
	"github.com/ferryrelay/ferry/engine/internal/table"
	"github.com/ferryrelay/ferry/internal/net/endpoint"
	"github.com/ferryrelay/ferry/internal/net/sock"
	"github.com/ferryrelay/ferry/internal/privateapi"
	"github.com/ferryrelay/ferry/proto"
)

// A relay can be handed over to another process while matches go on. Both have its sockets open,
// and what arrives after HandOver waits in them. Package upgrade has the protocol of the two
// processes.

// handoverVersion changes with what HandOver writes and table.HandoverVersion.
const handoverVersion = 3<<16 | table.HandoverVersion

// handoverHead precedes the allocations: its size in 4 bytes, little-endian, the head as JSON,
// then the allocations, hosts first, table.HandoverLen bytes each.
type handoverHead struct {
	Locals     [][]netip.Addr        // numbered addresses, by listener
	Tenants    map[uint64][2][]byte  // project and environment, which may not be UTF-8
	Codes      []privateapi.KeptCode // of all hosts, if the state file lacks some
	Migrations handedMigrations
	// A process of an earlier version neither writes nor reads Sent.
	Sent []handedSent
}

func (s private) PrepareHandOver(ctx context.Context) (*privateapi.Handover, error) {
	now, err := sock.Monotonic()
	if err != nil {
		return nil, fmt.Errorf("engine: %w", err)
	}
	places := 0
	err = s.onControl(ctx, func(c *control) error {
		places = len(c.migrations.running) + len(c.migrations.places) + len(c.sentTotals)
		if c.shared.recovering(c.shared.clock()) {
			return privateapi.ErrRecovering
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	o := &privateapi.Handover{
		Version: handoverVersion, Boot: s.shared.sealer.Boot(), Listen: s.Addrs(),
		Started:    now - (s.shared.clock()-clockStart)*int64(time.Millisecond),
		Transports: s.cfg.sessionTransports(),
	}
	o.Allocations, _, _ = s.shared.table.Counts()
	o.StateSize = o.Allocations*table.HandoverLen + len(s.cfg.Listen)*handoverRoom + places*handoverPlace
	for _, g := range s.groups {
		files, err := g.Files()
		if err != nil {
			o.Close()
			return nil, fmt.Errorf("engine: %w", err)
		}
		o.Sockets = append(o.Sockets, files)
	}
	return o, nil
}

func checkHandover(o *privateapi.Handover, cfg *Config) error {
	sockets := cfg.Sockets.Workers
	switch {
	case o.Version != handoverVersion:
		return fmt.Errorf("%w: its state has version %#x, not %#x", privateapi.ErrHandover, o.Version, handoverVersion)
	case len(o.Listen) != len(cfg.Listen) || len(o.Sockets) != len(cfg.Listen):
		return fmt.Errorf("%w: it has %d listen addresses, not %d", privateapi.ErrHandover, len(o.Listen), len(cfg.Listen))
	}
	if most := cmp.Or(cfg.MaxAllocations, table.DefaultMaxAllocations); o.Allocations > most {
		return fmt.Errorf("%w: it has %d allocations, more than %d", privateapi.ErrHandover, o.Allocations, most)
	}
	has := cfg.transportNames()
	for i, name := range o.Transports {
		if want := has[int(endpoint.KindDTLS)+i]; name != "" && (name != want || name == "dtls" && cfg.Records == nil) {
			return fmt.Errorf("%w: it has players by %s", privateapi.ErrHandover, name)
		}
	}
	for i, files := range o.Sockets {
		if len(files) != sockets {
			return fmt.Errorf("%w: it has %d workers, not %d", privateapi.ErrHandover, len(files), sockets)
		}
		if want := cfg.Listen[i]; o.Listen[i].Addr() != want.Addr() || want.Port() != 0 && o.Listen[i].Port() != want.Port() {
			return fmt.Errorf("%w: it listens on %v, not %v", privateapi.ErrHandover, o.Listen[i], want)
		}
	}
	return nil
}

// Kinds count from that of DTLS on; its name is empty if there is none.
func (c *Config) sessionTransports() []string {
	names := c.transportNames()
	if c.Records == nil {
		names[endpoint.KindDTLS] = ""
	}
	return names[endpoint.KindDTLS : int(endpoint.KindSession)+len(c.Transports)]
}

const (
	// handoverRoom is more than the head of most relays takes, per listener.
	handoverRoom  = 64 << 10
	handoverPlace = 512
	// handoverBuffer stays in a cache.
	handoverBuffer = 64 << 10
)

var errHandOver = errors.New("engine: handed over")

type handover struct {
	mu  sync.Mutex // guards end and to
	end func()     // ends Run; nil: it does not run
	to  io.Writer  // for the state
	err error      // set before Run returns; nil: all is written
}

func (h *handover) allow(end func()) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.end, h.err = end, ErrNotRunning
}

func (s private) HandOver(ctx context.Context, to io.Writer) error {
	if relayGoroutines.Running() {
		return alloc.ErrInHook
	}
	h := &s.handover
	h.mu.Lock()
	end := h.end
	h.to = to
	h.mu.Unlock()
	switch {
	case end == nil:
		return ErrNotRunning
	case ctx.Err() != nil:
		return contextError(ctx)
	}
	end()
	select {
	case <-s.ended:
		return h.err
	case <-ctx.Done():
		return contextError(ctx)
	}
}

// stopWorkers leaves the sockets as they are, since another process has them as well. A signal
// between a worker's look at stop and its wait has no effect, so signals repeat.
func (s *Server) stopWorkers(workers *sync.WaitGroup) {
	for _, w := range s.workers {
		w.stop.Store(true)
	}
	s.closeIntakes()
	done := make(chan struct{})
	go func() {
		workers.Wait()
		close(done)
	}()
	for {
		for _, w := range s.workers {
			if thread := w.thread.Load(); thread != 0 {
				sock.InterruptThread(int(thread))
			}
		}
		select {
		case <-done:
			return
		case <-time.After(time.Millisecond):
		}
	}
}

// Workers and control have ended: leave carries out what control has begun, and writes the state.
func (s *Server) leave() error {
	s.checkSockets.close()
	c := s.control
	if k := c.shared.grace.kernel; k != nil {
		k.synchronize()
		k.done.Store(math.MaxUint64)
	}
	for {
		more := c.runOnce(c.shared.clock())
		if !more && c.queue.len() == 0 {
			break
		}
		runtime.Gosched()
	}
	s.handover.mu.Lock()
	to := bufio.NewWriterSize(s.handover.to, handoverBuffer)
	s.handover.mu.Unlock()
	if s.handover.err = s.writeState(to); s.handover.err != nil {
		return s.handover.err
	}
	if c.stateFile != nil {
		if err := c.stateFile.CloseForHandover(); err != nil {
			s.log.Warn("state file", "error", err)
		}
	}
	for _, g := range s.groups {
		if err := g.CloseDescriptors(); err != nil {
			return err
		}
	}
	return nil
}

func (s *Server) writeState(to *bufio.Writer) error {
	c, t := s.control, s.shared.table
	head := handoverHead{Tenants: make(map[uint64][2][]byte), Migrations: c.migrations.hand(), Sent: c.handSent()}
	for _, g := range s.groups {
		head.Locals = append(head.Locals, g.NumberedAddrs())
	}
	for hash, t := range c.projects.tenants {
		if t.project != nil {
			head.Tenants[hash] = [2][]byte{[]byte(t.name.Project), []byte(t.name.Environment)}
		}
	}
	if !c.rewrite.complete.Load() {
		head.Codes = c.keptCodes()
	}
	encoded, err := json.Marshal(&head)
	if err != nil {
		return err
	}
	// An error of a bufio.Writer stays.
	_, _ = to.Write(binary.LittleEndian.AppendUint32(nil, uint32(len(encoded))))
	_, _ = to.Write(encoded)
	for _, role := range []table.Role{table.RoleHost, table.RoleJoiner} {
		for slot := range t.Slots() {
			if e, ok := t.At(t.HandleAt(slot)); ok && e.Role == role {
				_, _ = to.Write(t.AppendAllocation(to.AvailableBuffer(), e.Handle))
			}
		}
	}
	return to.Flush()
}

// Nothing of an earlier run comes back any more: PrepareHandOver has waited for that.
func (s *Server) resume(ctx context.Context) error {
	from, err := s.cfg.Private.Handover.Receive(ctx)
	if err == nil {
		err = s.readState(bufio.NewReaderSize(from, handoverBuffer))
	}
	if err != nil {
		return fmt.Errorf("%w: %w", privateapi.ErrHandover, err)
	}
	s.control.recover(statefile.PreviousRun{})
	return nil
}

func (s *Server) readState(from *bufio.Reader) error {
	var size [4]byte
	if _, err := io.ReadFull(from, size[:]); err != nil {
		return err
	}
	encoded, err := io.ReadAll(io.LimitReader(from, int64(binary.LittleEndian.Uint32(size[:]))))
	if err != nil {
		return err
	}
	var head handoverHead
	if err := json.Unmarshal(encoded, &head); err != nil {
		return err
	}
	if len(head.Locals) != len(s.groups) {
		return fmt.Errorf("%d listeners, not %d", len(head.Locals), len(s.groups))
	}
	for i, g := range s.groups {
		if err := g.Number(head.Locals[i]); err != nil {
			return err
		}
	}
	for {
		b, err := from.Peek(table.HandoverLen)
		switch {
		case len(b) == 0 && err == io.EOF:
			s.control.keepCodes(head.Codes)
			s.control.takeSent(head.Sent)
			s.control.migrations.take(&head.Migrations)
			return nil
		case err != nil:
			return err
		}
		if err := s.control.restore(b, head.Tenants); err != nil {
			return err
		}
		_, _ = from.Discard(len(b)) // It is there.
	}
}

// resumeFile opens the state file while workers run and control does not yet.
func (s *Server) resumeFile() {
	c, t := s.control, s.shared.table
	places := []statefile.Place{}
	for slot := range t.Slots() {
		if e, ok := t.At(t.HandleAt(slot)); ok {
			places = append(places, c.recordPlace(e.Handle))
		}
	}
	for _, v := range c.migrations.running {
		places = append(places, v.Place)
	}
	slices.Sort(places)
	file, left := s.openStateFile(places)
	if !left.Complete {
		file.Discard(left.Err) // The other process could not store all changes: the table has them.
	}
	c.setStateFile(file)
	s.takeRecords(left.Records)
	file.Settle()
	s.keptCodes = c.keptCodes()
	if s.cfg.Private.Handover.OnResume != nil {
		s.cfg.Private.Handover.OnResume()
	}
}

// takeRecords adds the records that the other process could not store.
func (s *Server) takeRecords(found []statefile.FoundRecord) {
	c := s.control
	stored := make(map[proto.AllocationID]statefile.Place, len(found))
	for i := range found {
		stored[found[i].ID] = found[i].Place
		if e, ok := c.shared.table.ByID(found[i].ID); ok {
			c.noteCode(e.Handle, found[i].Code)
		}
	}
	for slot := range c.shared.table.Slots() {
		h := c.shared.table.HandleAt(slot)
		e, ok := c.shared.table.At(h)
		if place := c.recordPlace(h); !ok || place != 0 && stored[e.ID] == place {
			continue
		}
		c.addRecord(h)
	}
	for _, v := range c.migrations.running {
		if stored[v.Host] != v.Place {
			v.Place = 0
		}
	}
	c.addMigrationRecords()
}

func (c *control) noteCode(host table.Handle, code statefile.Code) {
	if !code.IsZero() {
		c.codes[host] = code
	}
}

func (c *control) keptCodes() (all []privateapi.KeptCode) {
	for h, code := range c.codes {
		if e, ok := c.shared.table.At(h); ok {
			all = append(all, privateapi.KeptCode{Tenant: c.shared.table.Tenant(h), Host: e.ID, Code: code.String()})
		}
	}
	return all
}

func (c *control) keepCodes(all []privateapi.KeptCode) {
	for _, kept := range all {
		if e, ok := c.shared.table.ByID(kept.Host); ok {
			code, _ := statefile.ParseCode(kept.Code)
			c.noteCode(e.Handle, code)
		}
	}
}

func (c *control) restore(b []byte, tenants map[uint64][2][]byte) error {
	h, err := c.shared.table.RestoreAllocation(b, c.projects.indexOf)
	if err != nil {
		return err
	}
	e, _ := c.shared.table.At(h)
	a := c.shared.table.Account(h)
	c.shared.sealer.Retain(a.Epoch)
	c.countAdded(h, alloc.Role(e.Role))
	tenant := c.shared.table.Tenant(h)
	if name, ok := tenants[tenant]; ok {
		c.projects.setName(tenant, alloc.Tenant{Project: string(name[0]), Environment: string(name[1])})
	}
	if e.Is(table.EverBound) {
		c.project(h).addPlayers(1, c.shared.clock())
	}
	c.wheel.put(h, c.nextTick(h)+1)
	return nil
}

type handedMigrations struct {
	Running    []migration
	Candidates []handedCandidates
}

// A process of an earlier version hands over up to four for one host, of which the first remains.
type handedCandidates struct {
	Host proto.AllocationID
	All  []candidate
}

func (s *migrations) hand() (h handedMigrations) {
	for _, id := range s.queue { // The oldest first.
		h.Running = append(h.Running, *s.running[id])
	}
	for _, v := range s.running {
		if v.Until == 0 {
			h.Running = append(h.Running, *v)
		}
	}
	for host, x := range s.candidates {
		h.Candidates = append(h.Candidates, handedCandidates{host, []candidate{x}})
	}
	return h
}

// All allocations are in the table when take is called.
func (s *migrations) take(h *handedMigrations) {
	if s.window == 0 {
		return
	}
	for _, v := range h.Running {
		s.running[v.Host] = &v
		if v.Until != 0 {
			s.queue = append(s.queue, v.Host)
		}
		if !v.NewHost.IsZero() {
			s.places[v.NewHost] = v.Host
		}
	}
	for _, x := range h.Candidates {
		s.candidates[x.Host] = x.All[0]
		for _, c := range x.All {
			s.places[c.ID] = x.Host
		}
	}
}
