package process

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/ferryrelay/ferry/internal/fleet/redisstore"
	"github.com/ferryrelay/ferry/internal/net/sock"
	"github.com/ferryrelay/ferry/internal/server/config"
	"github.com/ferryrelay/ferry/internal/server/host/foreign"
	"github.com/ferryrelay/ferry/internal/server/host/machine"
)

// Finding is one result of [Checker].
type Finding struct {
	Subject string `json:"subject"`
	// State is "ok", "advice" (it works, and could be better), "problem" or "skipped".
	State string `json:"state"`
	Text  string `json:"text"`
	// Do says what to do, empty if nothing.
	Do string `json:"do,omitempty"`
}

// Checker judges settings, and besides this machine or the process that runs with the settings. It
// opens sockets for a moment, connects to the store, and changes nothing.
type Checker struct {
	Config config.Config
	Mode   Mode
	// ModeBecause follows the mode in the text about the settings, and Unloaded is the error of
	// settings that config.Load could not use. Both may be zero.
	ModeBecause string
	Unloaded    error
	// Lookup resolves a name. Nil: the system's resolver.
	Lookup func(ctx context.Context, name string) ([]netip.Addr, error)
	// Addresses are those of this machine. Nil: the system is asked.
	Addresses []netip.Addr
	// Clock returns the state of the clock, and Space that of a directory's file system. Nil: those of
	// the system.
	Clock func() sock.ClockState
	Space func(dir string) (machine.Space, error)
	// Now returns the time. Nil: time.Now.
	Now func() time.Time

	all []Finding
}

const (
	// The states of a [Finding].
	stateOK, stateAdvice, stateProblem, stateSkipped = "ok", "advice", "problem", "skipped"

	// checkTimeout bounds each check that waits for another process.
	checkTimeout = 5 * time.Second
	// maxClockError is the largest error of the clock that tokens and quotas tolerate.
	maxClockError = time.Second
)

func (k *Checker) add(subject, state, text, do string) {
	k.all = append(k.all, Finding{subject, state, text, do})
}

// Check judges the settings, then the machine and the running process, if asked to.
func (k *Checker) Check(ctx context.Context, withMachine, withRunning bool) []Finding {
	k.all = nil
	k.settings()
	if withMachine {
		k.machine(ctx)
	}
	if withRunning {
		k.running(ctx)
	}
	return k.all
}

// machine judges the machine, whether or not a process runs.
func (k *Checker) machine(ctx context.Context) {
	if k.Lookup == nil {
		k.Lookup = func(ctx context.Context, name string) ([]netip.Addr, error) {
			return net.DefaultResolver.LookupNetIP(ctx, "ip", name)
		}
	}
	if k.Clock == nil {
		k.Clock = sock.ReadClock
	}
	if k.Space == nil {
		k.Space = machine.ReadSpace
	}
	if k.Now == nil {
		k.Now = time.Now
	}
	if k.Addresses == nil {
		k.Addresses = machineAddresses()
	}
	k.clock()
	k.resources()
	if k.Mode.hasRelay() {
		k.directories()
	}
	k.ports(ctx)
	if k.Mode.hasRelay() {
		k.addresses()
	}
	k.certificate("tls_cert", k.Config.TLSCert, k.Config.TLSKey, k.Config.AdvertiseName.Host)
	k.certificate("cluster_cert", k.Config.ClusterCert, k.Config.ClusterKey, "")
	k.names(ctx)
	k.store(ctx)
}

func (k *Checker) settings() {
	if err := errors.Join(k.Unloaded, Check(k.Config, k.Mode)); err != nil {
		k.add("settings", stateProblem, err.Error(),
			fmt.Sprintf("change them until ferry check --role %s accepts them", k.Mode))
		return
	}
	k.add("settings", stateOK, fmt.Sprintf("ferry %s would start with them%s", k.Mode, k.ModeBecause), "")
	for _, w := range settingWarnings(k.Config, k.Mode) {
		k.add("settings", stateAdvice, w, "see docs/settings.md")
	}
	for _, a := range Advice(k.Config, k.Mode) {
		k.add("calls", stateAdvice, a, "see docs/security.md")
	}
}

func (k *Checker) clock() {
	switch c := k.Clock(); {
	case !c.Known:
		k.add("clock", stateSkipped, "this system does not tell whether its clock is synchronized", "")
	case !c.Synchronized:
		k.add("clock", stateAdvice, "it is not synchronized: tokens of players may be refused as expired, or not yet valid",
			"run chrony or systemd-timesyncd; a container has the clock of its host")
	case c.MaxError > maxClockError:
		k.add("clock", stateAdvice, fmt.Sprintf("its error may be %v", c.MaxError.Round(time.Millisecond)),
			"check the servers of chrony or systemd-timesyncd")
	default:
		k.add("clock", stateOK, fmt.Sprintf("synchronized, error at most %v", c.MaxError.Round(time.Millisecond)), "")
	}
}

// resources judges processors, network cards, and buffers and limits of the kernel.
func (k *Checker) resources() {
	for _, l := range machineReport(&k.Config) {
		state := stateOK
		if l.Change != "" {
			state = stateAdvice
		}
		k.add(l.Subject, state, l.Finding+", because "+l.Because, l.Change)
	}
}

const (
	// spareBytes and spareInodes are what the relay needs to write its files for the first time. Later it
	// writes each anew beside the old one.
	spareBytes  = 1 << 20
	spareInodes = 16
)

// directories judges the space for what a restart must know.
func (k *Checker) directories() {
	dirs := []struct{ setting, path string }{{"state_dir", k.Config.StateDir}}
	if runtime := k.Config.RuntimeDir; runtime != "" && runtime != k.Config.StateDir {
		dirs = append(dirs, struct{ setting, path string }{"runtime_dir", runtime})
	}
	for _, dir := range dirs {
		subject := dir.setting + " " + dir.path
		space, err := k.Space(existing(dir.path))
		need := spareBytes + machine.AllocatedBytes(dir.path)
		const lost = "; a relay that cannot write loses join codes and bans after a crash"
		switch {
		case err != nil:
			k.add(subject, stateSkipped, "its free space is not known: "+err.Error(), "")
		case space.Bytes < need:
			text := fmt.Sprintf("its file system has %d KiB free, and the relay needs %d KiB", space.Bytes>>10, need>>10)
			k.add(subject, stateProblem, text+lost,
				"make space there (df shows it), or set "+dir.setting+" to a directory elsewhere")
		case space.CountsInodes && space.Inodes < spareInodes:
			text := fmt.Sprintf("its file system has %d inodes free, and the relay needs %d", space.Inodes, spareInodes)
			k.add(subject, stateProblem, text+lost,
				"remove files there (df -i shows it), or set "+dir.setting+" to a directory elsewhere")
		default:
			k.add(subject, stateOK, fmt.Sprintf("%d MiB free", space.Bytes>>20), "")
		}
	}
}

// existing returns the closest directory that exists: the relay makes the others.
func existing(dir string) string {
	for {
		_, err := os.Stat(dir)
		if parent := filepath.Dir(dir); errors.Is(err, fs.ErrNotExist) && parent != dir {
			dir = parent
			continue
		}
		return dir
	}
}

// ports tries to open the ports. A port that is in use is no problem if the ferry that is ready at
// the admin address has it.
func (k *Checker) ports(ctx context.Context) {
	running := false
	if a, err := newAdminClient(&k.Config, k.Mode); err == nil {
		_, err = a.get(ctx, "/readyz")
		running = err == nil
		a.close()
	}
	ready, _ := foreign.FindHolder("tcp", k.Config.Admin.AddrPort)
	report := func(name, network string, addr netip.AddrPort, listen func() error) {
		subject := name + " " + addr.String()
		err := listen()
		if err == nil {
			k.add(subject, stateOK, "the port is free", "")
			return
		}
		text, do := bindFault(network, addr, err)
		holder, known := foreign.FindHolder(network, addr)
		switch {
		case !errors.Is(err, syscall.EADDRINUSE):
		case running && (!known || holder.Process == ready.Process):
			k.add(subject, stateOK, "in use, and a ferry is ready at "+k.Config.Admin.String(), "")
			return
		case running:
			text += fmt.Sprintf(", and is not the one that is ready at %v (process %d)", k.Config.Admin, ready.Process)
		case known && holder.Program == programName:
			text += fmt.Sprintf(", and none is ready at %v: it starts, drains, or has other settings", k.Config.Admin)
		}
		k.add(subject, stateProblem, text, do)
	}
	if k.Mode.hasRelay() {
		for _, addr := range k.Config.UDP {
			report("udp", "udp", addr.AddrPort, func() error {
				c, err := net.ListenUDP("udp", net.UDPAddrFromAddrPort(addr.AddrPort))
				if err == nil {
					err = c.Close()
				}
				return err
			})
		}
	}
	for name, addr := range map[string]config.Addr{"http": k.Config.HTTP, "admin": k.Config.Admin} {
		report(name, "tcp", addr.AddrPort, func() error {
			l, err := net.ListenTCP("tcp", net.TCPAddrFromAddrPort(addr.AddrPort))
			if err == nil {
				err = l.Close()
			}
			return err
		})
	}
	slices.SortStableFunc(k.all[len(k.all)-2:], func(a, b Finding) int { return strings.Compare(b.Subject, a.Subject) })
	if k.Config.ACME {
		k.challenge(ready.Process)
	}
}

// challenge says which port the authority of certificates must reach, and tries to open it, unless the running ferry
// has it for a moment.
func (k *Checker) challenge(running int) {
	names, err := acmeNames(&k.Config, k.Mode)
	if err != nil {
		return // settings says so.
	}
	port, do := alpnChallengePort, fmt.Sprintf("open it in each firewall, and let it lead to %v", k.Config.HTTP)
	if !isALPNChallenge(&k.Config) {
		port, do = httpChallengePort, "open it in each firewall; of a container, publish it with -p 80:80"
		addr := netip.AddrPortFrom(k.Config.HTTP.Addr(), httpChallengePort)
		l, err := net.ListenTCP("tcp", net.TCPAddrFromAddrPort(addr))
		if err == nil {
			err = l.Close()
		}
		subject := "acme " + addr.String()
		holder, known := foreign.FindHolder("tcp", addr)
		const other = "let port 443 lead to the API instead (http: 0.0.0.0:443, or advertise_name with :443)"
		switch {
		case err == nil, known && holder.Process == running:
			k.add(subject, stateOK, "ferry can listen there while the authority checks", "")
		case errors.Is(err, syscall.EACCES):
			text, _ := bindFault("tcp", addr, err)
			k.add(subject, stateProblem, text, "give the unit CAP_NET_BIND_SERVICE (AmbientCapabilities and CapabilityBoundingSet), or "+other)
		case errors.Is(err, syscall.EADDRINUSE):
			text, _ := bindFault("tcp", addr, err)
			k.add(subject, stateProblem, text, "end it, or "+other+", or let it terminate TLS for ferry (trusted_proxies, without acme)")
		default:
			text, again := bindFault("tcp", addr, err)
			k.add(subject, stateProblem, text, again)
		}
	}
	k.add("acme", stateSkipped, fmt.Sprintf("whether the authority reaches TCP port %d of %s can be seen from the Internet only",
		port, strings.Join(names, " and ")), do)
}

// addresses compares the advertised addresses with those of this machine.
func (k *Checker) addresses() {
	for _, host := range k.Config.Advertise {
		text := host.String()
		ip, err := netip.ParseAddr(text)
		if at, err2 := netip.ParseAddrPort(text); err != nil && err2 == nil {
			ip, err = at.Addr(), nil
		}
		switch {
		case err != nil:
			continue // A name: names looks it up.
		case slices.Contains(k.Addresses, ip.Unmap()), ip.IsLoopback():
			k.add("advertise "+text, stateOK, "it is an address of this machine", "")
		default:
			do := "check the forwarding of the router or cloud: " + k.pingLine(text)
			finding := "no address of this machine: an address translator (NAT) must forward its UDP port to this machine"
			if !k.Config.AllowPrivateSources {
				finding += "; players that it loops back, or a container's proxy passes on, have private addresses and are dropped, unless allow_private_sources is set"
			}
			k.add("advertise "+text, stateAdvice, finding, do)
		}
	}
	if len(k.Config.Advertise) == 0 && len(ownAddresses(Serve)) == 0 && k.Mode != Dev {
		k.add("advertise", stateProblem, "this machine has no public address, and none is advertised",
			"set advertise to the public address of the router or cloud")
	}
}

// pingLine is the command with which another machine checks the way to this one.
func (k *Checker) pingLine(host string) string {
	if _, err := netip.ParseAddrPort(host); err != nil && len(k.Config.UDP) > 0 {
		host = net.JoinHostPort(host, strconv.Itoa(int(k.Config.UDP[0].Port())))
	}
	return "ferry ping " + host
}

// certificate checks a certificate, its key, its end and its name.
func (k *Checker) certificate(setting, certFile, keyFile, name string) {
	if certFile == "" {
		return
	}
	pair, err := tls.LoadX509KeyPair(certFile, keyFile)
	if err != nil {
		do := "give a certificate in PEM with its chain, and its key"
		if errors.Is(err, os.ErrPermission) {
			do = "let the user of ferry read both files"
		}
		k.add(setting, stateProblem, err.Error(), do)
		return
	}
	f := certificateFaultOf(&pair, name, k.Now())
	if f.reason != "" {
		k.add(setting, stateProblem, "it "+f.text, f.do)
	}
	switch left := pair.Leaf.NotAfter.Sub(k.Now()); {
	case left <= 0:
	case endsSoon(pair.Leaf.NotBefore, pair.Leaf.NotAfter, k.Now()):
		k.add(setting, stateAdvice, fmt.Sprintf("it ends in %d days", int(left.Hours()/24)), "renew it; ferry reads a changed file within 10 s")
	case f.reason == "":
		k.add(setting, stateOK, fmt.Sprintf("valid until %s", pair.Leaf.NotAfter.Format(time.DateOnly)), "")
	}
}

// names resolves the names that players and API processes use.
func (k *Checker) names(ctx context.Context) {
	for setting, name := range map[string]string{"advertise_name": k.Config.AdvertiseName.Host,
		"cluster_advertise": k.Config.ClusterAdvertise} {
		if host, _, err := net.SplitHostPort(name); err == nil {
			name = host
		}
		if _, err := netip.ParseAddr(name); name == "" || err == nil {
			continue
		}
		within, cancel := context.WithTimeout(ctx, checkTimeout)
		found, err := k.Lookup(within, name)
		cancel()
		if err != nil {
			k.add(setting, stateProblem, fmt.Sprintf("%s does not resolve: %v", name, err), "create an A or AAAA record for it")
			continue
		}
		texts := make([]string, len(found))
		for i, ip := range found {
			texts[i] = ip.Unmap().String()
		}
		k.add(setting, stateOK, fmt.Sprintf("%s resolves to %s", name, strings.Join(texts, ", ")), "")
	}
}

// store connects to the store of a fleet.
func (k *Checker) store(ctx context.Context) {
	if !k.Mode.isFleetMember() || k.Config.Store == "" && len(k.Config.RegionStores) == 0 {
		return
	}
	const advice = "without the store no new match begins: check its address, password, certificate and firewall"
	configs, err := storeConfigs(&k.Config, k.Mode, nil)
	if err != nil {
		k.add("store", stateProblem, err.Error(), advice)
		return
	}
	within, cancel := context.WithTimeout(ctx, checkTimeout)
	defer cancel()
	for _, cfg := range configs {
		cfg.Timeout = checkTimeout // A first connection on a busy machine may take longer than a call of a process.
		subject := strings.TrimSpace("store " + cfg.Region)
		if err := redisstore.Ping(within, cfg); err != nil {
			k.add(subject, stateProblem, err.Error(), advice)
			continue
		}
		k.add(subject, stateOK, "it answers", "")
	}
}
