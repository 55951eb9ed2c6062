package process

import (
	"cmp"
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
	"github.com/ferryrelay/ferry/internal/base/parts"
	"github.com/ferryrelay/ferry/internal/fleet/operator"
	"github.com/ferryrelay/ferry/internal/fleet/placement"
	"github.com/ferryrelay/ferry/internal/fleet/redisstore"
	"github.com/ferryrelay/ferry/internal/fleet/rpc"
	"github.com/ferryrelay/ferry/internal/server/config"
	"github.com/ferryrelay/ferry/internal/server/operator/admin"
	"github.com/ferryrelay/ferry/proto"
)

const (
	// wakeWithin is how long an API process waits for the store at its start before it
	// becomes ready without it.
	wakeWithin = 5 * time.Second
	wakeEvery  = 20 * time.Millisecond
)

// frontEnd is the part of an API process that calls the relays of its fleet. Its fields
// are fixed by newFrontEnd.
type frontEnd struct {
	store  *redisstore.Stores
	fleet  *placement.Regional
	dialer *rpc.Dialer
	others *apiProcesses
	log    *slog.Logger
}

// newFrontEnd returns the front end of a fleet, which announces own. It opens no connection.
func newFrontEnd(o *Options, store *redisstore.Stores, own func() placement.APIProcess) (_ *frontEnd, err error) {
	f := &frontEnd{store: store, log: o.Logger, others: newAPIProcesses(store, own, o.Logger)}
	if f.dialer, err = rpc.NewDialer(rpc.DialerConfig{Files: clusterFiles(&o.Config), Logger: o.Logger}); err != nil {
		return nil, err
	}
	symbols := regionSymbols(&o.Config)
	var members []placement.Member
	for _, s := range store.All() {
		m := placement.Member{Region: s.Regions.Own(), Symbol: symbols[s.Regions.Own()]}
		log := o.Logger
		if m.Region != "" {
			log = log.With("region", m.Region)
		}
		m.Fleet = placement.New(placement.Config{Registry: s.Registry, Directory: s.Directory, Dialer: f.dialer, Logger: log})
		members = append(members, m)
	}
	f.fleet = placement.NewRegional(members...)
	return f, nil
}

func (f *frontEnd) addTo(g *parts.Group) {
	g.Add(parts.Part{Name: "dialer", Run: f.dialer.Run})
	g.Add(parts.Part{Name: "fleet", Run: f.fleet.Run})
	g.Add(parts.Part{Name: "processes", Run: f.others.run})
}

// newService completes the configuration with the fleet.
func (f *frontEnd) newService(cfg alloc.ServiceConfig) (*alloc.Service, error) {
	cfg.Relay, cfg.Store, cfg.LiveRegions, cfg.KeepCode = f.fleet, f.fleet.Codes(), f.fleet.Regions, f.fleet.KeepCode
	cfg.HasRoom = f.fleet.HasRoom
	return alloc.NewService(cfg)
}

func regionSymbols(c *config.Config) map[string]string {
	symbols := make(map[string]string)
	for i := range c.RegionStores {
		symbols[c.RegionStores[i].Region] = c.RegionStores[i].CodeSymbol
	}
	return symbols
}

// wake waits for the first read of the fleet from the store, but not for long: without its
// store an API process answers 503, call by call, and stays ready, since a load balancer
// would otherwise remove all API processes at once. A store that refuses the password keeps it
// waiting.
func (f *frontEnd) wake(ctx context.Context) bool {
	ticker := time.NewTicker(wakeEvery)
	defer ticker.Stop()
	began := time.Now()
	for {
		err := f.fleet.Ready()
		if err == nil {
			return true
		}
		if f.store.RegionsError() != nil {
			return true // Run ends with it.
		}
		if time.Since(began) > wakeWithin && f.store.LoginError() == nil {
			f.log.Warn("the store does not answer: calls are answered with 503 and Retry-After", "error", err)
			return true
		}
		select {
		case <-ctx.Done():
			return false
		case <-ticker.C:
		}
	}
}

func (f *frontEnd) nodes() (all operator.Nodes) {
	now := time.Now()
	away, allAway := f.fleet.StoresAway()
	for _, s := range away {
		if s.Region == "" {
			all.StoreAway = s.Since
		} else {
			all.StoresAway = append(all.StoresAway, operator.StoreAway(s))
		}
	}
	all.Nodes = f.others.nodes(allAway)
	for _, c := range f.fleet.Nodes() {
		n := operator.Node{
			ID: c.Relay.String(), Role: Relay.String(), Region: c.Region, Version: c.Version,
			State: stateOf(&c), API: c.Control, LastHeartbeat: now.Add(-c.Age),
			Allocations: c.Allocations, Bound: c.Players, Links: c.Links, Matches: c.Matches, Load: c.Load,
			Seats: c.Taken, MaxSeats: c.Seats,
		}
		if c.Up > 0 {
			n.Since = n.LastHeartbeat.Add(-c.Up)
			n.Traffic = operator.Traffic(c.Traffic)
		} else { // Its version announces no more.
			n.Allocations = c.Players
		}
		for _, what := range c.Lacks() {
			n.Lacks = append(n.Lacks, string(what))
		}
		for _, e := range c.Endpoints {
			if e.ConnectionType == "udp" {
				n.UDP = append(n.UDP, net.JoinHostPort(e.Host, strconv.Itoa(int(e.Port))))
			}
		}
		all.Nodes = append(all.Nodes, n)
	}
	return all
}

func stateOf(c *placement.Candidate) string {
	switch {
	case c.Unknown:
		return operator.StateUnknown
	case c.Stopped:
		return operator.StateStopped
	case c.IsDead():
		return operator.StateDead
	case c.Draining:
		return "draining"
	case c.Suspect:
		return operator.StateSuspect
	}
	return "ready"
}

const (
	// findWithin limits the time to find the relay of an allocation and to call it. Half
	// of it is for the store, which has the homes of hosts.
	findWithin = 2 * time.Second
	askAtOnce  = 64
	maxNamed   = 8
)

// fleetOperator implements admin.Fleet: it passes an operator's requests from an API process
// to the relays. It has no state, and its functions may be called concurrently.
type fleetOperator struct {
	nodes func() []placement.Candidate
	// ready returns the reason for which nodes may be incomplete, nil if they are not.
	ready  func() error
	dial   func(placement.Node) rpc.Operator
	homeOf func(context.Context, proto.AllocationID) (placement.Home, error)
}

var _ admin.Fleet = fleetOperator{}

func (f *frontEnd) operator() fleetOperator {
	return fleetOperator{nodes: f.fleet.Nodes, ready: f.fleet.Ready, dial: f.dialer.Operator, homeOf: f.fleet.HomeOf}
}

// Drain drains a relay. Negative values mean those of its settings.
func (r fleetOperator) Drain(ctx context.Context, relay string, cfg engine.DrainConfig) (operator.DrainState, error) {
	return r.drainState(relay, func(o rpc.Operator) (operator.DrainState, error) { return o.Drain(ctx, cfg) })
}

func (r fleetOperator) Undrain(ctx context.Context, relay string) (operator.DrainState, error) {
	return r.drainState(relay, func(o rpc.Operator) (operator.DrainState, error) { return o.Undrain(ctx) })
}

func (r fleetOperator) Page(ctx context.Context, relay, target string) (operator.Page, error) {
	return callRelay(r, relay, func(o rpc.Operator) (operator.Page, error) { return o.Page(ctx, target) })
}

func (r fleetOperator) RelayOf(ctx context.Context, id proto.AllocationID) (string, error) {
	home, err := r.homeOf(ctx, id)
	if errors.Is(err, alloc.ErrNotFound) {
		return "", fmt.Errorf("no host has that id, and the store has no players: name the relay, by --node or as /nodes/NODE/allocations/%v: %w", id, alloc.ErrNotFound)
	}
	return home.Relay.String(), err
}

// operatorOf returns the operator of a relay, even of one that does not announce itself:
// it may only have lost the store.
func (r fleetOperator) operatorOf(relay string) (rpc.Operator, error) {
	nodes := r.nodes()
	i := slices.IndexFunc(nodes, func(c placement.Candidate) bool { return c.Relay.String() == relay })
	if i < 0 {
		return nil, fmt.Errorf("relay %s has left the fleet: %w", relay, alloc.ErrUnavailable)
	}
	return r.dial(nodes[i].Node), nil
}

func (r fleetOperator) drainState(relay string, do func(rpc.Operator) (operator.DrainState, error)) (operator.DrainState, error) {
	s, err := callRelay(r, relay, do)
	s.Deadline = s.Deadline.Truncate(time.Second)
	return s, err
}

func callRelay[T any](r fleetOperator, relay string, do func(rpc.Operator) (T, error)) (answer T, err error) {
	o, err := r.operatorOf(relay)
	if err == nil {
		answer, err = do(o)
	}
	return answer, clusterError(err)
}

// clusterError returns an error that an operator expects without the name of the relay.
func clusterError(err error) error {
	for _, known := range []error{operator.ErrFinal, engine.ErrKickHost, alloc.ErrNotFound} {
		if errors.Is(err, known) {
			return known
		}
	}
	return err
}

func (r fleetOperator) End(ctx context.Context, id proto.AllocationID) error {
	return r.onRelayOf(ctx, id, func(ctx context.Context, o rpc.Operator) (bool, error) { return o.Close(ctx, id) })
}

func (r fleetOperator) Kick(ctx context.Context, id proto.AllocationID) error {
	return r.onRelayOf(ctx, id, func(ctx context.Context, o rpc.Operator) (bool, error) { return o.Kick(ctx, id) })
}

type relayCall func(context.Context, rpc.Operator) (bool, error)

// onRelayOf calls the relay of an allocation: for a host the one in the store, else all
// live relays.
func (r fleetOperator) onRelayOf(ctx context.Context, id proto.AllocationID, do relayCall) error {
	ctx, cancel := context.WithTimeout(ctx, findWithin)
	defer cancel()
	nodes := r.nodes()
	home, known := r.home(ctx, id)
	if !known {
		return r.onAllRelays(ctx, nodes, do)
	}
	i := slices.IndexFunc(nodes, func(c placement.Candidate) bool { return c.Relay == home.Relay })
	if i < 0 {
		return fmt.Errorf("the host is at relay %v, which does not announce itself: %w", home.Relay, alloc.ErrUnavailable)
	}
	_, err := do(ctx, r.dial(nodes[i].Node))
	return clusterError(err)
}

func (r fleetOperator) home(ctx context.Context, id proto.AllocationID) (placement.Home, bool) {
	ctx, cancel := context.WithTimeout(ctx, findWithin/2)
	defer cancel()
	h, err := r.homeOf(ctx, id)
	return h, err == nil
}

// onAllRelays calls all relays until the one with the allocation has answered. A relay that
// has restarted lately cannot know, and keeps the allocation from coming back. Without the
// store all relays seem dead, and are called.
func (r fleetOperator) onAllRelays(ctx context.Context, nodes []placement.Candidate, do relayCall) error {
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
				if nodes[i].Age > placement.DeadAfter && unsure == nil {
					v.err = errNotAnnounced
				} else if v.found, v.err = do(all, r.dial(nodes[i].Node)); v.final() {
					cancel() // No other relay has it.
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

type relayResult struct {
	found bool
	err   error
}

func (v relayResult) final() bool {
	return v.err == nil && v.found || errors.Is(v.err, engine.ErrKickHost)
}

// errNotAnnounced is the result of a relay that was not called since it seems dead. Its
// allocations may come back with it.
var errNotAnnounced = fmt.Errorf("%w: the relay does not announce itself", alloc.ErrUnavailable)

// notFoundError returns the error if no relay certainly had the allocation: nil if it can
// only be one that was kept from coming back, else an error that names the relays that may
// have it.
func notFoundError(nodes []placement.Candidate, verdicts []relayResult, unsure error) error {
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
			return fmt.Errorf("no known relay has it, and there may be others: %w", unsure)
		}
		return missing
	}
	named := silent[:min(len(silent), maxNamed)]
	if more := len(silent) - maxNamed; more > 0 {
		named = append(named[:maxNamed:maxNamed], fmt.Sprintf("  and %d more", more))
	}
	return fmt.Errorf("%w: %d of %d relays do not have it, and these did not answer\n%s\nIf one of them has it, nothing was done: try again",
		alloc.ErrUnavailable, len(nodes)-len(silent), len(nodes), strings.Join(named, "\n"))
}

// Errors of a process of a fleet without the settings that it needs.
var (
	ErrNoStore = errors.New("store: ferry relay and ferry api need a store, redis://HOST:6379; ferry serve on one machine needs none")
	ErrNoFiles = errors.New("cluster_ca, cluster_cert, cluster_key: relays and API processes authenticate each other by certificates, which ferry ctl cluster-ca creates")
)

// storeConfigs returns the configurations of the stores of a fleet: one, or those of regions by their
// symbols. A relay gets the one of its region.
func storeConfigs(c *config.Config, mode Mode, log *slog.Logger) ([]redisstore.Config, error) {
	base, err := baseStoreConfig(c, mode, log)
	switch {
	case len(c.RegionStores) == 0 && c.Store == "":
		return nil, ErrNoStore
	case len(c.RegionStores) == 0:
		base.URL = string(c.Store)
		return []redisstore.Config{base}, err
	case c.Store != "":
		err = errors.Join(err, errors.New("store, region_stores: set one of them: with region_stores each region has its own store"))
	}
	base.Symbols = make(map[string]string)
	regions := make(map[string]bool)
	var all []redisstore.Config
	for i := range c.RegionStores {
		s := &c.RegionStores[i]
		if regions[s.Region] || base.Symbols[s.CodeSymbol] != "" {
			err = errors.Join(err, fmt.Errorf("region_stores[%d]: the region %s or its code_symbol %s is there twice", i, s.Region,
				s.CodeSymbol))
		}
		regions[s.Region], base.Symbols[s.CodeSymbol] = true, s.Region
		cfg := base
		cfg.URL, cfg.Region = string(s.Store), s.Region
		if s.PasswordFile != "" {
			var fileErr error
			cfg.Password, fileErr = readPassword(fmt.Sprintf("region_stores[%d].password_file", i), s.PasswordFile)
			err = errors.Join(err, fileErr)
		}
		if mode != Relay || s.Region == c.Region {
			all = append(all, cfg)
		}
	}
	if mode == Relay && !regions[c.Region] {
		err = errors.Join(err, fmt.Errorf("region_stores: has no store for %s, the region of this relay", c.Region))
	}
	slices.SortFunc(all, func(a, b redisstore.Config) int { return cmp.Compare(a.Region, b.Region) })
	return all, err
}

func baseStoreConfig(c *config.Config, mode Mode, log *slog.Logger) (redisstore.Config, error) {
	cfg := redisstore.Config{Timeout: c.StoreTimeout, Logger: log, Relay: mode == Relay}
	var errs []error
	if c.StorePasswordFile != "" {
		var err error
		cfg.Password, err = readPassword("store_password_file", c.StorePasswordFile)
		errs = append(errs, err)
	}
	if c.StoreCA != "" {
		roots := x509.NewCertPool()
		if text, err := os.ReadFile(c.StoreCA); err != nil {
			errs = append(errs, fmt.Errorf("store_ca: %w", err))
		} else if !roots.AppendCertsFromPEM(text) {
			errs = append(errs, fmt.Errorf("store_ca: %s contains no certificate", c.StoreCA))
		}
		cfg.TLS = &tls.Config{MinVersion: tls.VersionTLS12, RootCAs: roots}
	}
	return cfg, errors.Join(errs...)
}

func readPassword(setting, file string) (string, error) {
	password, err := config.ReadSecret(file)
	if err != nil {
		err = fmt.Errorf("%s: %w", setting, err)
	}
	return string(password), err
}

// newStores creates the clients of the stores, and the signer of what they write. It opens
// no connection. Only the admin pages stop after them, since relays deregister in the store.
func newStores(o *Options) (*redisstore.Stores, parts.Part, error) {
	configs, err := storeConfigs(&o.Config, o.Mode, o.Logger)
	if err != nil {
		return nil, parts.Part{}, err
	}
	var relay alloc.RelayID
	if o.Mode == Relay {
		relay = o.Identity.Relay
	}
	signer, err := rpc.NewSigner(clusterFiles(&o.Config), relay)
	if err != nil {
		return nil, parts.Part{}, err
	}
	var all []*redisstore.Store
	for _, cfg := range configs {
		cfg.Signer = signer
		if cfg.Region != "" {
			cfg.Logger = o.Logger.With("region", cfg.Region)
		}
		store, err := redisstore.New(cfg)
		if err != nil {
			return nil, parts.Part{}, errors.Join(fmt.Errorf("store: %w", err), redisstore.NewStores(all...).Close())
		}
		all = append(all, store)
	}
	stores := redisstore.NewStores(all...)
	run := func(ctx context.Context) error {
		var reloading sync.WaitGroup
		defer reloading.Wait()
		reloading.Go(func() { signer.Run(ctx) })
		return errors.Join(stores.Run(ctx), stores.Close())
	}
	return stores, parts.Part{Name: "store", Run: run, Free: stores.Close}, nil
}

// checkRegions returns an error if a store contradicts what the settings of this process say of regions.
// One that does not answer yet refuses all calls when it does.
func checkRegions(ctx context.Context, stores *redisstore.Stores, mode Mode, region string) error {
	var errs []error
	for _, s := range stores.All() {
		if s.Regions.Own() != "" {
			_ = s.Ping(ctx) // Before any call the store compares the regions.
			errs = append(errs, s.Regions.Err())
			continue
		}
		published, err := stores.PublishedRegion(ctx)
		switch {
		case err != nil || published == "":
		case mode == API:
			errs = append(errs, fmt.Errorf("store: it is that of region %q of a fleet in which each region has its own: set region_stores", published))
		case published != region:
			errs = append(errs, fmt.Errorf("store: it is that of region %q, and this relay is of %q", published, region))
		}
	}
	return errors.Join(errs...)
}

func storeSetting(region string) string {
	if region == "" {
		return "store"
	}
	return "region_stores, region " + region
}

func clusterFiles(c *config.Config) rpc.Files {
	return rpc.Files{Certificate: c.ClusterCert, Key: c.ClusterKey, CA: c.ClusterCA}
}

// checkFleet checks the settings of a process of a fleet. It opens no connection.
func checkFleet(c *config.Config, mode Mode) error {
	if !mode.isFleetMember() {
		return nil
	}
	var errs []error
	configs, err := storeConfigs(c, mode, nil)
	errs = append(errs, err)
	for _, cfg := range configs {
		if _, err := redisstore.ParseURL(cfg.URL); err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", storeSetting(cfg.Region), err))
		}
	}
	files := clusterFiles(c)
	if files.Certificate == "" || files.Key == "" || files.CA == "" {
		errs = append(errs, ErrNoFiles)
	} else if _, err := tls.LoadX509KeyPair(files.Certificate, files.Key); err != nil {
		errs = append(errs, fmt.Errorf("cluster_cert, cluster_key: %w", err))
	} else if mode == API {
		_, err := rpc.NewDialer(rpc.DialerConfig{Files: files})
		errs = append(errs, err)
	}
	if mode == Relay {
		// The port may not be known yet, and the advertised endpoints are checked
		// elsewhere.
		_, err := controlAddress(c.ClusterAdvertise, c.Cluster.AddrPort, nil)
		if !errors.Is(err, errNoControlAddress) {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

var errNoControlAddress = errors.New("cluster_advertise: the address of the relay's cluster listener for API processes is not known")

// controlAddress returns the address at which API processes reach the listener at listen:
// that of the settings, else the address itself, else the first advertised one.
func controlAddress(advertise string, listen netip.AddrPort, advertised []alloc.ServerEndpoint) (string, error) {
	port := strconv.Itoa(int(listen.Port()))
	switch {
	case advertise != "":
		host, given, err := net.SplitHostPort(advertise)
		if err != nil {
			host, given = strings.Trim(advertise, "[]"), port
		}
		if n, err := strconv.ParseUint(given, 10, 16); host == "" || err != nil || n == 0 && given != port {
			return "", fmt.Errorf("cluster_advertise: %q is neither HOST nor HOST:PORT", advertise)
		}
		return net.JoinHostPort(host, given), nil
	case !listen.Addr().IsUnspecified():
		return listen.String(), nil
	case len(advertised) == 0:
		return "", errNoControlAddress
	}
	return net.JoinHostPort(advertised[0].Host, port), nil
}

func hostname() string {
	name, err := os.Hostname()
	if err != nil {
		return "api"
	}
	return name
}
