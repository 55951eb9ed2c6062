package identity

import (
	"bytes"
	"errors"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/golang-jwt/jwt/v5"

	"github.com/ferryrelay/ferry/alloc"
)

var secret = bytes.Repeat([]byte("s"), MinSecret)

func TestConfigRefused(t *testing.T) {
	t.Parallel()
	const url = "https://issuer.example.org/keys"
	change := func(f func(*Issuer)) []Issuer {
		i := own(url)
		f(&i)
		return []Issuer{own(url), i}
	}
	for name, c := range map[string]struct {
		issuers []Issuer
		says    string
	}{
		"no name":                  {change(func(i *Issuer) { i.Issuer = "" }), "issuer is required"},
		"no key":                   {change(func(i *Issuer) { i.JWKSURL = "" }), "either jwks_url or"},
		"both":                     {change(func(i *Issuer) { i.HS256Key = secret }), "not both"},
		"both, by two rules":       {change(func(i *Issuer) { i.JWKSURL, i.HS256Key = "", secret }), "other keys"},
		"two documents":            {change(func(i *Issuer) { i.JWKSURL += "2" }), "other keys"},
		"no audience":              {change(func(i *Issuer) { i.Audience = nil }), "audience is required"},
		"an empty audience":        {change(func(i *Issuer) { i.Audience = []string{""} }), "an audience is empty"},
		"no project":               {change(func(i *Issuer) { i.ProjectClaim = "" }), "project"},
		"no environment":           {change(func(i *Issuer) { i.EnvironmentClaim = "" }), "environment"},
		"two environments":         {change(func(i *Issuer) { i.EnvironmentAudience = "env:" }), "exclude each other"},
		"a short secret":           {[]Issuer{own(url), Development(secret[1:])}, "at least 32 bytes"},
		"plain HTTP":               {change(func(i *Issuer) { i.Issuer, i.JWKSURL = "x", "http://issuer.example.org/" }), "use https"},
		"no URL":                   {change(func(i *Issuer) { i.Issuer, i.JWKSURL = "x", "issuer.example.org" }), "not a usable URL"},
		"all of Unity's customers": {[]Issuer{own(url), Unity("")}, "project is required"},
	} {
		_, err := New(Config{Issuers: c.issuers})
		if !errors.Is(err, ErrConfig) || !strings.Contains(err.Error(), c.says) || !strings.Contains(err.Error(), "issuers[1]") {
			t.Errorf("%s: %v, want %q", name, err, c.says)
		}
		if err != nil && strings.Contains(err.Error(), string(secret)) {
			t.Errorf("%s: the error has the secret", name)
		}
	}
}

// TestUnity checks tokens in the known form of Unity's, signed with a test key.
func TestUnity(t *testing.T) {
	t.Parallel()
	p := newPublisher(t, jwks(t, published(t, "u", rsaKey)))
	rule := Unity("7f0a")
	rule.JWKSURL = p.URL
	v := p.newTestVerifier(t, func(c *Config) { c.Issuers = []Issuer{rule} })
	claims := func(project string, audience ...string) jwt.MapClaims {
		c := good()
		c["iss"], c["aud"], c["project_id"], c["sub"] = rule.Issuer, audience, project, "Xk2"
		delete(c, "project")
		delete(c, "environment")
		return c
	}
	without := func(c jwt.MapClaims) jwt.MapClaims { delete(c, "project_id"); return c }
	for name, c := range map[string]struct {
		claims jwt.MapClaims
		want   string // environment
	}{
		"by audience":        {without(claims("", "idd:1", "envName:production", "envId:2", "upid:7f0a")), "production"},
		"by both":            {claims("7f0a", "envName:production", "upid:7f0a"), "production"},
		"audience of others": {without(claims("", "envName:production", "upid:7f0b")), ""},
		"claim of others":    {claims("7f0b", "envName:production", "upid:7f0a"), ""},
		"they differ":        {claims("7f0a", "envName:production", "upid:7f0b"), ""},
		"two projects":       {without(claims("", "envName:production", "upid:7f0a", "upid:7f0b")), ""},
		"empty project":      {without(claims("", "envName:production", "upid:")), ""},
		"no project":         {without(claims("", "envName:production")), ""},
		"ours":               {claims("7f0a", "idd:1", "envName:production", "envId:2"), "production"},
		"another project":    {claims("7f0b", "envName:production"), ""},
		"no environment":     {claims("7f0a", "envId:2"), ""},
		"empty environment":  {claims("7f0a", "envName:"), ""},
		"two environments":   {claims("7f0a", "envName:a", "envName:b"), ""},
		"not at its start":   {claims("7f0a", "xenvName:a"), ""},
		"no audience at all": {claims("7f0a"), ""},
	} {
		id, err := v.Verify(t.Context(), sign(t, jwt.SigningMethodRS256, "u", rsaKey, c.claims))
		want := Identity{}
		if c.want != "" {
			want = Identity{Tenant: alloc.Tenant{Project: "7f0a", Environment: c.want}, Player: "Xk2"}
		}
		if !reflect.DeepEqual(id, want) || (err == nil) != (c.want != "") {
			t.Errorf("%s: %+v, %v", name, id, err)
		}
	}
}

func TestOr(t *testing.T) {
	t.Parallel()
	i := Issuer{EnvironmentClaim: "env", Server: true}.Or(Unity("p"))
	want := Unity("p")
	want.EnvironmentClaim, want.EnvironmentAudience, want.Server = "env", "", true
	if i.EnvironmentAudience != "" || i.EnvironmentClaim != "env" || i.JWKSURL != want.JWKSURL || i.Project != "p" || !i.Server {
		t.Errorf("%+v", i)
	}
	i = Issuer{HS256Key: secret, Audience: []string{"x"}}.Or(Unity("p"))
	if i.JWKSURL != "" || len(i.Audience) != 1 || i.EnvironmentAudience != "envName:" {
		t.Errorf("%+v", i)
	}
}

func TestMint(t *testing.T) {
	t.Parallel()
	v, err := New(Config{Issuers: []Issuer{Development(secret)}})
	if err != nil {
		t.Fatal(err)
	}
	now := time.Now()
	for _, server := range []bool{false, true} {
		id := anna
		id.Server = server
		if server {
			id.Regions = []string{"eu", "us"}
		}
		token, err := Mint(MintRequest{Secret: secret, Identity: id, Valid: time.Hour, Now: now})
		if err != nil {
			t.Fatal(err)
		}
		if got, err := v.Verify(t.Context(), token); err != nil || !reflect.DeepEqual(got, id) {
			t.Errorf("%+v, %v, want %+v", got, err, id)
		}
	}
	for name, change := range map[string]func(*MintRequest){
		"secret":      func(m *MintRequest) { m.Secret = secret[1:] },
		"project":     func(m *MintRequest) { m.Identity.Tenant.Project = "" },
		"long":        func(m *MintRequest) { m.Identity.Tenant.Environment = strings.Repeat("x", 57) },
		"player":      func(m *MintRequest) { m.Identity.Player = "a\nb" },
		"no time":     func(m *MintRequest) { m.Valid = 0 },
		"environment": func(m *MintRequest) { m.Identity.Tenant.Environment = "" },
	} {
		m := MintRequest{Secret: secret, Identity: anna, Valid: time.Hour, Now: now}
		change(&m)
		if token, err := Mint(m); !errors.Is(err, ErrConfig) || token != "" {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestKinds checks that only the claim of the rule marks a backend.
func TestKinds(t *testing.T) {
	t.Parallel()
	kinds := func(rule Issuer, kind any) (bool, error) {
		v, err := New(Config{Issuers: []Issuer{rule}})
		if err != nil {
			t.Fatal(err)
		}
		c := with("kind", kind)
		c["iss"], c["aud"] = rule.Issuer, rule.Audience[0]
		id, err := v.Verify(t.Context(), sign(t, jwt.SigningMethodHS256, "", secret, c))
		return id.Server, err
	}
	unnamed, servers := Development(secret), Development(secret)
	unnamed.KindClaim, servers.Server = "", true
	for name, c := range map[string]struct {
		rule   Issuer
		kind   any
		server bool
		fails  bool
	}{
		"absent":              {Development(secret), nil, false, false},
		"player":              {Development(secret), "player", false, false},
		"server":              {Development(secret), "server", true, false},
		"neither":             {Development(secret), "admin", false, true},
		"a number":            {Development(secret), 1, false, true},
		"not asked":           {unnamed, "server", false, false},
		"backends by default": {servers, nil, true, false},
		"not by default":      {servers, "player", false, false},
	} {
		if server, err := kinds(c.rule, c.kind); server != c.server || (err != nil) != c.fails {
			t.Errorf("%s: server %v, %v", name, server, err)
		}
	}
}
