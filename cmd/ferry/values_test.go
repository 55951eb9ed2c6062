package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestValuesOfLists: a value of a list that could never match is an error that names it at the start, and others work
// as they are meant.
func TestValuesOfLists(t *testing.T) {
	t.Parallel()
	secret := filepath.Join(t.TempDir(), "secret")
	if err := os.WriteFile(secret, []byte("a-secret-of-the-tests-for-operators"), 0o600); err != nil {
		t.Fatal(err)
	}
	oidc := "admin_token_file: " + secret + "\nadmin_oidc_issuer: https://i.example\nadmin_oidc_client_id: c\n"
	issuer := func(members string) string {
		return "issuers:\n  - {issuer: 'https://i.example/', jwks_url: 'https://i.example/j', project: g, environment: e, " + members + "}"
	}
	token := func(members string) string {
		return "tokens:\n  - {secret: another-secret-of-the-tests, project: game, environment: test, " + members + "}"
	}
	const stores = "\nregion_stores:\n  - {region: us, code_symbol: T, store: 'redis://a'}"
	const white = "begins or ends with white space"
	for text, want := range map[string]string{
		"allow_origins: ['https://a.example/']":                       `allow_origins: "https://a.example/" is not an origin`,
		"allow_origins: ['https://*.a.example']":                      `"https://*.a.example" is not an origin`,
		"allow_origins: ['https://spiél.example']":                    "is not an origin",
		"allow_origins: ['https://a.example:0443']":                   "is not an origin",
		"allow_origins: [a.example]":                                  "is not an origin",
		"allow_origins: ['https://a.example', '']":                    "allow_origins: has an empty item",
		"allow_origins: [' https://a.example']":                       "allow_origins: " + white,
		"allow_origins: ['HTTPS://A.example:443', 'http://[::1]:80']": "",
		"allow_origins: ['https://a.example', 'https://a.example']":   "",
		"allow_origins: https://a.example, null":                      "",
		"allow_origins: ''":                                           "",

		"trusted_proxies: [0.0.0.0]":                     `"0.0.0.0" is not an IP address or a network`,
		"trusted_proxies: ['::']":                        `"::" is not`,
		"trusted_proxies: [localhost]":                   `"localhost" is not`,
		"trusted_proxies: ['']":                          "trusted_proxies: has an empty item",
		"trusted_proxies: ['fe80::1%eth0']":              "is not",
		"trusted_proxies: ['::ffff:10.0.0.0/104']":       "",
		"trusted_proxies: [10.1.2.3/8, '2001:DB8::/32']": "",
		"trusted_proxies: ''":                            "",

		"region: 'eu '":                         "region: " + white,
		"region_description: ' Europe'":         "region_description: " + white,
		"xdp_interfaces: [eth0, '']":            "xdp_interfaces: has an empty item",
		"xdp_interfaces: ' eth0, eth1 '":        "",
		"advertise: [203.0.113.1, '']":          "advertise: has an empty item",
		"advertise_name: relay.example.org.":    "is not a DNS name",
		"advertise_name: https://relay.example": "is not a DNS name",
		"advertise_name: Relay.Example.org":     "",
		"worker_cpus: 0,0":                      "names CPU 0 twice",

		"quotas:\n  - {project: 'a '}":                  "quotas[0].project: " + white,
		"quotas:\n  - {project: a, regions: [eu, '']}":  "quotas[0].regions: has an empty item",
		"quotas:\n  - {project: a}\n  - {project: a}":   `quotas[1]: project "a" has one already`,
		"quotas:\n  - {project: a, regions: [Default]}": "warning",

		token("regions: [default]"):     "",
		token("regions: [Default]"):     "warning",
		token("regions: [eu]") + stores: `tokens[0]: region "eu" is not in region_stores`,

		token("player: 'x '"): "tokens[0].player: " + white,
		token("player: x") + "\n  - {secret: 'a-secret-of-the-tests ', project: game}":                 "tokens[1].secret: " + white,
		token("player: x") + "\n  - {secret: a-secret of-the-tests, project: game, environment: t}":    "tokens[1]",
		token("player: x") + "\n  - {secret: another-secret-of-the-tests, project: g, environment: t}": "tokens[1]",

		issuer("audience: ['']"):   "issuers[0].audience: has an empty item",
		issuer("audience: ['a ']"): "issuers[0].audience: " + white,
		issuer("audience: []"):     "audience",
		issuer("audience: [a, a]"): "",

		oidc + "admin_oidc_operators: ['*@example.org']":               `"*@example.org" is neither an e-mail address nor group:NAME`,
		oidc + "admin_oidc_operators: ['@example.org']":                "is neither",
		oidc + "admin_oidc_viewers: ['mailto:a@b.example']":            "is neither",
		oidc + "admin_oidc_viewers: ['Ann <a@b.example>']":             "is neither",
		oidc + "admin_oidc_operators: ['group: ops']":                  "is neither",
		oidc + "admin_oidc_operators: ['Group:ops']":                   "is neither",
		oidc + "admin_oidc_operators: ['a@b.example ']":                "admin_oidc_operators: " + white,
		oidc + "admin_oidc_operators: [Ann@B.example, 'group:my ops']": "",
	} {
		lines := []string{text}
		if strings.Contains(text, "tokens:") {
			lines = nil
		}
		file := settings(t, lines...)
		if lines == nil {
			if err := os.WriteFile(file, []byte("udp: 127.0.0.1:0\nhttp: 127.0.0.1:0\nadmin: 127.0.0.1:0\n"+text+"\n"), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		var out, errs strings.Builder
		code, said := run(t.Context(), []string{"ferry", "check", "-c", file}, nil, &out, &errs), ""
		said = out.String() + errs.String()
		switch {
		case want == "" && code != exitOK, want == "warning" && (code != exitOK || !strings.Contains(said, "may have no host here")),
			want != "" && want != "warning" && (code == exitOK || !strings.Contains(said, want)):
			t.Errorf("%s: code %d, want %q in\n%s", text, code, want, said)
		case strings.Count(said, "is not an origin") > 1:
			t.Errorf("%s: it is said twice:\n%s", text, said)
		}
	}
}

// TestUDPTwice: two listeners at one address would share its datagrams.
func TestUDPTwice(t *testing.T) {
	t.Parallel()
	var out, errs strings.Builder
	code := run(t.Context(), []string{"ferry", "check", "-c", settings(t), "--udp", "127.0.0.1:7001,127.0.0.1:7001"}, nil, &out, &errs)
	if code == exitOK || !strings.Contains(errs.String(), "udp: 127.0.0.1:7001 is there twice") {
		t.Errorf("code %d: %s", code, errs.String())
	}
}
