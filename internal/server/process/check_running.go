package process

import (
	"bytes"
	"cmp"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/netip"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/ferryrelay/ferry/internal/fleet/operator"
	"github.com/ferryrelay/ferry/internal/server/config"
	"github.com/ferryrelay/ferry/internal/server/host/foreign"
	"github.com/ferryrelay/ferry/internal/server/operator/history"
)

// maxAdminPage bounds an answer of the admin pages in bytes.
const maxAdminPage = 16 << 20

// adminClient asks the process at the admin address of settings.
type adminClient struct {
	http  *http.Client
	url   string
	token string
}

// newAdminClient returns a client for the scheme and the token that the settings imply. A token goes over TLS to the
// process with the key of tls_cert only, or with a certificate by ACME.
func newAdminClient(c *config.Config, mode Mode) (*adminClient, error) {
	token, err := adminToken(c)
	if err != nil {
		return nil, err
	}
	addr := c.Admin.AddrPort
	switch ip := addr.Addr(); {
	case ip == netip.IPv4Unspecified():
		addr = netip.AddrPortFrom(netip.AddrFrom4([4]byte{127, 0, 0, 1}), addr.Port())
	case ip == netip.IPv6Unspecified():
		addr = netip.AddrPortFrom(netip.IPv6Loopback(), addr.Port())
	}
	transport, scheme := new(http.Transport), "http://" // without a proxy: the process is on this machine
	if hasAdminTLS(c) {
		scheme = "https://"
		if transport.TLSClientConfig, err = adminTrust(c, mode, addr.Addr()); err != nil {
			return nil, err
		}
	}
	return &adminClient{
		http: &http.Client{
			Transport: transport, Timeout: checkTimeout,
			CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }, // with the token
		},
		url: scheme + addr.String(), token: token,
	}, nil
}

// adminTrust returns the configuration that accepts the certificate of the settings, whose name need not be the address.
func adminTrust(c *config.Config, mode Mode, at netip.Addr) (*tls.Config, error) {
	if c.ACME {
		names, err := acmeNames(c, mode)
		if err != nil {
			return nil, err
		}
		return &tls.Config{ServerName: acmeNameAt(names, at)}, nil
	}
	own, err := tls.LoadX509KeyPair(c.TLSCert, c.TLSKey)
	if err != nil {
		return nil, fmt.Errorf("tls_cert: %w", err)
	}
	return &tls.Config{
		InsecureSkipVerify: true, // VerifyConnection compares the key instead.
		VerifyConnection: func(s tls.ConnectionState) error {
			if !bytes.Equal(s.PeerCertificates[0].RawSubjectPublicKeyInfo, own.Leaf.RawSubjectPublicKeyInfo) {
				return errors.New("its certificate is not that of tls_cert")
			}
			return nil
		},
	}, nil
}

// close frees the connections.
func (a *adminClient) close() { a.http.CloseIdleConnections() }

// statusError is the answer of a process to a request that it does not grant.
type statusError struct {
	status int
	text   string
}

func (e statusError) Error() string { return fmt.Sprintf("%s (status %d)", e.text, e.status) }

// get returns a page. Its error is a statusError if the process answers.
func (a *adminClient) get(ctx context.Context, page string) ([]byte, error) {
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, a.url+page, nil)
	if err != nil {
		return nil, err
	}
	if a.token != "" {
		r.Header.Set("Authorization", "Bearer "+a.token)
	}
	resp, err := a.http.Do(r)
	if failed, ok := errors.AsType[*url.Error](err); ok {
		return nil, failed.Err // without the URL, which the caller names
	}
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(io.LimitReader(resp.Body, maxAdminPage))
	if err != nil || resp.StatusCode == http.StatusOK {
		return body, err
	}
	text := strings.TrimSpace(string(body))
	return nil, statusError{resp.StatusCode, cmp.Or(text, http.StatusText(resp.StatusCode))}
}

// running judges the process at the admin address.
func (k *Checker) running(ctx context.Context) {
	const subject = "process"
	a, err := newAdminClient(&k.Config, k.Mode)
	if err != nil {
		k.add(subject, stateSkipped, "it is not asked: "+err.Error(), "run this as a user who may read the file")
		return
	}
	defer a.close()
	_, err = a.get(ctx, "/readyz")
	if fault, do := adminFault(a, err); fault != "" {
		k.add(subject, stateProblem, fault, do)
		return
	}
	name := "a ferry"
	if h, known := foreign.FindHolder("tcp", k.Config.Admin.AddrPort); known {
		name = fmt.Sprintf("%s (process %d)", h.Program, h.Process)
	}
	if err != nil {
		k.add(subject, stateProblem, fmt.Sprintf("%s at %s is not ready: %v", name, a.url, err), "wait until it is, or see its log")
	} else {
		k.add(subject, stateOK, fmt.Sprintf("%s is ready at %s", name, a.url), "")
	}
	var inForce operator.Settings
	if err := a.decode(ctx, "/config", &inForce); err != nil {
		fault, do := adminFault(a, err)
		k.add("admin pages", stateProblem, cmp.Or(fault, err.Error()), cmp.Or(do, "see its log"))
		return
	}
	k.differences(inForce.Settings)
	workers := 0
	if k.Mode.hasRelay() {
		workers = k.relay(ctx, a)
	}
	metrics, err := a.get(ctx, "/metrics")
	if err != nil {
		k.add("open files", stateSkipped, err.Error(), "see its log")
		return
	}
	k.descriptors(metric(metrics, "process_open_fds"), metric(metrics, "process_max_fds"), workers)
}

// decode gets a page of JSON.
func (a *adminClient) decode(ctx context.Context, page string, into any) error {
	text, err := a.get(ctx, page)
	if err != nil {
		return err
	}
	if err := json.Unmarshal(text, into); err != nil {
		return fmt.Errorf("%s%s is no page of ferry: %w", a.url, page, err)
	}
	return nil
}

// adminFault says why the admin pages do not answer, and what to do. It is empty if err is nil or a page's own answer.
func adminFault(a *adminClient, err error) (fault, do string) {
	refused, answered := errors.AsType[statusError](err)
	const otherSettings = "; these settings are not those that it runs with"
	switch {
	case err == nil:
	case errors.Is(err, syscall.ECONNREFUSED):
		return "nothing listens at " + a.url, "start it, or give the settings that it runs with"
	case !answered && strings.Contains(err.Error(), "server gave HTTP response to HTTPS client"):
		return a.url + " speaks plain HTTP" + otherSettings, "restart it, or give the settings that it runs with"
	case answered && strings.Contains(refused.text, "HTTP request to an HTTPS server"):
		return a.url + " speaks TLS" + otherSettings, "restart it, or give the settings that it runs with"
	case !answered:
		return fmt.Sprintf("%s does not answer: %v", a.url, err), "see its log, or give the settings that it runs with"
	case refused.status == http.StatusUnauthorized && a.token == "":
		return a.url + " asks for a token, and these settings have none", "set admin_token_file as the process has it"
	case refused.status == http.StatusUnauthorized:
		return a.url + " does not accept the token in admin_token_file", "let the process read the file again (SIGHUP)"
	}
	return "", ""
}

// differences compares the settings in force with these. Secrets are hidden, and not compared; a setting that only one
// side knows is of another version.
func (k *Checker) differences(inForce []operator.Setting) {
	there, here := make(map[string]string), make(map[string]string)
	for _, v := range inForce {
		there[v.Key] = v.Value
	}
	for _, v := range (config.Loaded{Config: k.Config}).Values() {
		here[v.Key] = v.Value
	}
	keys := slices.Concat(slices.Collect(maps.Keys(there)), slices.Collect(maps.Keys(here)))
	slices.Sort(keys)
	var byReload, byRestart []string
	for _, key := range slices.Compact(keys) {
		was, known := there[key]
		now, set := here[key]
		list, _, isItem := strings.Cut(key, "[")
		if was == now || !isItem && (!known || !set) {
			continue
		}
		text := fmt.Sprintf("%s is %s, here %s", key, cmp.Or(was, "none"), cmp.Or(now, "none"))
		if slices.Contains(reloads, list) {
			byReload = append(byReload, text)
		} else {
			byRestart = append(byRestart, text)
		}
	}
	const subject = "settings in force"
	if len(byReload) > 0 {
		k.add(subject, stateAdvice, strings.Join(byReload, "; "), "ferry ctl reload, or give the settings that it runs with")
	}
	if len(byRestart) > 0 {
		k.add(subject, stateAdvice, strings.Join(byRestart, "; "), "restart it or run ferry ctl upgrade, or give the settings that it runs with")
	}
	if len(byReload)+len(byRestart) == 0 {
		k.add(subject, stateOK, "the process runs with these", "")
	}
}

// relay judges the relay of the process by its counters, and returns the number of its workers.
func (k *Checker) relay(ctx context.Context, a *adminClient) (workers int) {
	var st operator.Stats
	if err := a.decode(ctx, "/stats", &st); err != nil {
		k.add("relay", stateProblem, err.Error(), "give the settings that the process runs with, and their --role")
		return 0
	}
	if st.StateComplete {
		k.add("state file", stateOK, "the process stores what the next run must know", "")
	} else {
		k.add("state file", stateProblem, "the process cannot write it: after a crash join codes are lost, and players that were kicked may come back",
			"make space on the disk of state_dir and runtime_dir, or see its log; the relay tries again every 5 s")
	}
	if n := st.Drops["private"]; n > 0 {
		k.add("private sources", stateAdvice, fmt.Sprintf("the process has dropped %d datagrams %s", n, history.PrivateSource),
			"if they are players', set allow_private_sources: true; see docs/operating.md#containers-and-addresses-that-loop-back")
	}
	if n := st.Drops["unvalidated"]; n > 0 {
		k.add("limited paths", stateAdvice, fmt.Sprintf("the process has dropped %d datagrams, %s", n, history.RefusalText("unvalidated")),
			limitedPaths+"; see docs/security.md#path-validation")
	}
	k.outside(&st)
	return len(st.Workers)
}

const (
	// otherFiles are the files of a process besides sockets of players and workers.
	otherFiles = 100
	// usedUp is the part of the limit from which the alert FerryFilesAlmostUsedUp fires.
	usedUp = 0.8
)

// descriptors judges the limit of open files of the process, which need not be that of this one.
func (k *Checker) descriptors(used, limit float64, workers int) {
	const subject = "open files"
	c := &k.Config
	need := c.MaxHTTPConnections + workers + otherFiles
	if c.WebSocket && k.Mode.hasRelay() {
		need += c.MaxWebSockets
	}
	do := fmt.Sprintf("set LimitNOFILE=%d in the unit, or ulimit -Hn, and restart it", need)
	text := fmt.Sprintf("the process has %.0f of at most %.0f", used, limit)
	switch {
	case limit <= 0:
		k.add(subject, stateSkipped, "this system does not tell how many the process may have", "")
	case used > usedUp*limit:
		k.add(subject, stateProblem, text+", and refuses connections when they are used up", do)
	case limit < float64(need):
		k.add(subject, stateAdvice, text+fmt.Sprintf(", and its connections and sockets can be %d", need), do)
	default:
		k.add(subject, stateOK, text, "")
	}
}

// metric returns a value without labels in the text format of Prometheus, 0 if there is none.
func metric(text []byte, name string) float64 {
	for line := range strings.Lines(string(text)) {
		if value, ok := strings.CutPrefix(line, name+" "); ok {
			n, _ := strconv.ParseFloat(strings.TrimSpace(value), 64)
			return n
		}
	}
	return 0
}

// outside says how to check what this machine cannot see itself, and judges whether datagrams have come from elsewhere.
func (k *Checker) outside(st *operator.Stats) {
	const subject = "from outside"
	host := "ADDRESS"
	if len(k.Config.Advertise) > 0 {
		host = k.Config.Advertise[0].String()
	}
	arrived := uint64(0)
	for _, n := range st.Workers {
		arrived += n
	}
	if arrived > st.Outcomes["check"] { // those of the relay itself
		k.add(subject, stateSkipped, "whether players reach the UDP port can be seen from another network only", "run there: "+k.pingLine(host))
		return
	}
	k.add(subject, stateAdvice, "no datagram has come over UDP since "+st.Since.Format(time.RFC3339),
		"if players have tried: open the port for UDP in each firewall, and publish it: docker's -p 7777:7777 is TCP only, "+
			"-p 7777:7777/udp is needed too; then run from another network: "+k.pingLine(host))
}
