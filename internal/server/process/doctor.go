package process

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"os"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/ferryrelay/ferry/internal/fleet/operator"
	redisstore "github.com/ferryrelay/ferry/internal/fleet/redisstore"
	"github.com/ferryrelay/ferry/internal/net/sock"
	"github.com/ferryrelay/ferry/internal/server/config"
	"github.com/ferryrelay/ferry/internal/server/host/foreign"
	"github.com/ferryrelay/ferry/internal/server/operator/history"
)

// Diagnosis is one result of [Doctor].
type Diagnosis struct {
	Subject string `json:"subject"`
	// State is "ok", "advice" (it works, and could be better), "problem" or "skipped".
	State string `json:"state"`
	Text  string `json:"text"`
	// Do says what to do, empty if nothing.
	Do string `json:"do,omitempty"`
}

// Doctor examines the machine and the settings of a mode, as a new operator would. It opens
// sockets for a moment, connects to the store, and changes nothing.
type Doctor struct {
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
	// Clock returns the state of the clock. Nil: that of the system.
	Clock func() sock.ClockState
	// Now returns the time. Nil: time.Now.
	Now func() time.Time

	all []Diagnosis
}

const (
	// The states of a [Diagnosis].
	stateOK, stateAdvice, stateProblem, stateSkipped = "ok", "advice", "problem", "skipped"

	// doctorWithin bounds each check that waits for another machine.
	doctorWithin = 5 * time.Second
	// maxClockError is the largest error of the clock that tokens and quotas tolerate.
	maxClockError = time.Second
)

func (d *Doctor) add(subject, state, text, do string) {
	d.all = append(d.all, Diagnosis{subject, state, text, do})
}

// Examine returns all results.
func (d *Doctor) Examine(ctx context.Context) []Diagnosis {
	if d.Lookup == nil {
		d.Lookup = func(ctx context.Context, name string) ([]netip.Addr, error) {
			return net.DefaultResolver.LookupNetIP(ctx, "ip", name)
		}
	}
	if d.Clock == nil {
		d.Clock = sock.ReadClock
	}
	if d.Now == nil {
		d.Now = time.Now
	}
	if d.Addresses == nil {
		d.Addresses = machineAddresses()
	}
	d.all = nil
	d.settings()
	d.clock()
	d.machine()
	d.ports(ctx)
	if d.Mode.hasRelay() {
		d.addresses()
		d.running(ctx)
	}
	d.certificate("tls_cert", d.Config.TLSCert, d.Config.TLSKey, d.Config.AdvertiseName.Host)
	d.certificate("cluster_cert", d.Config.ClusterCert, d.Config.ClusterKey, "")
	d.names(ctx)
	d.store(ctx)
	if d.Mode.hasRelay() {
		d.outside()
	}
	return d.all
}

func (d *Doctor) settings() {
	if err := errors.Join(d.Unloaded, Check(d.Config, d.Mode)); err != nil {
		d.add("settings", stateProblem, strings.ReplaceAll(err.Error(), "app: ", ""),
			fmt.Sprintf("change them until ferry check --role %s accepts them", d.Mode))
		return
	}
	d.add("settings", stateOK, fmt.Sprintf("ferry %s would start with them%s", d.Mode, d.ModeBecause), "")
	for _, w := range settingWarnings(d.Config, d.Mode) {
		d.add("settings", stateAdvice, w, "see docs/settings.md")
	}
	for _, a := range Advice(d.Config, d.Mode) {
		d.add("calls", stateAdvice, a, "see docs/security.md")
	}
}

func (d *Doctor) clock() {
	switch c := d.Clock(); {
	case !c.Known:
		d.add("clock", stateSkipped, "this system does not tell whether its clock is synchronized", "")
	case !c.Synchronized:
		d.add("clock", stateAdvice, "it is not synchronized: tokens of players may be refused as expired, or not yet valid",
			"run chrony or systemd-timesyncd; a container has the clock of its host")
	case c.MaxError > maxClockError:
		d.add("clock", stateAdvice, fmt.Sprintf("its error may be %v", c.MaxError.Round(time.Millisecond)),
			"check the servers of chrony or systemd-timesyncd")
	default:
		d.add("clock", stateOK, fmt.Sprintf("synchronized, error at most %v", c.MaxError.Round(time.Millisecond)), "")
	}
}

func (d *Doctor) machine() {
	for _, l := range MachineReport(&d.Config) {
		state := stateOK
		if l.Change != "" {
			state = stateAdvice
		}
		d.add(l.Subject, state, l.Finding+", because "+l.Because, l.Change)
	}
}

// ports tries to open the ports. A port that is in use is no problem if the ferry that is ready at
// the admin address has it.
func (d *Doctor) ports(ctx context.Context) {
	running := d.isReady(ctx)
	ready, _ := foreign.FindHolder("tcp", d.Config.Admin.AddrPort)
	report := func(name, network string, addr netip.AddrPort, listen func() error) {
		subject := name + " " + addr.String()
		err := listen()
		if err == nil {
			d.add(subject, stateOK, "the port is free", "")
			return
		}
		text, do := bindFault(network, addr, err)
		holder, known := foreign.FindHolder(network, addr)
		switch {
		case !errors.Is(err, syscall.EADDRINUSE):
		case running && (!known || holder.Process == ready.Process):
			d.add(subject, stateOK, "in use, and a ferry is ready at "+d.Config.Admin.String(), "")
			return
		case running:
			text += fmt.Sprintf(", and is not the one that is ready at %v (process %d)", d.Config.Admin, ready.Process)
		case known && holder.Program == programName:
			text += fmt.Sprintf(", and none is ready at %v: it starts, drains, or has other settings", d.Config.Admin)
		}
		d.add(subject, stateProblem, text, do)
	}
	if d.Mode.hasRelay() {
		for _, addr := range d.Config.UDP {
			report("udp", "udp", addr.AddrPort, func() error {
				c, err := net.ListenUDP("udp", net.UDPAddrFromAddrPort(addr.AddrPort))
				if err == nil {
					err = c.Close()
				}
				return err
			})
		}
	}
	for name, addr := range map[string]config.Addr{"http": d.Config.HTTP, "admin": d.Config.Admin} {
		report(name, "tcp", addr.AddrPort, func() error {
			l, err := net.ListenTCP("tcp", net.TCPAddrFromAddrPort(addr.AddrPort))
			if err == nil {
				err = l.Close()
			}
			return err
		})
	}
	slices.SortStableFunc(d.all[len(d.all)-2:], func(a, b Diagnosis) int { return strings.Compare(b.Subject, a.Subject) })
}

// isReady reports whether a ferry is ready at the admin address.
func (d *Doctor) isReady(ctx context.Context) bool {
	return d.askAdmin(ctx, "/readyz", "", func(io.Reader) {})
}

// askAdmin gets a page of the running ferry, and reports whether it is there. Over TLS it sends no
// token, since it does not verify the certificate: its name need not be the address.
func (d *Doctor) askAdmin(ctx context.Context, page, token string, read func(io.Reader)) bool {
	ctx, cancel := context.WithTimeout(ctx, doctorWithin)
	defer cancel()
	client, scheme := http.DefaultClient, "http://"
	if d.Config.AdminToken != "" && !d.Config.Admin.Addr().Unmap().IsLoopback() { // as App.openAdmin
		transport := &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}}
		defer transport.CloseIdleConnections()
		client, scheme, token = &http.Client{Transport: transport}, "https://", ""
	}
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, scheme+d.Config.Admin.String()+page, nil)
	if err != nil {
		return false
	}
	if token != "" {
		r.Header.Set("Authorization", "Bearer "+token)
	}
	resp, err := client.Do(r)
	if err != nil {
		return false
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return false
	}
	read(resp.Body)
	return true
}

// addresses compares the advertised addresses with those of this machine.
func (d *Doctor) addresses() {
	for _, host := range d.Config.Advertise {
		text := host.String()
		ip, err := netip.ParseAddr(text)
		if at, err2 := netip.ParseAddrPort(text); err != nil && err2 == nil {
			ip, err = at.Addr(), nil
		}
		switch {
		case err != nil:
			continue // A name: names looks it up.
		case slices.Contains(d.Addresses, ip.Unmap()), ip.IsLoopback():
			d.add("advertise "+text, stateOK, "it is an address of this machine", "")
		default:
			do := "check the forwarding of the router or cloud: " + d.pingLine(text)
			finding := "no address of this machine: an address translator (NAT) must forward its UDP port to this machine"
			if !d.Config.AllowPrivateSources {
				finding += "; players that it loops back, or a container's proxy passes on, have private addresses and are dropped, unless allow_private_sources is set"
			}
			d.add("advertise "+text, stateAdvice, finding, do)
		}
	}
	if len(d.Config.Advertise) == 0 && len(ownAddresses(Serve)) == 0 && d.Mode != Dev {
		d.add("advertise", stateProblem, "this machine has no public address, and none is advertised",
			"set advertise to the public address of the router or cloud")
	}
}

// running looks whether a running relay drops datagrams from private networks, and whether it
// can store its state.
func (d *Doctor) running(ctx context.Context) {
	token, err := adminToken(&d.Config)
	if err != nil {
		return // settings reports it.
	}
	var st struct {
		operator.Stats
		StateComplete *bool `json:"state_complete"` // nil: a relay of an earlier version
	}
	d.askAdmin(ctx, "/stats", token, func(page io.Reader) { err = json.NewDecoder(page).Decode(&st) })
	switch {
	case err != nil: // nothing runs here
		return
	case st.StateComplete == nil || d.Mode == Dev: // which stores nothing
	case !*st.StateComplete:
		d.add("state file", stateProblem, "the running relay cannot write it: after a crash join codes are lost, and players that were kicked may come back",
			"make space on the disk of state_dir and runtime_dir, or see its log; the relay tries again every 5 s")
	default:
		d.add("state file", stateOK, "the running relay stores what the next run must know", "")
	}
	if n := st.Drops["private"]; n > 0 {
		d.add("private sources", stateAdvice, fmt.Sprintf("the running relay has dropped %d datagrams %s", n, history.PrivateSource),
			"if they are players', set allow_private_sources: true; see docs/operating.md#containers-and-addresses-that-loop-back")
	}
}

// pingLine is the command with which another machine checks the way to this one.
func (d *Doctor) pingLine(host string) string {
	if _, err := netip.ParseAddrPort(host); err != nil && len(d.Config.UDP) > 0 {
		host = net.JoinHostPort(host, strconv.Itoa(int(d.Config.UDP[0].Port())))
	}
	return "ferry ping " + host
}

// certificate checks a certificate, its key, its end and its name.
func (d *Doctor) certificate(setting, certFile, keyFile, name string) {
	if certFile == "" {
		return
	}
	pair, err := tls.LoadX509KeyPair(certFile, keyFile)
	if err != nil {
		do := "give a certificate in PEM with its chain, and its key"
		if errors.Is(err, os.ErrPermission) {
			do = "let the user of ferry read both files"
		}
		d.add(setting, stateProblem, err.Error(), do)
		return
	}
	f := certificateFaultOf(&pair, name, d.Now())
	if f.reason != "" {
		d.add(setting, stateProblem, "it "+f.text, f.do)
	}
	switch left := pair.Leaf.NotAfter.Sub(d.Now()); {
	case left <= 0:
	case left < certificateWarning:
		d.add(setting, stateAdvice, fmt.Sprintf("it ends in %d days", int(left.Hours()/24)), "renew it; ferry reads a changed file within 10 s")
	case f.reason == "":
		d.add(setting, stateOK, fmt.Sprintf("valid until %s", pair.Leaf.NotAfter.Format(time.DateOnly)), "")
	}
}

// names resolves the names that players and API processes use.
func (d *Doctor) names(ctx context.Context) {
	for setting, name := range map[string]string{"advertise_name": d.Config.AdvertiseName.Host,
		"cluster_advertise": d.Config.ClusterAdvertise} {
		if host, _, err := net.SplitHostPort(name); err == nil {
			name = host
		}
		if _, err := netip.ParseAddr(name); name == "" || err == nil {
			continue
		}
		within, cancel := context.WithTimeout(ctx, doctorWithin)
		found, err := d.Lookup(within, name)
		cancel()
		if err != nil {
			d.add(setting, stateProblem, fmt.Sprintf("%s does not resolve: %v", name, err), "create an A or AAAA record for it")
			continue
		}
		texts := make([]string, len(found))
		for i, ip := range found {
			texts[i] = ip.Unmap().String()
		}
		d.add(setting, stateOK, fmt.Sprintf("%s resolves to %s", name, strings.Join(texts, ", ")), "")
	}
}

// store connects to the store of a fleet.
func (d *Doctor) store(ctx context.Context) {
	if !d.Mode.isFleetMember() || d.Config.Store == "" && len(d.Config.RegionStores) == 0 {
		return
	}
	const advice = "without the store no new match begins: check its address, password, certificate and firewall"
	configs, err := storeConfigs(&d.Config, d.Mode, nil)
	if err != nil {
		d.add("store", stateProblem, err.Error(), advice)
		return
	}
	within, cancel := context.WithTimeout(ctx, doctorWithin)
	defer cancel()
	for _, cfg := range configs {
		subject := strings.TrimSpace("store " + cfg.Region)
		if err := redisstore.Ping(within, cfg); err != nil {
			d.add(subject, stateProblem, err.Error(), advice)
			continue
		}
		d.add(subject, stateOK, "it answers", "")
	}
}

// outside says how to check what this machine cannot see itself.
func (d *Doctor) outside() {
	host := "ADDRESS"
	if len(d.Config.Advertise) > 0 {
		host = d.Config.Advertise[0].String()
	}
	d.add("from outside", stateSkipped, "whether players reach the UDP port can be seen from another network only",
		"run there, while ferry runs: "+d.pingLine(host))
}
