// Package config reads the settings of the ferry binary.
//
// Every setting is one field of [Config]. The tags of the field determine its YAML
// key, its flag and its environment variable:
//
//	state_dir: /srv/ferry           YAML
//	--state-dir /srv/ferry          flag
//	FERRY_STATE_DIR=/srv/ferry      environment
//
// A flag overrides the environment, which overrides the file, which overrides the
// default. An empty environment variable counts as unset. Lists of structs, such as
// tokens and issuers, exist in the file only; a secret in them may be in a separate
// file.
//
// Unknown keys, duplicate keys, unknown FERRY_ variables and values out of range
// are errors. [Load] reports all of them at once, each with its position.
package config

import (
	"errors"
	"fmt"
	"net/netip"
	"time"

	"github.com/ferryrelay/ferry/alloc"
	"github.com/ferryrelay/ferry/internal/net/connlimit"
	"github.com/ferryrelay/ferry/proto"
)

// Config holds every setting of ferry serve, relay, api and dev.
//
// The tags of a field are the YAML key, from which its flag and its environment
// variable follow, the group and the help text with its placeholder in braces,
// and the range (min, max) or the choices (oneof). The help text is the
// documentation of a setting. A setting is of calls, of relays, of processes of a
// fleet or of relays of a fleet, or of all processes. It is off in ferry dev, or hidden
// from its help. A reload applies it, or changes the API by it.
type Config struct {
	UDP           []Addr   `key:"udp" of:"relay" common:"yes" group:"listen" usage:"UDP address of the relay, {HOST:PORT} with an IP address; port 0 picks a free port; repeat for IPv4 and IPv6"`
	HTTP          Addr     `key:"http" common:"yes" group:"listen" usage:"listen address of the Allocations API, {HOST:PORT}; [::] accepts IPv4 too"`
	Admin         Addr     `key:"admin" common:"yes" group:"listen" usage:"listen address of the admin pages, {HOST:PORT}; they have no authentication without admin_token_file"`
	AdminPublic   bool     `key:"admin_public" group:"listen" usage:"allow --admin on an address that other machines can reach; without admin_token_file they see metrics and health only"`
	OIDCIssuer    string   `key:"admin_oidc_issuer" reload:"yes" group:"listen" usage:"sign people in to the console at the OpenID Connect issuer {URL}, besides the token; needs admin_token_file, whose token signs their sessions; empty: the token only"`
	OIDCClientID  string   `key:"admin_oidc_client_id" reload:"yes" group:"listen" usage:"{ID} of the console at the issuer"`
	OIDCSecret    string   `key:"admin_oidc_secret_file" reload:"yes" group:"listen" usage:"{FILE} with the console's secret at the issuer; empty: a public client"`
	OIDCOperators []string `key:"admin_oidc_operators" reload:"yes" group:"listen" usage:"people who may do everything in the console: verified e-mail addresses, or group:NAME of the claim groups"`
	OIDCViewers   []string `key:"admin_oidc_viewers" reload:"yes" group:"listen" usage:"people who may only look, in the same form"`

	AdminToken string `key:"admin_token_file" common:"yes" group:"listen" usage:"{FILE} with the bearer token, 16 characters or more, that every admin page except /livez and /readyz requires; with a token and a certificate, --admin may be public (TLS)"`
	Advertise  []Host `key:"advertise" of:"relay" common:"yes" group:"listen" usage:"public {IP} of the relay, sent to players; one per address family; IP:PORT if a router maps the port"`
	WebSocket  bool   `key:"websocket" of:"relay" group:"listen" usage:"accept players over WebSocket at / of the API's port: wss with a certificate, otherwise ws"`

	AdvertiseName Name   `key:"advertise_name" of:"relay" common:"yes" group:"listen" usage:"DNS {NAME} of the wss endpoint, sent to players; NAME:PORT if the port is not the API's (behind a proxy that terminates TLS: not 443); without it players get no wss endpoint"`
	TLSCert       string `key:"tls_cert" common:"yes" group:"listen" usage:"certificate {FILE} of the API (PEM, with its chain); reloaded when it changes"`
	TLSKey        string `key:"tls_key" common:"yes" group:"listen" usage:"private key {FILE} of the API (PEM); reloaded when it changes"`
	ACME          bool   `key:"acme" dev:"hidden" common:"yes" group:"listen" usage:"obtain and renew the certificate of the API by ACME: for advertise_name or, without it, for the advertised addresses; port 80 must be free and reachable from the Internet, or the API's port be 443; accepts the terms of service of the certificate authority"`
	ACMEServer    string `key:"acme_server" dev:"hidden" group:"listen" usage:"{URL} of the ACME directory"`

	TrustedProxies      []Network `key:"trusted_proxies" dev:"hidden" common:"yes" group:"listen" usage:"{NETWORK} or IP from which the reverse proxies connect, whose X-Forwarded-For header is trusted; without a certificate, they terminate TLS, so that --http may be public"`
	ProxyProtocol       bool      `key:"proxy_protocol" dev:"hidden" group:"listen" usage:"require a PROXY protocol header, version 1 or 2, on every connection from trusted_proxies to the API's port"`
	AllowOrigins        []string  `key:"allow_origins" group:"listen" usage:"{ORIGIN} of web pages that may call the API and open WebSockets, such as https://game.example.org; empty: all origins"`
	AllowPrivateSources bool      `key:"allow_private_sources" of:"relay" group:"listen" usage:"accept clients from private networks although the advertised address is public"`

	StateDir         string        `key:"state_dir" dev:"off" common:"yes" group:"relay" usage:"{DIR} for the relay's id, its master key, the allocations that survive a restart, and ACME certificates"`
	RelayID          RelayID       `key:"relay_id" of:"relay" dev:"off" group:"relay" usage:"{ID} of the relay, a UUID, with which a new state_dir is made; empty: random. In Kubernetes the UID of the pod"`
	RuntimeDir       string        `key:"runtime_dir" dev:"hidden" group:"relay" usage:"{DIR} on a tmpfs for the files that a running relay changes, so that it never waits for a disk; empty: state_dir"`
	Region           string        `key:"region" of:"relay" common:"yes" group:"relay" usage:"{ID} of the region of this relay"`
	MaxConnections   int           `key:"max_connections" group:"relay" usage:"maximum number of players that a host may request" min:"1" max:"65535"`
	MaxAllocations   int           `key:"max_allocations" of:"relay" group:"relay" usage:"maximum number of concurrent allocations; 0: 1,000,000, or fewer if the memory limit requires it" min:"0" max:"67108864"`
	MaxSeats         int           `key:"max_seats" of:"relay" reload:"yes" group:"relay" usage:"maximum number of reserved seats: one per host and one per player that it requests; more than the machine has room for if hosts request more players than join; 0: no limit, in a fleet max_allocations" min:"0" max:"2147483647"`
	MaxContent       int           `key:"max_content" of:"relay" group:"relay" usage:"maximum payload of a relayed datagram in {BYTES}" min:"1" max:"1434"`
	IdleTimeout      time.Duration `key:"idle_timeout" of:"relay" group:"relay" usage:"end an allocation after this time without traffic in either direction, and after three times as long if its client sends nothing" min:"250ms" max:"24h"`
	HostAloneTimeout time.Duration `key:"host_alone_timeout" of:"relay" group:"relay" usage:"end a bound host without players after this time of silence, until its first player connects" min:"250ms" max:"24h"`
	BindTimeout      time.Duration `key:"bind_timeout" group:"relay" usage:"end an allocation that is not bound within this time" min:"250ms" max:"24h"`
	HostMigration    time.Duration `key:"host_migration" group:"relay" usage:"for this time after a host has left, let one of its players take its place under the same join code (POST /v1/migrate); a host that was silent for 70 % of idle_timeout has left; relays and API processes of a fleet need the same value; 0: never" min:"0s" max:"5m"`
	RecoverFor       time.Duration `key:"recover_for" of:"relay" dev:"off" group:"relay" usage:"after a restart, restore allocations of the previous run for this time; 0 disables recovery" min:"0s" max:"1h"`
	DrainTimeout     time.Duration `key:"drain_timeout" of:"relay" dev:"hidden" common:"yes" group:"relay" usage:"on SIGTERM, refuse new allocations and wait at most this time for the running ones to end; 0 exits at once" min:"0s" max:"168h"`
	Workers          int           `key:"workers" of:"relay" group:"relay" usage:"number of sockets and threads per UDP address; 0: one per processor" min:"0" max:"256"`
	WorkerCPUs       CPUs          `key:"worker_cpus" of:"relay" group:"relay" usage:"pin the workers of each UDP address to these {CPUS}, one to each, such as 0-31,64-95; sets the number of workers; if the network cards' interrupts are spread over all of them, each worker gets the datagrams of its CPU; empty: not pinned"`
	GSO              bool          `key:"gso" of:"relay" group:"relay" usage:"send the datagrams of a batch to one player as one message (UDP GSO), if the kernel supports it"`
	ReceiveDelay     time.Duration `key:"receive_delay" of:"relay" group:"relay" usage:"wait at most this time for more datagrams, while the worker measures that this saves processor time; adds latency; 0 never waits" min:"0s" max:"10ms"`
	XDP              string        `key:"xdp" of:"relay" group:"relay" usage:"relay between plain UDP players in the kernel, at {PLACE}; needs Linux 6.6 on amd64, CAP_BPF, CAP_NET_ADMIN and CAP_PERFMON, and takes the memory of all allocations at the start: off; native: XDP in the network card's driver; tc: the tc hook of any Ethernet interface; auto: tc where the kernel allows it, otherwise off" oneof:"off,auto,native,tc"`
	XDPInterfaces    []string      `key:"xdp_interfaces" of:"relay" group:"relay" usage:"{NAMES} of the interfaces of xdp; empty: those that have an address of udp"`

	JoinerDatagrams int `key:"joiner_datagrams" of:"relay" dev:"off" reload:"yes" group:"limits" usage:"rate limit of a joiner in datagrams per second; 0: no limit" min:"0" max:"8000000"`
	JoinerBytes     int `key:"joiner_bytes" of:"relay" dev:"off" reload:"yes" group:"limits" usage:"rate limit of a joiner in bytes per second; 0: no limit" min:"0" max:"2147483647"`
	HostDatagrams   int `key:"host_datagrams" of:"relay" dev:"off" reload:"yes" group:"limits" usage:"rate limit of a host in datagrams per second; 0: no limit" min:"0" max:"8000000"`
	HostBytes       int `key:"host_bytes" of:"relay" dev:"off" reload:"yes" group:"limits" usage:"rate limit of a host in bytes per second; 0: no limit" min:"0" max:"2147483647"`

	PlayerPerMinute    int `key:"player_per_minute" of:"calls" dev:"off" reload:"api" group:"limits" usage:"rate limit of a player's token, in requests per minute and API call; of a static token, at each client address; a third of it may be reserved and not bound" min:"1" max:"1000000000"`
	ServerPerMinute    int `key:"server_per_minute" of:"calls" dev:"off" reload:"api" group:"limits" usage:"rate limit of a token of kind server, in requests per minute and API call; a tenth of it may be unknown join codes" min:"1" max:"1000000000"`
	PlayerHosts        int `key:"player_hosts" of:"relay" dev:"off" reload:"yes" group:"limits" usage:"maximum number of live hosts of a player at a relay, which may all have max_connections players; and twice as many live joins; a player is a subject of issuers, or one that a backend names; beyond it, its own longest-silent one ends if it was never bound or silent for 10 s, otherwise the call is refused; 0: no limit" min:"0" max:"67108864"`
	PlayerSeatsPerHost int `key:"player_seats_per_host" of:"relay" dev:"off" reload:"yes" group:"limits" usage:"maximum number of live joins of a player at one host; beyond it as for player_hosts; 0: no limit" min:"0" max:"67108864"`
	MaxHTTPConnections int `key:"max_http_connections" dev:"off" group:"limits" usage:"maximum number of concurrent connections to the API; at most a sixteenth of them from one address, except of trusted proxies; one more closes another that has brought no valid token, from the network with most of them" min:"1" max:"1000000"`

	MaxWebSockets   int `key:"max_websockets" of:"relay" group:"limits" usage:"maximum number of concurrent WebSockets; at most a sixteenth of them from one address; they do not count as connections to the API" min:"1" max:"1000000"`
	MaxDTLSSessions int `key:"max_dtls_sessions" of:"relay" group:"limits" usage:"maximum number of concurrent DTLS sessions, 2 KB each" min:"1" max:"4194304"`

	LogLevel  string `key:"log_level" reload:"yes" common:"yes" group:"log" usage:"minimum {LEVEL} of log records: debug, info, warn or error" oneof:"debug,info,warn,error"`
	LogFormat string `key:"log_format" common:"yes" group:"log" usage:"{FORMAT} of log records: text or json; also of start-up lines and of the error at the end" oneof:"text,json"`

	AuditFile string `key:"audit_file" group:"log" usage:"append a line of JSON for each change that an operator makes to {FILE}; reopened by a reload; empty: only the log and the console have them"`

	Capture bool `key:"capture" reload:"yes" group:"log" usage:"allow operators to capture the messages of a match, with what players send each other, by ferry ctl capture and the console; each capture is audited"`

	AdmissionURL        string `key:"admission_url" of:"calls" reload:"yes" group:"hooks" usage:"request admission of each allocation from {URL} before it is made, within 1 s; http:// in private networks only; empty: no admission check"`
	AdmissionSecretFile string `key:"admission_secret_file" of:"calls" reload:"yes" group:"hooks" usage:"{FILE} with the secret, 16 characters or more, that signs admission requests"`
	AdmissionFailOpen   bool   `key:"admission_fail_open" of:"calls" reload:"yes" group:"hooks" usage:"admit players if the admission request fails; otherwise they must retry"`
	WebhookURL          string `key:"webhook_url" reload:"yes" group:"hooks" usage:"send events of allocations and players to {URL}; http:// in private networks only; empty: no webhook"`
	WebhookSecretFile   string `key:"webhook_secret_file" reload:"yes" group:"hooks" usage:"{FILE} with the secret, 16 characters or more, that signs webhook messages; required with webhook_url"`

	Store             Secret        `key:"store" of:"fleet" common:"yes" group:"fleet" usage:"{URL} of the store that the fleet shares: redis://, rediss://, redis+sentinel:// or redis+cluster://; it may contain a password"`
	StorePasswordFile string        `key:"store_password_file" of:"fleet" group:"fleet" usage:"{FILE} with the password of the store, if its URL has none"`
	StoreCA           string        `key:"store_ca" of:"fleet" group:"fleet" usage:"{FILE} (PEM) with the authorities that verify the store's certificate; empty: those of the system"`
	StoreTimeout      time.Duration `key:"store_timeout" group:"fleet" usage:"timeout of a call to the store, after which the API returns 503; raise it above 70ms for a distant or busy store" min:"10ms" max:"10s"`
	Cluster           Addr          `key:"cluster" of:"fleet relay" common:"yes" group:"fleet" usage:"address at which a relay serves the API processes of its fleet, {HOST:PORT}; keep it in a private network"`
	ClusterAdvertise  string        `key:"cluster_advertise" of:"fleet relay" group:"fleet" usage:"{HOST} or HOST:PORT at which API processes reach the cluster address; empty: that address or, if it is a wildcard, the first advertised address"`
	ClusterCA         string        `key:"cluster_ca" of:"fleet" common:"yes" group:"fleet" usage:"{FILE} (PEM) with the certificate authority of the fleet; ferry ctl cluster-ca creates it"`
	ClusterCert       string        `key:"cluster_cert" of:"fleet" common:"yes" group:"fleet" usage:"certificate {FILE} (PEM) of this process in its fleet"`
	ClusterKey        string        `key:"cluster_key" of:"fleet" common:"yes" group:"fleet" usage:"private key {FILE} (PEM) of this process in its fleet"`
	RegionDescription string        `key:"region_description" of:"fleet relay" group:"fleet" usage:"display {NAME} of the relay's region; empty: its id"`

	Tokens       []Token       `key:"tokens" of:"calls" reload:"api" usage:"bearer tokens of the API, mostly of backends"`
	Issuers      []Issuer      `key:"issuers" of:"calls" reload:"api" usage:"issuers whose JSON Web Tokens the API accepts, mostly of players"`
	Quotas       []Quota       `key:"quotas" of:"calls" reload:"yes" usage:"limits of single projects; a project that is not in the list has no limit"`
	RegionStores []RegionStore `key:"region_stores" of:"fleet" usage:"a store for each region, instead of store, so that the end of a store affects one region; the same list on all processes of the fleet (fleet only)"`
}

const (
	port        = 7777 // UDP and HTTP
	adminPort   = 7778
	clusterPort = 7779 // a relay serves the API processes of its fleet here
)

// LetsEncrypt is the ACME directory of Let's Encrypt, the default of acme_server.
const LetsEncrypt = "https://acme-v02.api.letsencrypt.org/directory"

// Dev returns the defaults of ferry dev: those of [Serve] on loopback. A
// BindTimeout of 10 minutes leaves time to type the API calls by hand.
func Dev() Config {
	c := Serve()
	local := netip.AddrFrom4([4]byte{127, 0, 0, 1})
	c.UDP = []Addr{{netip.AddrPortFrom(local, port)}}
	c.HTTP = Addr{netip.AddrPortFrom(local, port)}
	c.BindTimeout = 10 * time.Minute
	c.HostMigration = time.Minute
	return c
}

// Serve returns the defaults of ferry serve, relay and api.
func Serve() Config {
	all := netip.IPv4Unspecified()
	return Config{
		UDP:              []Addr{{netip.AddrPortFrom(all, port)}},
		HTTP:             Addr{netip.AddrPortFrom(all, port)},
		Admin:            Addr{netip.AddrPortFrom(netip.AddrFrom4([4]byte{127, 0, 0, 1}), adminPort)},
		WebSocket:        true,
		StateDir:         "/var/lib/ferry",
		Region:           "default",
		MaxConnections:   alloc.DefaultMaxConnections,
		MaxContent:       proto.DefaultMaxContent,
		IdleTimeout:      10 * time.Second,
		HostAloneTimeout: 60 * time.Second,
		BindTimeout:      10 * time.Second,
		RecoverFor:       60 * time.Second,
		GSO:              true,
		XDP:              "off",
		ACMEServer:       LetsEncrypt,
		StoreTimeout:     70 * time.Millisecond, // The API answers 503 within 100 ms when the store is away.
		Cluster:          Addr{netip.AddrPortFrom(all, clusterPort)},
		LogLevel:         "info",
		LogFormat:        "text",

		JoinerDatagrams: 1000, JoinerBytes: 512 << 10,
		HostDatagrams: 12_000, HostBytes: 8 << 20,

		PlayerPerMinute: 60, ServerPerMinute: 6000,
		PlayerHosts:        4,
		PlayerSeatsPerHost: 4,
		MaxHTTPConnections: connlimit.DefaultTotal,
		MaxWebSockets:      4096,
		MaxDTLSSessions:    65_536,
	}
}

// validate checks rules across settings and rules that the tags cannot express.
func (c *Config) validate() error {
	var errs []error
	if len(c.UDP) == 0 {
		errs = append(errs, errors.New("udp: no address is given"))
	}
	seen := make(map[Addr]bool)
	for _, a := range c.UDP {
		if seen[a] && a.Port() != 0 {
			errs = append(errs, fmt.Errorf("udp: %s is there twice", a))
		}
		seen[a] = true
	}
	if c.Region == "" {
		errs = append(errs, errors.New("region: is empty"))
	}
	if (c.TLSCert == "") != (c.TLSKey == "") {
		errs = append(errs, errors.New("tls_cert, tls_key: one without the other"))
	}
	if c.ACME && c.TLSCert != "" {
		errs = append(errs, errors.New("acme, tls_cert: set one, not both"))
	}
	return errors.Join(errs...)
}
