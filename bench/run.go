package bench

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"time"

	"github.com/ferryrelay/ferry/internal/endpoint"
	"github.com/ferryrelay/ferry/internal/sock"
)

// Run sets up what cfg asks for, puts load on the relay that d speaks to, and
// reports what it measured. It blocks for set-up, Warmup, Duration and at most
// Drain. A Result with losses is not an error; errors are ErrConfig, ErrRemote,
// what d or the kernel refuse, a server process that cannot be read, and ctx's.
// When ctx ends first, the Result is about the part that was seen: what is under
// way has the time of Drain to arrive, and Interrupted is true.
func Run(ctx context.Context, cfg Config, d Dialect) (Result, error) {
	b, res, err := openBed(ctx, cfg, d)
	if err != nil {
		return res, err
	}
	res, err = b.measure(ctx, b.cfg)
	return res, errors.Join(err, b.rig.Close())
}

// bed is a rig that is ready for runs.
type bed struct {
	cfg     Config // with defaults
	plan    Plan
	dialect Dialect
	rig     *Rig
}

// openBed sets up. When ctx ends meanwhile, the Result says what was asked for.
func openBed(ctx context.Context, cfg Config, d Dialect) (*bed, Result, error) {
	cfg, err := cfg.withDefaults(d)
	if err != nil {
		return nil, Result{}, err
	}
	p, err := cfg.plan()
	if err != nil {
		return nil, Result{}, err
	}
	b := &bed{cfg: cfg, plan: p, dialect: d}
	if err = b.open(ctx); err == nil {
		return b, Result{}, nil
	}
	if ctx.Err() == nil {
		return nil, Result{}, err
	}
	res := newResult(&cfg, d, &p)
	res.stopped()
	return nil, res, err
}

// open makes the rig and holds it to the plan.
func (b *bed) open(ctx context.Context) (err error) {
	var before, after uint64
	if b.cfg.ServerPID != 0 {
		if before, err = readRSS(b.cfg.ServerPID); err != nil {
			return err
		}
	}
	begin := time.Now()
	if b.rig, err = b.dialect.Open(ctx, b.plan); err != nil {
		return fmt.Errorf("bench: set up %s: %w", b.dialect.Name(), err)
	}
	b.rig.Setup.Duration = time.Since(begin)
	if b.cfg.ServerPID != 0 {
		after, err = readRSS(b.cfg.ServerPID)
	}
	b.rig.Setup.RSSBefore, b.rig.Setup.RSSAfter = before, after
	if err = errors.Join(err, b.rig.check()); err != nil {
		return errors.Join(err, b.rig.Close())
	}
	return nil
}

// measure does one run. cfg differs from b.cfg in rate and name at most. With
// ctx's error it returns what was seen until then.
func (b *bed) measure(ctx context.Context, cfg Config) (Result, error) {
	res := newResult(&cfg, b.dialect, &b.plan)
	play, err := b.newPlay(ctx, &cfg)
	if err != nil {
		return res, err
	}
	g := newGenerator(&cfg, b.rig, rand.Uint32())
	g.join(play)
	o := newObserver(g, cfg.ServerPID)
	clock := time.Now().Add(-time.Duration(sock.Now()))
	res.Started = clock.Add(time.Duration(g.measure)).UTC().Truncate(time.Millisecond)

	sessions := make(chan *Churn, 1)
	lasts := time.Until(clock.Add(time.Duration(g.end)))
	go func() { sessions <- b.churn(ctx, &cfg, lasts) }()
	calls := make(chan *allocating, 1)
	reserving := b.newAllocating(&cfg, clock.Add(time.Duration(g.split)), clock.Add(time.Duration(g.end)))
	go func() { reserving.Run(ctx); calls <- reserving }()
	done := make(chan struct{})
	observed := make(chan struct{})
	go func() { defer close(observed); o.Run(ctx, done) }()
	ran := make(chan error, 1)
	go func() { ran <- g.Run(ctx) }() // Its thread may end with it.
	err = <-ran
	close(done)
	<-observed
	res.Churn = <-sessions
	made := <-calls

	if g.interrupted {
		o.err = nil // A server that ended with the run.
	}
	if err = errors.Join(err, o.err); err != nil {
		return Result{}, err
	}
	res.Setup = b.rig.Setup
	g.collect(&res, o)
	res.Control = g.control(o, made.report(&res))
	res.judge(&cfg)
	if g.interrupted {
		res.stopped()
		return res, ctx.Err()
	}
	return res, nil
}

// NewRig opens the sockets of a plan and gives each endpoint its address. A
// Dialect then sets Offset, Relay, Flows and what else it needs.
func NewRig(p Plan) (*Rig, error) {
	r := &Rig{plan: p, Endpoints: make([]Endpoint, p.Len())}
	if err := r.open(); err != nil {
		return nil, errors.Join(err, r.close())
	}
	return r, nil
}

func (r *Rig) open() error {
	p := &r.plan
	for first := 0; first < p.Len(); {
		end := first
		for end < p.Len() && p.socket(end) == p.socket(first) {
			end++
		}
		if err := r.openSocket(first, end); err != nil {
			return err
		}
		first = end
	}
	return nil
}

// openSocket makes the socket of endpoints first to end-1.
func (r *Rig) openSocket(first, end int) error {
	any4 := netip.AddrPortFrom(netip.IPv4Unspecified(), 0)
	// Merged datagrams would travel unsegmented over loopback, and flatter
	// relays that take them so.
	g, err := sock.Listen(sock.Config{
		Addr: any4, Batch: r.plan.Batch, ReadBuffer: r.plan.ReadBuffer, DisableGSO: true,
	}, 1)
	if err != nil {
		return fmt.Errorf("bench: %w", err)
	}
	s := &Socket{Group: g, Conn: g.Conns()[0]}
	s.rx, s.tx = s.Conn.NewRecvBatch(), s.Conn.NewSendBatch(1)
	r.Sockets = append(r.Sockets, s)
	addrs := make([]netip.Addr, 0, end-first)
	for i := first; i < end; i++ {
		addrs = append(addrs, r.plan.Addr(i))
	}
	numbers, err := g.Locals(addrs)
	if err != nil {
		return fmt.Errorf("bench: %w", err)
	}
	for i, local := range numbers {
		for len(s.byLocal) <= int(local) {
			s.byLocal = append(s.byLocal, -1)
		}
		s.byLocal[local] = int32(first + i)
		r.Endpoints[first+i] = Endpoint{
			Socket: len(r.Sockets) - 1, Local: local,
			Addr: netip.AddrPortFrom(addrs[i], g.Addr().Port()),
		}
	}
	return nil
}

// SendTo sends pkt from endpoint ep to dst at once. It is for handshakes, not
// for load. The error is ErrRemote for a destination that the plan does not
// permit, or says that the kernel refused the datagram.
func (r *Rig) SendTo(ep int, dst netip.AddrPort, pkt []byte) error {
	if err := r.permit(dst); err != nil {
		return err
	}
	e := &r.Endpoints[ep]
	s := r.Sockets[e.Socket]
	s.tx.Add(endpoint.UDP(dst, e.Local, 0), r.encrypt(ep, pkt))
	r.Setup.Handshake++
	if res := s.Conn.Send(s.tx); res.Sent != 1 {
		return fmt.Errorf("bench: the kernel refused a datagram from %v to %v", e.Addr, dst)
	}
	return nil
}

func (r *Rig) permit(dst netip.AddrPort) error {
	if !dst.IsValid() || !dst.Addr().Unmap().Is4() {
		return fmt.Errorf("%w: %v is no IPv4 address", ErrConfig, dst)
	}
	if dst.Addr().Unmap().IsLoopback() {
		return nil
	}
	if !r.plan.AllowRemote {
		return fmt.Errorf("%w: %v", ErrRemote, dst)
	}
	if from := r.plan.Addr(0); from.IsLoopback() {
		return fmt.Errorf("%w: Sources, such as %v, are loopback and cannot reach %v", ErrConfig, from, dst)
	}
	return nil
}

// Poll hands over what has arrived, without blocking: the number of the
// endpoint it came to, who sent it, and the datagram, which is valid during the
// call. It returns how many there were; datagrams to no endpoint count but are
// not handed over.
func (r *Rig) Poll(handle func(ep int, from netip.AddrPort, pkt []byte)) (int, error) {
	total := 0
	for _, s := range r.Sockets {
		n, err := s.Conn.TryRecv(s.rx)
		if err != nil {
			return total, fmt.Errorf("bench: %w", err)
		}
		total += n
		for i := range n {
			from, pkt, _ := s.rx.At(i)
			ep := s.owner(from.Local())
			if pkt = r.decrypt(ep, pkt); ep >= 0 && pkt != nil {
				handle(int(ep), from.AddrPort(), pkt)
			}
		}
	}
	return total, nil
}

// Await polls until done reports true, and calls idle in between, at least once
// a millisecond. It ends with ctx's error or that of idle.
func (r *Rig) Await(ctx context.Context, done func() bool, idle func(now time.Time) error,
	handle func(ep int, from netip.AddrPort, pkt []byte),
) error {
	for !done() {
		if err := ctx.Err(); err != nil {
			return err
		}
		if err := idle(time.Now()); err != nil {
			return err
		}
		n, err := r.Poll(handle)
		if err != nil {
			return err
		}
		if n == 0 {
			time.Sleep(time.Millisecond)
		}
	}
	return nil
}

// owner returns the endpoint behind a local number, or -1.
func (s *Socket) owner(local uint16) int32 {
	if int(local) >= len(s.byLocal) {
		return -1
	}
	return s.byLocal[local]
}

// Close says goodbye and closes the sockets. It may be called again.
func (r *Rig) Close() error {
	if leave := r.Leave; leave != nil {
		r.Leave = nil
		leave()
	}
	return r.close()
}

func (r *Rig) close() error {
	var errs []error
	for _, s := range r.Sockets {
		errs = append(errs, s.Group.Close())
	}
	return errors.Join(errs...)
}

// check holds a Dialect to its plan.
func (r *Rig) check() error {
	if len(r.Flows) != len(r.plan.Flows) || len(r.Endpoints) != r.plan.Len() {
		return fmt.Errorf("%w: the dialect made %d flows and %d endpoints of %d and %d",
			ErrConfig, len(r.Flows), len(r.Endpoints), len(r.plan.Flows), r.plan.Len())
	}
	for i := range r.Flows {
		f, want := &r.Flows[i], r.plan.Flows[i]
		if f.From != want.From || f.To != want.To {
			return fmt.Errorf("%w: flow %d goes from %d to %d, planned was %d to %d", ErrConfig, i, f.From, f.To, want.From, want.To)
		}
		if err := r.permit(f.Dst); err != nil {
			return err
		}
		if size := len(f.Prefix) + r.overhead(f.From); size+r.plan.Payload > MaxDatagram {
			return fmt.Errorf("%w: %d bytes of header and %d of payload are more than %d", ErrConfig, size, r.plan.Payload, MaxDatagram)
		}
	}
	rebinds := 0
	for i := range r.Endpoints {
		e := &r.Endpoints[i]
		if e.Rebind != nil {
			rebinds++
		}
		if e.Keepalive == nil && e.Rebind == nil {
			continue
		}
		if err := r.permit(e.Relay); err != nil {
			return err
		}
	}
	if r.plan.BindRate > 0 && rebinds == 0 {
		return fmt.Errorf("%w: the dialect has no handshake to repeat", ErrConfig)
	}
	return nil
}

// Control is what the control plane did beside forwarding, and what forwarding
// was like without it and with it.
type Control struct {
	// Without is the first part of the measured interval, in which there were
	// neither BINDs nor calls of the API. Nil without Config.Baseline.
	Without *Part `json:"without,omitempty"`
	With    Part  `json:"with"` // the rest of it
	// P99Moved is the p99 of the latency in With less that in Without, 0 unless
	// both have samples.
	P99Moved time.Duration `json:"p99MovedNs"`

	Binds       *Calls `json:"binds,omitempty"`
	Allocations *Calls `json:"allocations,omitempty"`
}

// Part is forwarding in a part of the measured interval. Datagrams belong to
// the part in which they were due.
type Part struct {
	Duration      time.Duration `json:"durationNs"`
	Offered       uint64        `json:"offered"`
	Sent          uint64        `json:"sent"`
	Delivered     uint64        `json:"delivered"`
	Lost          uint64        `json:"lost"`
	LossRatio     float64       `json:"lossRatio"`
	DeliveredRate float64       `json:"deliveredRate"` // datagrams/s
	Latency       Latency       `json:"latency"`
	// Lag is that of the generator: as much of Latency is not the server's.
	Lag    Latency `json:"lag"`
	Server Process `json:"server"` // zero without Config.ServerPID
}

// Calls are requests of one kind to the control plane. Counts are of those that
// were due while it had work and the interval was measured.
type Calls struct {
	Duration time.Duration `json:"durationNs"` // in which they were due
	Offered  uint64        `json:"offered"`    // due; as many as are answered: same as Sent
	Sent     uint64        `json:"sent"`
	Answered uint64        `json:"answered"`
	Refused  uint64        `json:"refused"` // answered with a refusal, or the call failed; see Result.Errors
	// AnsweredRate is Answered per second.
	AnsweredRate float64 `json:"answeredRate"`
	// Latency is that of the answered ones, from the time at which they were
	// due. A call of the API for which a worker was waiting counts from when it
	// began instead: that it woke up late is not the server's doing.
	Latency Latency `json:"latency"`
}

// Compares reports whether there are samples both without and with the work: only
// then P99Moved means something. It may be asked of a nil Control.
func (c *Control) Compares() bool {
	return c != nil && c.Without != nil && c.Without.Latency.Samples > 0 && c.With.Latency.Samples > 0
}

// finish computes what follows from the counts.
func (c *Calls) finish(lasted time.Duration) *Calls {
	c.Duration = lasted
	if lasted > 0 {
		c.AnsweredRate = float64(c.Answered) / lasted.Seconds()
	}
	return c
}

// portion is what the generator counts in a part of the measured interval.
type portion struct {
	queued, failed, delivered uint64
	times
}

// portionOf returns the portion that a datagram belongs to by the time it was
// due; nil outside of the measured interval.
func (g *generator) portionOf(due int64) *portion {
	switch {
	case due < g.measure || due >= g.end:
		return nil
	case due < g.split:
		return &g.portions[0]
	}
	return &g.portions[1]
}

// part reports on a portion, which lasted from one time to another.
func (g *generator) part(p *portion, from, to int64) Part {
	r := Part{
		Duration: time.Duration(to - from), Offered: p.queued, Sent: p.queued - p.failed, Delivered: p.delivered,
		Latency: summarise(p.latency, true), Lag: summarise(p.lag, false),
	}
	if g.cfg.Rate > 0 {
		r.Offered = g.sched.before(to) - g.sched.before(from)
	}
	r.Lost = r.Sent - min(r.Delivered, r.Sent)
	r.LossRatio = ratio(r.Lost, r.Sent)
	if to > from {
		r.DeliveredRate = float64(r.Delivered) / r.Duration.Seconds()
	}
	return r
}

// control reports on the work of the control plane, nil if there was none.
func (g *generator) control(o *observer, allocations *Calls) *Control {
	if !g.cfg.controls() {
		return nil
	}
	from, end := g.controlled()
	c := &Control{With: g.part(&g.portions[1], from, end), Allocations: allocations}
	if g.cfg.BindRate > 0 {
		c.Binds = g.binds.report(from, end)
	}
	c.With.Server = o.used(len(o.readings)-2, len(o.readings)-1)
	if g.cfg.Baseline == 0 {
		return c
	}
	without := g.part(&g.portions[0], g.measure, from)
	without.Server = o.used(0, 1)
	c.Without = &without
	if len(o.readings) < 3 {
		c.With.Server = Process{}
	}
	if c.Compares() {
		c.P99Moved = c.With.Latency.P99 - without.Latency.P99
	}
	return c
}

// controlled is the part of the measured interval with work for the control
// plane, in ns of sock.Now. It is empty if the run ended before it.
func (g *generator) controlled() (from, end int64) {
	end = max(g.end, g.measure)
	return min(max(g.split, g.measure), end), end
}
