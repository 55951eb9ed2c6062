package app

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/ferryrelay/ferry/alloc"
	"github.com/ferryrelay/ferry/engine"
	"github.com/ferryrelay/ferry/internal/admin"
	"github.com/ferryrelay/ferry/internal/cluster"
	"github.com/ferryrelay/ferry/internal/config"
	"github.com/ferryrelay/ferry/internal/fleet"
	redisstore "github.com/ferryrelay/ferry/internal/store/redis"
	"github.com/ferryrelay/ferry/proto"
)

const (
	// wakeWithin is how long an API process that starts waits for the store before
	// it lets callers in all the same.
	wakeWithin = 5 * time.Second
	// wakeEvery is the time between two looks.
	wakeEvery = 20 * time.Millisecond
)

// front is what an API process has instead of a relay: a fleet of them. Its
// fields are fixed by buildFront.
type frontEnd struct {
	app    *App
	fleet  *fleet.Fleet
	dialer *cluster.Dialer
}

// buildFront makes the Allocations service of a fleet.
func (a *App) buildFront() (err error) {
	c, f := &a.opts.Config, &frontEnd{app: a}
	f.dialer, err = cluster.NewDialer(cluster.DialerConfig{Files: clusterFiles(c), Logger: a.opts.Logger})
	if err != nil {
		return err
	}
	a.players.leases.store = a.store
	defaults, hints := regionsOf(c)
	f.fleet, err = fleet.New(fleet.Config{
		Registry: a.store, Directory: a.store, Dialer: f.dialer,
		Defaults: defaults, Hints: hints, Logger: a.opts.Logger,
	})
	if err != nil {
		return err
	}
	a.service, err = alloc.NewService(alloc.ServiceConfig{
		Relay: f.fleet, Store: f.fleet.Codes(), LiveRegions: f.fleet.Regions, MaxConnections: c.MaxConnections,
		MaxOutstanding: c.MaxOutstanding, BindTimeout: c.BindTimeout,
		KeepCode: f.fleet.KeepCode, Admit: a.players.admit, OnReserve: a.players.reserved,
	})
	if err != nil {
		return err
	}
	a.frontEnd = f
	a.components = slices.Insert(a.components, len(a.components)-1, // The API's port ends before them.
		component{"dialer", f.dialer.Run, func() error { return nil }},
		component{"fleet", f.fleet.Run, func() error { return nil }})
	return nil
}

// regionsOf returns where hosts go that name no region.
func regionsOf(c *config.Config) (defaults map[string]string, hints []fleet.Hint) {
	defaults = make(map[string]string)
	for _, d := range c.RegionDefaults {
		defaults[d.Project] = d.Region
	}
	for _, h := range c.RegionHints {
		hints = append(hints, fleet.Hint{Prefix: h.Network.Prefix, Region: h.Region})
	}
	return defaults, hints
}

// wake waits until the fleet is known, but not for long: without its store an API
// process answers 503, call by call, and stays ready. If all of them were taken
// out at once whenever the store is away, callers would meet a load balancer's
// error in place of the API's, and nobody when it is back.
func (f *frontEnd) wake(ctx context.Context) bool {
	ticker := time.NewTicker(wakeEvery)
	defer ticker.Stop()
	began := time.Now()
	for {
		err := f.fleet.Ready()
		if err == nil {
			return true
		}
		if time.Since(began) > wakeWithin {
			f.app.opts.Logger.Warn("the store does not answer: callers are told to come again", "error", err)
			return true
		}
		select {
		case <-ctx.Done():
			return false
		case <-ticker.C:
		}
	}
}

// nodes returns the relays as this process sees them.
func (f *frontEnd) nodes() (all []admin.Node) {
	for _, c := range f.fleet.Nodes() {
		n := admin.Node{
			ID: c.Relay.String(), Role: Relay.String(), Region: c.Region, Version: c.Version,
			State: stateOf(&c), API: c.Control,
			Allocations: c.Players, Bound: c.Players, Seats: c.Taken, MaxSeats: c.Seats,
		}
		for _, e := range c.Endpoints {
			if e.ConnectionType == "udp" {
				n.UDP = append(n.UDP, net.JoinHostPort(e.Host, strconv.Itoa(int(e.Port))))
			}
		}
		all = append(all, n)
	}
	return all
}

func stateOf(c *fleet.Candidate) string {
	switch {
	case c.Age > fleet.DeadAfter:
		return "dead"
	case c.Draining:
		return "draining"
	case c.Suspect:
		return "suspect"
	}
	return "ready"
}

const (
	// findWithin bounds the search for the relay that has an allocation, and what
	// is done there. Half of it is for the store, which knows where hosts are.
	findWithin = 2 * time.Second
	// askAtOnce is how many relays are asked at the same time.
	askAtOnce = 64
	// maxNamed bounds the relays that an error names.
	maxNamed = 8
)

// reach is how an operator's wishes come from an API process to the relays. It
// has no state, and its functions may be called from several goroutines.
type fleetOperator struct {
	nodes func() []fleet.Candidate
	// ready returns why nodes may lack some relay, nil if they do not.
	ready  func() error
	dial   func(fleet.Node) cluster.Operator
	homeOf func(context.Context, proto.AllocationID) (fleet.Home, error)
}

var _ admin.Fleet = fleetOperator{}

// reach returns that of the front's fleet.
func (f *frontEnd) operator() fleetOperator {
	return fleetOperator{nodes: f.fleet.Nodes, ready: f.fleet.Ready, dial: f.dialer.Operator, homeOf: f.app.store.HomeOf}
}

// Drain lets a relay run dry. What is negative is as its settings say.
func (r fleetOperator) Drain(ctx context.Context, relay string, cfg engine.DrainConfig) (admin.DrainState, error) {
	return r.state(relay, func(o cluster.Operator) (cluster.DrainState, error) {
		return o.Drain(ctx, cluster.Drain{Deadline: cfg.Deadline, Threshold: cfg.Threshold})
	})
}

// Undrain lets a relay take new allocations again.
func (r fleetOperator) Undrain(ctx context.Context, relay string) (admin.DrainState, error) {
	return r.state(relay, func(o cluster.Operator) (cluster.DrainState, error) { return o.Undrain(ctx) })
}

// Page is what a relay shows.
func (r fleetOperator) Page(ctx context.Context, relay, target string) (admin.Page, error) {
	o, err := r.operatorOf(relay)
	if err != nil {
		return admin.Page{}, err
	}
	p, err := o.Page(ctx, target)
	return admin.Page(p), clusterError(err)
}

// RelayOf returns the relay that has a host.
func (r fleetOperator) RelayOf(ctx context.Context, id proto.AllocationID) (string, error) {
	home, err := r.homeOf(ctx, id)
	if errors.Is(err, alloc.ErrNotFound) {
		return "", fmt.Errorf("app: no host has that id, and of players the store knows nothing: name the relay, by --node or as /nodes/NODE/allocations/%v: %w", id, alloc.ErrNotFound)
	}
	return home.Relay.String(), err
}

// at returns a relay to be asked, even one that does not announce itself: it may
// only have lost the store.
func (r fleetOperator) operatorOf(relay string) (cluster.Operator, error) {
	nodes := r.nodes()
	i := slices.IndexFunc(nodes, func(c fleet.Candidate) bool { return c.Relay.String() == relay })
	if i < 0 {
		return nil, fmt.Errorf("app: relay %s has left the fleet: %w", relay, alloc.ErrUnavailable)
	}
	return r.dial(nodes[i].Node), nil
}

// state asks a relay for what becomes of its drain.
func (r fleetOperator) state(relay string, do func(cluster.Operator) (cluster.DrainState, error)) (admin.DrainState, error) {
	o, err := r.operatorOf(relay)
	if err != nil {
		return admin.DrainState{}, err
	}
	s, err := do(o)
	if err != nil {
		return admin.DrainState{}, clusterError(err)
	}
	return admin.DrainState{
		Draining: s.Draining, Final: s.Final, Deadline: s.Deadline.Truncate(time.Second),
		Threshold: s.Threshold, Allocations: s.Allocations,
	}, nil
}

// told returns what a relay said as the admin pages know it.
func clusterError(err error) error {
	switch {
	case errors.Is(err, cluster.ErrFinal):
		return admin.ErrFinal
	case errors.Is(err, cluster.ErrHost):
		return engine.ErrKickHost
	case errors.Is(err, alloc.ErrNotFound):
		return alloc.ErrNotFound
	}
	return err
}

// End ends an allocation wherever it is.
func (r fleetOperator) End(ctx context.Context, id proto.AllocationID) error {
	return r.onRelayOf(ctx, id, func(ctx context.Context, o cluster.Operator) (bool, error) { return o.Close(ctx, id) })
}

// Kick removes a player from its match wherever that is.
func (r fleetOperator) Kick(ctx context.Context, id proto.AllocationID) error {
	return r.onRelayOf(ctx, id, func(ctx context.Context, o cluster.Operator) (bool, error) { return o.Kick(ctx, id) })
}

// ask does something to an allocation at one relay, and reports whether it was
// there.
type relayCall func(context.Context, cluster.Operator) (bool, error)

// wherever asks the relay that has an allocation: for a host the one that the
// store names, else all that live.
func (r fleetOperator) onRelayOf(ctx context.Context, id proto.AllocationID, do relayCall) error {
	ctx, cancel := context.WithTimeout(ctx, findWithin)
	defer cancel()
	nodes := r.nodes()
	home, known := r.home(ctx, id)
	if !known {
		return r.onAllRelays(ctx, nodes, do)
	}
	i := slices.IndexFunc(nodes, func(c fleet.Candidate) bool { return c.Relay == home.Relay })
	if i < 0 {
		return fmt.Errorf("app: the host is at relay %v, which does not announce itself: %w", home.Relay, alloc.ErrUnavailable)
	}
	_, err := do(ctx, r.dial(nodes[i].Node))
	return clusterError(err)
}

// home returns where the store has a host.
func (r fleetOperator) home(ctx context.Context, id proto.AllocationID) (fleet.Home, bool) {
	ctx, cancel := context.WithTimeout(ctx, findWithin/2)
	defer cancel()
	h, err := r.homeOf(ctx, id)
	return h, err == nil
}

// everywhere asks all relays until the one that has it says that it did it, or why
// not. Those that were started anew lately cannot tell, and see to it that it does
// not come back. Without the store all relays look dead, and are asked.
func (r fleetOperator) onAllRelays(ctx context.Context, nodes []fleet.Candidate, do relayCall) error {
	unsure := r.ready()
	verdicts := make([]relayResult, len(nodes))
	all, cancel := context.WithCancel(ctx)
	defer cancel()
	var next atomic.Int64
	var asking sync.WaitGroup
	for range min(askAtOnce, len(nodes)) {
		asking.Go(func() {
			for i := int(next.Add(1)) - 1; i < len(nodes); i = int(next.Add(1)) - 1 {
				v := &verdicts[i]
				if nodes[i].Age > fleet.DeadAfter && unsure == nil {
					v.err = errNotAnnounced
				} else if v.found, v.err = do(all, r.dial(nodes[i].Node)); v.final() {
					cancel() // Nobody else has it.
				}
			}
		})
	}
	asking.Wait()
	if i := slices.IndexFunc(verdicts, relayResult.final); i >= 0 {
		return clusterError(verdicts[i].err)
	}
	return notFoundError(nodes, verdicts, unsure)
}

// verdict is what a relay said about an allocation.
type relayResult struct {
	found bool
	err   error
}

// final reports whether it is that of the one that has the allocation.
func (v relayResult) final() bool {
	return v.err == nil && v.found || errors.Is(v.err, cluster.ErrHost)
}

// errNotAnnounced is why a relay was not asked: it is dead, and its allocations
// may come back with it.
var errNotAnnounced = fmt.Errorf("%w: it does not announce itself", alloc.ErrUnavailable)

// nowhere returns what is to be said when no relay is sure to have had it: nil
// where it can only be one that was kept from coming back, or which relays may
// have it all the same.
func notFoundError(nodes []fleet.Candidate, verdicts []relayResult, unsure error) error {
	var silent []string
	missing := alloc.ErrNotFound
	for i, v := range verdicts {
		switch {
		case v.err == nil:
			missing = nil
		case !errors.Is(v.err, alloc.ErrNotFound):
			why := strings.TrimPrefix(v.err.Error(), alloc.ErrUnavailable.Error()+": ")
			silent = append(silent, fmt.Sprintf("  %v %s: %s", nodes[i].Relay, nodes[i].Region, why))
		}
	}
	if len(silent) == 0 {
		if unsure != nil {
			return fmt.Errorf("app: no relay that is known has it, and there may be others: %w", unsure)
		}
		return missing
	}
	named := silent[:min(len(silent), maxNamed)]
	if more := len(silent) - maxNamed; more > 0 {
		named = append(named[:maxNamed:maxNamed], fmt.Sprintf("  and %d more", more))
	}
	return fmt.Errorf("%w: %d of %d relays do not have it, and these did not answer\n%s\nIf it is at one of them it goes on: ask again",
		alloc.ErrUnavailable, len(nodes)-len(silent), len(nodes), strings.Join(named, "\n"))
}

// Errors of a process that is to be one of a fleet, and lacks what that takes.
var (
	ErrNoStore = errors.New("app: store: relay and api are processes of a fleet, which needs a store: redis://HOST:6379. On one machine ferry serve needs none")
	ErrNoFiles = errors.New("app: cluster_ca, cluster_cert, cluster_key: relays and API processes know each other by certificates of their own, which ferry ctl cluster-ca makes")
)

// storeConfig returns what the settings say about the store of a fleet.
func storeConfig(c *config.Config, log *slog.Logger) (redisstore.Config, error) {
	if c.Store == "" {
		return redisstore.Config{}, ErrNoStore
	}
	cfg := redisstore.Config{URL: string(c.Store), Prefix: c.StorePrefix, Timeout: c.StoreTimeout, Logger: log}
	if c.StorePasswordFile != "" {
		password, err := config.ReadSecret(c.StorePasswordFile)
		if err != nil {
			return cfg, fmt.Errorf("app: store_password_file: %w", err)
		}
		cfg.Password = string(password)
	}
	if c.StoreCA != "" {
		text, err := os.ReadFile(c.StoreCA)
		if err != nil {
			return cfg, fmt.Errorf("app: store_ca: %w", err)
		}
		roots := x509.NewCertPool()
		if !roots.AppendCertsFromPEM(text) {
			return cfg, fmt.Errorf("app: store_ca: %s holds no certificate", c.StoreCA)
		}
		cfg.TLS = &tls.Config{MinVersion: tls.VersionTLS12, RootCAs: roots}
	}
	return cfg, nil
}

// newStore returns the store of a fleet, to which it does not connect.
func newStore(c *config.Config, log *slog.Logger) (*redisstore.Store, error) {
	cfg, err := storeConfig(c, log)
	if err != nil {
		return nil, err
	}
	s, err := redisstore.New(cfg)
	if err != nil {
		return nil, fmt.Errorf("app: store: %w", err)
	}
	return s, nil
}

// buildStore makes the client of the store, which is the last to end but for the
// operator's pages: relays say farewell there.
func (a *App) buildStore() (err error) {
	if a.store, err = newStore(&a.opts.Config, a.opts.Logger); err != nil {
		return err
	}
	run := func(ctx context.Context) error {
		return errors.Join(a.store.Run(ctx), a.store.Close())
	}
	a.addComponent(component{"store", run, a.store.Close})
	return nil
}

// clusterFiles returns the files by which the process is known in its fleet.
func clusterFiles(c *config.Config) cluster.Files {
	return cluster.Files{Certificate: c.ClusterCert, Key: c.ClusterKey, CA: c.ClusterCA}
}

// checkFleet refuses settings without which a process cannot be one of a fleet.
// It connects to nothing.
func checkFleet(c *config.Config, mode Mode) error {
	if !mode.isFleetMember() {
		return nil
	}
	var errs []error
	if s, err := newStore(c, nil); err != nil {
		errs = append(errs, err)
	} else {
		errs = append(errs, s.Close())
	}
	files := clusterFiles(c)
	if files.Certificate == "" || files.Key == "" || files.CA == "" {
		errs = append(errs, ErrNoFiles)
	} else if _, err := tls.LoadX509KeyPair(files.Certificate, files.Key); err != nil {
		errs = append(errs, fmt.Errorf("app: cluster_cert, cluster_key: %w", err))
	} else if mode == API {
		_, err := cluster.NewDialer(cluster.DialerConfig{Files: files})
		errs = append(errs, err)
	}
	if mode == Relay {
		// The port may be missing yet, and where players are told is checked
		// elsewhere.
		_, err := controlAddress(c.ClusterAdvertise, c.Cluster.AddrPort, nil)
		if !errors.Is(err, errNoControlAddress) {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

var errNoControlAddress = errors.New("app: cluster_advertise: API processes have to be told where the relay's cluster listener is")

// control returns where API processes reach the listener at listen: what the
// settings say, else the address itself, else the first that players are told.
func controlAddress(advertise string, listen netip.AddrPort, told []alloc.ServerEndpoint) (string, error) {
	port := strconv.Itoa(int(listen.Port()))
	switch {
	case advertise != "":
		host, given, err := net.SplitHostPort(advertise)
		if err != nil {
			host, given = strings.Trim(advertise, "[]"), port
		}
		if n, err := strconv.ParseUint(given, 10, 16); host == "" || err != nil || n == 0 && given != port {
			return "", fmt.Errorf("app: cluster_advertise: %q is neither HOST nor HOST:PORT", advertise)
		}
		return net.JoinHostPort(host, given), nil
	case !listen.Addr().IsUnspecified():
		return listen.String(), nil
	case len(told) == 0:
		return "", errNoControlAddress
	}
	return net.JoinHostPort(told[0].Host, port), nil
}

// hostname names a process that has no id.
func hostname() string {
	name, err := os.Hostname()
	if err != nil {
		return "api"
	}
	return name
}
