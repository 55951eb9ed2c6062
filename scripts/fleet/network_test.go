//go:build lab && linux

package fleet

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"

	"github.com/ferryrelay/ferry/scripts/lab"
)

const (
	relayCount = 3
	apiCount   = 2
	eu, us     = "eu", "us"
)

var regions = [relayCount]string{eu, eu, us}

// Address ranges of players, and the number of addresses per relay in each.
const (
	hostRange, joinerRange = 19, 18 // second byte of 198.x.0.0/16
	addrsPerRelay          = 4096
)

const (
	playersAddr = "203.0.113.2"
	storeAddr   = "10.77.0.5:6379"
)

func relayAddr(i int) string { return fmt.Sprintf("203.0.113.%d", 11+i) }

// relayName is the host name that the API returns for WebSocket. The test's
// players connect to the relay over ws instead of through a TLS proxy with that
// name.
func relayName(i int) string { return fmt.Sprintf("relay%d.fleet.example", i+1) }

func apiAddr(i int) string { return fmt.Sprintf("203.0.113.%d", 21+i) }

// firstPlayer returns the first address of a relay's players on one side.
func firstPlayer(side byte, relay int) netip.Addr {
	return netip.AddrFrom4([4]byte{198, side, byte(relay * addrsPerRelay / 256), 1})
}

// network is the namespaces and the bridge between them. It is immutable.
type network struct {
	players, store lab.Namespace
	relays, apis   []lab.Namespace

	bridge  lab.Namespace
	cleanup *lab.CleanupProcess
}

// newNetwork creates the network. On error nothing is left.
func newNetwork() (*network, error) {
	roles := []string{"bridge", "players", "store"}
	for i := range relayCount {
		roles = append(roles, fmt.Sprintf("relay%d", i+1))
	}
	for i := range apiCount {
		roles = append(roles, fmt.Sprintf("api%d", i+1))
	}
	all, j, err := lab.NewNamespaces(roles...)
	if err != nil {
		return nil, err
	}
	n := &network{
		bridge: all[0], players: all[1], store: all[2],
		relays: all[3 : 3+relayCount], apis: all[3+relayCount:], cleanup: j,
	}
	if err := n.build(); err != nil {
		return nil, errors.Join(err, n.close())
	}
	return n, nil
}

func (n *network) close() error { return n.cleanup.Finish() }

func (n *network) build() error {
	err := errors.Join(n.bridge.IP("link add bridge type bridge"), n.bridge.IP("link set bridge up"))
	err = errors.Join(err, n.attach(n.players, "players", playersAddr+"/24"), n.attach(n.store, "store", "10.77.0.5/24"))
	for i, ns := range n.relays {
		err = errors.Join(err, n.attach(ns, fmt.Sprintf("relay%d", i+1), relayAddr(i)+"/24", privateAddr(relayAddr(i))+"/24"))
	}
	for i, ns := range n.apis {
		err = errors.Join(err, n.attach(ns, fmt.Sprintf("api%d", i+1), apiAddr(i)+"/24", privateAddr(apiAddr(i))+"/24"))
	}
	for _, second := range []int{hostRange, joinerRange} {
		to := fmt.Sprintf("198.%d.0.0/16", second)
		err = errors.Join(err, n.players.IP("route add local "+to+" dev lo"))
		for _, ns := range n.relays {
			err = errors.Join(err, ns.IP("route add "+to+" via "+playersAddr))
		}
	}
	return err
}

// privateAddr returns the private address with the same last byte.
func privateAddr(public string) string {
	b := netip.MustParseAddr(public).As4()
	return netip.AddrFrom4([4]byte{10, 77, 0, b[3]}).String()
}

func (n *network) attach(ns lab.Namespace, port string, addrs ...string) error {
	steps := []error{
		n.bridge.IP("link add " + port + " type veth peer name eth0 netns " + ns.Name),
		n.bridge.IP("link set " + port + " master bridge"),
		n.bridge.IP("link set " + port + " up"),
		// Without this, a GSO message crosses the veth as one datagram.
		ns.IP("link set eth0 gso_max_segs 1"),
		ns.IP("link set eth0 up"),
	}
	for _, addr := range addrs {
		steps = append(steps, ns.IP("addr add "+addr+" dev eth0"))
	}
	return errors.Join(steps...)
}

const (
	token      = "fleet-laboratory-backend-token-0123456789abcdef"
	playerPort = 7777
)

const (
	shared = `http: %[1]s:7777
admin: 127.0.0.1:7778
trusted_proxies: ["0.0.0.0/0", "::/0"]
log_format: json
log_level: info
store: redis://` + storeAddr + `
cluster_ca: %[2]s/ca.pem
cluster_cert: %[2]s/%[3]s.pem
cluster_key: %[2]s/%[3]s-key.pem
`
	relaySettings = shared + `udp: [%[1]s:7777]
state_dir: %[2]s/%[3]s-state
region: %[4]s
cluster: %[5]s:7779
advertise_name: %[6]s
`
	apiSettings = shared + `server_per_minute: 1000000000
tokens:
  - secret: ` + token + `
    project: laboratory
    environment: test
    kind: server
`
)

type machine struct {
	*lab.Process
	name string
	cfg  lab.ProcessConfig
}

// start starts or restarts the machine on its existing state.
func (m *machine) start() (err error) {
	m.Process, err = lab.StartProcess(m.cfg)
	return err
}

// machines are the processes of the fleet. The goroutine of the test owns it.
type machines struct {
	net    *network
	binary string
	dir    string // of all files; the fleet's certificates are in it

	store        *machine
	relays, apis []*machine
}

func startMachines(n *network, binary, dir string) (*machines, error) {
	m := &machines{net: n, binary: binary, dir: dir}
	if err := m.certify(); err != nil {
		return nil, err
	}
	m.store = m.redis()
	for i := range relayCount {
		one, err := m.relay(i)
		if err != nil {
			return nil, err
		}
		m.relays = append(m.relays, one)
	}
	for i := range apiCount {
		one, err := m.api(i)
		if err != nil {
			return nil, err
		}
		m.apis = append(m.apis, one)
	}
	for _, one := range m.all() {
		if err := one.start(); err != nil {
			return nil, errors.Join(err, m.stop())
		}
	}
	return m, nil
}

func (m *machines) all() []*machine {
	return append(append([]*machine{m.store}, m.relays...), m.apis...)
}

// stop stops all running machines, API nodes first, and returns the errors.
func (m *machines) stop() error {
	var errs []error
	all := m.all()
	for i := range all {
		if one := all[len(all)-1-i]; one.Process != nil && one.Alive() {
			if err := one.Stop(); err != nil {
				errs = append(errs, fmt.Errorf("%s: %w: %s", one.name, err, one.Log()))
			}
		}
	}
	return errors.Join(errs...)
}

// redis returns a store without persistence: a restart finds it empty.
func (m *machines) redis() *machine {
	host, port, _ := strings.Cut(storeAddr, ":")
	return &machine{name: "store", cfg: lab.ProcessConfig{
		In: m.net.store, Path: storeProgram,
		Args: []string{
			"--port", port, "--bind", host, "--protected-mode", "no", "--dir", m.dir, "--save", "", "--appendonly", "no", "--daemonize", "no",
		},
		Log:   m.file("store.log"),
		Ready: func(line string) bool { return strings.Contains(line, "Ready to accept connections") },
	}}
}

func (m *machines) relay(i int) (*machine, error) {
	name := fmt.Sprintf("relay%d", i+1)
	// This also creates the state directory with the id in the certificate.
	if err := m.certify("relay", "--name", name, "--state-dir", m.file(name+"-state")); err != nil {
		return nil, err
	}
	return m.ferry(m.net.relays[i], "relay", name, fmt.Sprintf(relaySettings,
		relayAddr(i), m.dir, name, regions[i], privateAddr(relayAddr(i)), relayName(i)))
}

func (m *machines) api(i int) (*machine, error) {
	name := fmt.Sprintf("api%d", i+1)
	if err := m.certify("api", "--name", name); err != nil {
		return nil, err
	}
	return m.ferry(m.net.apis[i], "api", name, fmt.Sprintf(apiSettings, apiAddr(i), m.dir, name))
}

func (m *machines) file(name string) string { return filepath.Join(m.dir, name) }

func (m *machines) certify(node ...string) error {
	out, err := exec.Command(m.binary, append([]string{"ctl", "cluster-ca", m.dir}, node...)...).CombinedOutput()
	if err != nil {
		return fmt.Errorf("ferry ctl cluster-ca: %w: %s", err, out)
	}
	return nil
}

func (m *machines) ferry(in lab.Namespace, role, name, settings string) (*machine, error) {
	path := m.file(name + ".yaml")
	if err := os.WriteFile(path, []byte(settings), 0o600); err != nil {
		return nil, err
	}
	return &machine{name: name, cfg: lab.ProcessConfig{
		In: in, Path: m.binary, Args: []string{role, "--config", path}, Log: m.file(name + ".log"), Ready: lab.FerryReady,
	}}, nil
}

func (m *machines) ctl(on lab.Namespace, args ...string) (out []byte, err error) {
	err = on.Do(func() error {
		out, err = exec.Command(m.binary, append([]string{"ctl"}, args...)...).Output()
		var failed *exec.ExitError
		if errors.As(err, &failed) {
			return fmt.Errorf("ferry ctl %s: %w: %s", strings.Join(args, " "), err, failed.Stderr)
		}
		return err
	})
	return out, err
}

func (m *machines) states(api int) (states [relayCount]string, err error) {
	out, err := m.ctl(m.net.apis[api], "nodes", "-o", "json")
	if err != nil {
		return states, err
	}
	var answer struct {
		Nodes []struct {
			State string   `json:"state"`
			UDP   []string `json:"udp"`
		} `json:"nodes"`
	}
	if err := json.Unmarshal(out, &answer); err != nil {
		return states, err
	}
	for i := range states {
		for _, n := range answer.Nodes {
			if slices.Contains(n.UDP, fmt.Sprintf("%s:%d", relayAddr(i), playerPort)) {
				states[i] = n.State
			}
		}
	}
	return states, nil
}
