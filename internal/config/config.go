package config

import (
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"time"

	"github.com/ferryrelay/ferry/alloc"
	"github.com/ferryrelay/ferry/alloc/httpapi"
	"github.com/ferryrelay/ferry/engine/dtls"
	"github.com/ferryrelay/ferry/engine/websocket"
	"github.com/ferryrelay/ferry/internal/sock"
	redisstore "github.com/ferryrelay/ferry/internal/store/redis"
	"github.com/ferryrelay/ferry/proto"
)

// Config is every setting of ferry serve, relay, api and dev. The tags say the YAML
// key, from which flag and variable follow, the group and the text in the help
// with its placeholder in braces, and the range or the choices. What a
// setting does is said in its help text and nowhere else.
type Config struct {
	UDP         []Addr `key:"udp" group:"listen" usage:"UDP address of the relay, {HOST:PORT} with an IP address; port 0 takes a free one; give it twice for IPv4 and IPv6"`
	HTTP        Addr   `key:"http" group:"listen" usage:"address of the Allocations API, {HOST:PORT}; [::] hears IPv4 as well"`
	Admin       Addr   `key:"admin" group:"listen" usage:"address of the operator's pages, {HOST:PORT}; without admin_token_file they have no authentication"`
	AdminPublic bool   `key:"admin_public" group:"listen" usage:"allow --admin on an address that others can reach; without admin_token_file these see metrics and health only"`
	AdminToken  string `key:"admin_token_file" group:"listen" usage:"{FILE} with a bearer token, 16 characters or more, that all admin pages but /livez and /readyz ask for; with it and a certificate --admin may be public, over TLS"`
	Advertise   []Host `key:"advertise" group:"listen" usage:"public {IP} of the relay that players are told, one per address family; IP:PORT where a router maps the port"`
	DTLS        bool   `key:"dtls" group:"listen" usage:"let players in by DTLS too, on the UDP port"`
	WebSocket   bool   `key:"websocket" group:"listen" usage:"let players in by WebSocket too, at / of the API's port: wss with a certificate, else ws"`

	AdvertiseName Name   `key:"advertise_name" group:"listen" usage:"DNS {NAME} by which players reach wss; NAME:PORT where the port is not the API's (behind a proxy: not 443). Without it players are not told of wss"`
	TLSCert       string `key:"tls_cert" group:"listen" usage:"certificate {FILE} (PEM, with its chain) for the API; it is read again when it changes"`
	TLSKey        string `key:"tls_key" group:"listen" usage:"private key {FILE} (PEM) for the API; it is read again when it changes"`
	ACMEDomains   []Name `key:"acme_domains" group:"listen" usage:"{NAME} for which a certificate is fetched and renewed by ACME; it has to lead to port 443, and that to the API's port; this accepts the terms of the authority"`
	ACMEEmail     string `key:"acme_email" group:"listen" usage:"{ADDRESS} at which the authority may warn of trouble with a certificate"`
	ACMEDir       string `key:"acme_dir" group:"listen" usage:"{DIR} that keeps those certificates; empty: acme below state_dir"`
	ACMEServer    string `key:"acme_server" group:"listen" usage:"{URL} of the authority's directory"`
	BehindProxy   bool   `key:"behind_proxy" group:"listen" usage:"a reverse proxy in front ends TLS: allow plain HTTP on a public address"`

	TrustedProxies      []Network `key:"trusted_proxies" group:"listen" usage:"{NETWORK} or IP of reverse proxies whose X-Forwarded-For is believed"`
	ProxyProtocol       bool      `key:"proxy_protocol" group:"listen" usage:"every connection of trusted_proxies to the API's port begins with a PROXY header, version 1 or 2, that tells the player's address"`
	AllowOrigins        []string  `key:"allow_origins" group:"listen" usage:"{ORIGIN} of web pages that may call the API and open WebSockets, such as https://game.example.org; none given: all pages"`
	AllowPrivateSources bool      `key:"allow_private_sources" group:"listen" usage:"let clients in from private networks although players are told a public address"`
	Siblings            []Sibling `key:"siblings" group:"listen" usage:"{IP:PORT} of other relays: nothing that comes from them is handled, so that nobody makes relays talk to each other"`

	StateDir         string        `key:"state_dir" group:"relay" usage:"{DIR} that keeps the relay's id, its master key, and what a restart must know of its allocations"`
	Region           string        `key:"region" group:"relay" usage:"{ID} of the region that this relay stands in"`
	MaxConnections   int           `key:"max_connections" group:"relay" usage:"most players that a host may ask for" min:"1" max:"65535"`
	MaxAllocations   int           `key:"max_allocations" group:"relay" usage:"most allocations at once; 0 is a million, or as many as fit into the memory limit" min:"0" max:"67108864"`
	MaxSeats         int           `key:"max_seats" group:"relay" usage:"most seats promised at once: a host takes one, and one for each player that it asks for; 0: no limit" min:"0" max:"2147483647"`
	MaxContent       int           `key:"max_content" group:"relay" usage:"largest content of a relayed datagram in {BYTES}" min:"1" max:"1434"`
	IdleTimeout      time.Duration `key:"idle_timeout" group:"relay" usage:"end an allocation that neither sent nor received for so long" min:"250ms" max:"24h"`
	HostAloneTimeout time.Duration `key:"host_alone_timeout" group:"relay" usage:"end a bound host that no player has connected to yet when it was silent for so long" min:"250ms" max:"24h"`
	BindTimeout      time.Duration `key:"bind_timeout" group:"relay" usage:"end an allocation that nobody bound within this time" min:"250ms" max:"24h"`
	HearTimeout      time.Duration `key:"hear_timeout" group:"relay" usage:"end an allocation whose owner itself sent nothing for so long, whatever it was sent" min:"250ms" max:"24h"`
	RecoverFor       time.Duration `key:"recover_for" group:"relay" usage:"after a restart, let allocations of the run before come back for so long; 0 lets none" min:"0s" max:"1h"`
	DrainTimeout     time.Duration `key:"drain_timeout" group:"relay" usage:"on SIGTERM, take no new allocations and go on until all have ended, at most for so long; 0 exits at once" min:"0s" max:"168h"`
	DrainThreshold   int           `key:"drain_threshold" group:"relay" usage:"a drain is over when no more allocations than that are left" min:"0" max:"67108864"`
	Workers          int           `key:"workers" group:"relay" usage:"sockets and threads per UDP address; 0 is one per processor" min:"0" max:"256"`
	Batch            int           `key:"batch" group:"relay" usage:"most datagrams per system call" min:"1" max:"256"`
	Merge            bool          `key:"merge" group:"relay" usage:"let datagrams of a batch to one player leave as one message, where the kernel can"`
	ReceiveDelay     time.Duration `key:"receive_delay" group:"relay" usage:"at middling load, rest so long before receiving again: saves processor time, adds latency; 0 never rests" min:"0s" max:"10ms"`

	JoinerDatagrams int `key:"joiner_datagrams" group:"limits" usage:"datagrams that a joiner may relay per second; 0: no limit" min:"0" max:"8000000"`
	JoinerBytes     int `key:"joiner_bytes" group:"limits" usage:"bytes that a joiner may relay per second; 0: no limit" min:"0" max:"2147483647"`
	HostDatagrams   int `key:"host_datagrams" group:"limits" usage:"datagrams that a host may relay per second; 0: no limit" min:"0" max:"8000000"`
	HostBytes       int `key:"host_bytes" group:"limits" usage:"bytes that a host may relay per second; 0: no limit" min:"0" max:"2147483647"`
	UnprovenBytes   int `key:"unproven_bytes" group:"limits" usage:"bytes that may go to an endpoint from which nothing but a BIND has come, whose source may be forged; 0: no limit" min:"0" max:"2147483647"`

	PlayerPerMinute            int `key:"player_per_minute" group:"limits" usage:"requests per minute and API call that a player's token may make" min:"1" max:"1000000000"`
	ServerPerMinute            int `key:"server_per_minute" group:"limits" usage:"requests per minute and API call that a token of kind server may make" min:"1" max:"1000000000"`
	AddressPerMinute           int `key:"address_per_minute" group:"limits" usage:"requests per minute that may come from one address, except with tokens of kind server" min:"1" max:"1000000000"`
	FailedJoinsPerMinute       int `key:"failed_joins_per_minute" group:"limits" usage:"join codes that lead nowhere, per minute, that one player or one address may try" min:"1" max:"1000000000"`
	ServerFailedJoinsPerMinute int `key:"server_failed_joins_per_minute" group:"limits" usage:"join codes that lead nowhere, per minute, that a token of kind server may try" min:"1" max:"1000000000"`
	MaxOutstanding             int `key:"max_outstanding" group:"limits" usage:"allocations that a player may have reserved and not bound yet; ferry api is not told of binds: there each counts for bind_timeout" min:"1" max:"65536"`
	MaxHTTPConnections         int `key:"max_http_connections" group:"limits" usage:"connections to the API at once, of all callers" min:"1" max:"1000000"`
	MaxAddressConnections      int `key:"max_address_connections" group:"limits" usage:"connections to the API at once from one address; those of a trusted proxy do not count" min:"1" max:"1000000"`

	MaxWebSockets        int `key:"max_websockets" group:"limits" usage:"WebSockets at once, of all players; they do not take the API's connections" min:"1" max:"1000000"`
	MaxAddressWebSockets int `key:"max_address_websockets" group:"limits" usage:"WebSockets at once from one address" min:"1" max:"1000000"`
	WebSocketQueue       int `key:"websocket_queue" group:"limits" usage:"messages that may wait for one WebSocket, of 512 bytes on average; the newest are dropped" min:"1" max:"4096"`
	WebSocketMaxMessage  int `key:"websocket_max_message" group:"limits" usage:"largest message to a WebSocket in {BYTES}; larger ones are dropped, since clients give up at more than they were set to" min:"36" max:"1472"`
	DTLSMaxMessage       int `key:"dtls_max_message" group:"limits" usage:"largest message to a DTLS player in {BYTES}, without the 37 of its record; larger ones are dropped, since clients discard them" min:"36" max:"1472"`
	MaxDTLSSessions      int `key:"max_dtls_sessions" group:"limits" usage:"DTLS sessions at once, 2 KB each" min:"1" max:"4194304"`

	LogLevel  string `key:"log_level" group:"log" usage:"{LEVEL}: debug, info, warn or error" oneof:"debug,info,warn,error"`
	LogFormat string `key:"log_format" group:"log" usage:"{FORMAT}: text or json" oneof:"text,json"`

	AdmissionURL        string        `key:"admission_url" group:"hooks" usage:"{URL} that is asked about each allocation before it is made; empty: nobody is"`
	AdmissionSecretFile string        `key:"admission_secret_file" group:"hooks" usage:"{FILE} with the secret, 16 characters or more, that signs those questions"`
	AdmissionTimeout    time.Duration `key:"admission_timeout" group:"hooks" usage:"how long an answer may take" min:"10ms" max:"5s"`
	AdmissionFailOpen   bool          `key:"admission_fail_open" group:"hooks" usage:"let players in when there is no answer; else they are asked to come again"`
	WebhookURL          string        `key:"webhook_url" group:"hooks" usage:"{URL} that is told of allocations and players; empty: nobody is"`
	WebhookSecretFile   string        `key:"webhook_secret_file" group:"hooks" usage:"{FILE} with the secret, 16 characters or more, that signs those messages; required with webhook_url"`
	HooksPlainHTTP      bool          `key:"hooks_plain_http" group:"hooks" usage:"allow http:// in admission_url and webhook_url to private networks too, not only to this machine"`

	Store             Secret        `key:"store" group:"fleet" usage:"{URL} of the store that a fleet shares: redis://, rediss://, redis+sentinel:// or redis+cluster://; it may hold a password"`
	StorePasswordFile string        `key:"store_password_file" group:"fleet" usage:"{FILE} with the password of the store, where its URL has none"`
	StoreCA           string        `key:"store_ca" group:"fleet" usage:"{FILE} (PEM) with the authorities that the store's certificate is held against; empty: the system's"`
	StorePrefix       string        `key:"store_prefix" group:"fleet" usage:"{TEXT} that begins all keys in the store, so that fleets can share one"`
	StoreTimeout      time.Duration `key:"store_timeout" group:"fleet" usage:"give a call to the store up after so long, and answer 503: more than 70ms where the store is far away or its machine busy, and players rather wait" min:"10ms" max:"10s"`
	Cluster           Addr          `key:"cluster" group:"fleet" usage:"address at which a relay answers the API processes of its fleet, {HOST:PORT}; it belongs into a private network"`
	ClusterAdvertise  string        `key:"cluster_advertise" group:"fleet" usage:"{HOST} or HOST:PORT at which API processes reach that; empty: the address itself or, where that is all addresses, the first one that players are told"`
	ClusterCA         string        `key:"cluster_ca" group:"fleet" usage:"{FILE} (PEM) with the authority of the fleet's own certificates; ferry ctl cluster-ca makes them"`
	ClusterCert       string        `key:"cluster_cert" group:"fleet" usage:"certificate {FILE} (PEM) of this relay or API process in its fleet"`
	ClusterKey        string        `key:"cluster_key" group:"fleet" usage:"private key {FILE} (PEM) of that"`
	RegionDescription string        `key:"region_description" group:"fleet" usage:"{NAME} of the relay's region for people; empty: its id"`
	Overcommit        int           `key:"overcommit" group:"fleet" usage:"seats that a relay promises, in {PERCENT} of those that it has, where hosts ask for more players than come" min:"1" max:"10000"`

	Tokens         []Token         `key:"tokens" usage:"bearer tokens that callers of the API send, of backends mostly"`
	Issuers        []Issuer        `key:"issuers" usage:"issuers whose JSON Web Tokens the API accepts, of players mostly"`
	Quotas         []Quota         `key:"quotas" usage:"limits of single projects; a project that is not in the list has none"`
	RegionDefaults []RegionDefault `key:"region_defaults" usage:"in a fleet, the region of a host that names none, by its project"`
	RegionHints    []RegionHint    `key:"region_hints" usage:"in a fleet, the region of a host that names none and whose project has no default, by its player's address"`
}

// Token is a bearer token of the API and the tenant that it stands for. After
// [Load] its secret is in Secret, also if it came from a file.
type Token struct {
	Secret      Secret `key:"secret" usage:"the token, 16 characters or more"`
	SecretFile  string `key:"secret_file" usage:"{FILE} with the token, in place of secret"`
	Project     string `key:"project" usage:"project of the caller; required"`
	Environment string `key:"environment" usage:"environment of the caller"`
	Player      string `key:"player" usage:"{ID} of the player; empty: derived from the token"`
	Kind        string `key:"kind" oneof:"player,server" usage:"player, the default, or server for a backend"`
}

const (
	// port is the one number of UDP and HTTP, adminPort that of the operator.
	port      = 7777
	adminPort = 7778
	// clusterPort is where relays hear the API processes of their fleet.
	clusterPort = 7779

	letsEncrypt = "https://acme-v02.api.letsencrypt.org/directory"
)

// Dev returns the defaults of ferry dev: those of serve, on loopback, and with
// ten minutes to type the calls between an allocation and its first BIND.
func Dev() Config {
	c := Serve()
	local := netip.AddrFrom4([4]byte{127, 0, 0, 1})
	c.UDP = []Addr{{netip.AddrPortFrom(local, port)}}
	c.HTTP = Addr{netip.AddrPortFrom(local, port)}
	c.BindTimeout = 10 * time.Minute
	return c
}

// Serve returns the defaults of ferry serve.
func Serve() Config {
	all := netip.IPv4Unspecified()
	return Config{
		UDP:              []Addr{{netip.AddrPortFrom(all, port)}},
		HTTP:             Addr{netip.AddrPortFrom(all, port)},
		Admin:            Addr{netip.AddrPortFrom(netip.AddrFrom4([4]byte{127, 0, 0, 1}), adminPort)},
		DTLS:             true,
		WebSocket:        true,
		StateDir:         "/var/lib/ferry",
		Region:           "default",
		MaxConnections:   alloc.DefaultMaxConnections,
		MaxContent:       proto.DefaultMaxContent,
		IdleTimeout:      10 * time.Second,
		HostAloneTimeout: 60 * time.Second,
		BindTimeout:      10 * time.Second,
		HearTimeout:      30 * time.Second,
		RecoverFor:       60 * time.Second,
		Batch:            sock.DefaultBatch,
		Merge:            true,
		ACMEServer:       letsEncrypt,
		AdmissionTimeout: time.Second,
		StorePrefix:      redisstore.DefaultPrefix,
		StoreTimeout:     redisstore.DefaultTimeout,
		Cluster:          Addr{netip.AddrPortFrom(all, clusterPort)},
		Overcommit:       100,
		LogLevel:         "info",
		LogFormat:        "text",

		JoinerDatagrams: 1000, JoinerBytes: 512 << 10,
		HostDatagrams: 12_000, HostBytes: 8 << 20,
		UnprovenBytes: 256 << 10,

		PlayerPerMinute: httpapi.DefaultPlayerPerMinute, ServerPerMinute: httpapi.DefaultServerPerMinute,
		AddressPerMinute:           httpapi.DefaultAddressPerMinute,
		FailedJoinsPerMinute:       httpapi.DefaultFailedJoinsPerMinute,
		ServerFailedJoinsPerMinute: httpapi.DefaultServerFailedJoinsPerMinute,
		MaxOutstanding:             alloc.DefaultMaxOutstanding,
		MaxHTTPConnections:         httpapi.DefaultConnections,
		MaxAddressConnections:      httpapi.DefaultAddressConnections,
		MaxWebSockets:              websocket.DefaultConns,
		MaxAddressWebSockets:       websocket.DefaultAddressConns,
		WebSocketQueue:             websocket.DefaultQueueMessages,
		WebSocketMaxMessage:        websocket.DefaultMaxOutgoing,
		DTLSMaxMessage:             dtls.DefaultMaxMessage,
		MaxDTLSSessions:            65_536,
	}
}

// validate reports what no single value can be blamed for.
func (c *Config) validate() error {
	var errs []error
	if len(c.UDP) == 0 {
		errs = append(errs, errors.New("udp: no address is given"))
	}
	if c.Region == "" {
		errs = append(errs, errors.New("region: is empty"))
	}
	if (c.TLSCert == "") != (c.TLSKey == "") {
		errs = append(errs, errors.New("tls_cert, tls_key: one without the other"))
	}
	if len(c.ACMEDomains) > 0 && c.TLSCert != "" {
		errs = append(errs, errors.New("acme_domains, tls_cert: a certificate is either fetched or in files"))
	}
	for _, name := range c.ACMEDomains {
		if name.Port != 0 || !strings.Contains(name.Host, ".") {
			errs = append(errs, fmt.Errorf("acme_domains: %q is not a full name without a port, such as relay.example.org", name))
		}
	}
	return errors.Join(errs...)
}
