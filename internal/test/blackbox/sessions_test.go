package blackbox

import (
	"bytes"
	"crypto"
	"crypto/rand"
	"crypto/rsa"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"math/big"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/ferryrelay/ferry/internal/test/enginetest"
	"github.com/ferryrelay/ferry/internal/test/testkit"
)

type object = map[string]any

// unityIssuer publishes keys and signs tokens in the form of Unity Authentication.
type unityIssuer struct {
	t   *testing.T
	url string
	key *rsa.PrivateKey
}

func startUnityIssuer(t *testing.T) unityIssuer {
	t.Helper()
	key, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		t.Fatal(err)
	}
	b64 := base64.RawURLEncoding.EncodeToString
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		fmt.Fprintf(w, `{"keys":[{"kty":"RSA","use":"sig","alg":"RS256","kid":"u","n":%q,"e":%q}]}`,
			b64(key.N.Bytes()), b64(big.NewInt(int64(key.E)).Bytes()))
	}))
	t.Cleanup(srv.Close)
	return unityIssuer{t, srv.URL, key}
}

const unityProject = "7f0ac4b2-0000-4000-8000-000000000001"

// token is a player's, with these claims in place of the usual ones.
func (u unityIssuer) token(player string, change map[string]any) string {
	u.t.Helper()
	now := time.Now()
	claims := map[string]any{
		"iss": "https://player-auth.services.api.unity.com", "sub": player, "iat": now.Unix(), "nbf": now.Unix(),
		"exp": now.Add(time.Hour).Unix(), "sign_in_provider": "anonymous", "token_type": "authentication",
		"aud": []string{"idd:1", "envName:production", "envId:2", "upid:" + unityProject},
	}
	maps.Copy(claims, change)
	body, err := json.Marshal(claims)
	if err != nil {
		u.t.Fatal(err)
	}
	b64 := base64.RawURLEncoding.EncodeToString
	text := b64([]byte(`{"alg":"RS256","kid":"u","typ":"JWT"}`)) + "." + b64(body)
	digest := sha256.Sum256([]byte(text))
	signature, err := rsa.SignPKCS1v15(rand.Reader, u.key, crypto.SHA256, digest[:])
	if err != nil {
		u.t.Fatal(err)
	}
	return text + "." + b64(signature)
}

// sessionPlayer calls the API as the sessions of com.unity.services.multiplayer do.
type sessionPlayer struct {
	t           *testing.T
	base, token string
	version     string // of the package: 2.3 names itself, 2.0 does not
	http        *http.Client
}

// members are those without which the package cannot read an answer, by call.
var members = map[string][]string{
	"regions": {"data.regions"}, "allocate": {"meta.requestId", "meta.status", "data.allocation"}, "join": {"meta.requestId", "meta.status",
		"data.allocation.hostConnectionData"}, "joincode": {"meta.requestId", "meta.status", "links", "data.joinCode"},
}

// ask calls and checks that the answer has the members that the package requires of its kind.
func (p sessionPlayer) ask(call string, body any) (status int, answer map[string]any, retryAfter string) {
	p.t.Helper()
	method, sent := http.MethodPost, []byte(nil)
	if body == nil {
		method = http.MethodGet
	} else {
		sent, _ = json.Marshal(body)
	}
	req, err := http.NewRequestWithContext(p.t.Context(), method, p.base+"/v1/"+call, bytes.NewReader(sent))
	if err != nil {
		p.t.Fatal(err)
	}
	req.Header.Set("Authorization", "Bearer "+p.token)
	req.Header.Set("Accept", "application/json")
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("Unity-Client-Version", "6000.0.1f1")
	req.Header.Set("Unity-Client-Mode", "play")
	if p.version != "2.0.0" {
		req.Header.Set("User-Agent", "com.unity.services.multiplayer/"+p.version)
	}
	resp, err := p.http.Do(req)
	if err != nil {
		p.t.Fatal(err)
	}
	defer resp.Body.Close()
	raw, err := io.ReadAll(resp.Body)
	if err == nil {
		err = json.Unmarshal(raw, &answer)
	}
	if err != nil {
		p.t.Fatalf("%s %s: %d: %s: %v", call, sent, resp.StatusCode, raw, err)
	}
	required := members[call]
	if resp.StatusCode >= 400 {
		required = []string{"type", "title", "detail", "status", "code"}
	}
	for _, path := range required {
		if _, ok := member(answer, path); !ok {
			p.t.Errorf("%s: no %s in %s", call, path, raw)
		}
	}
	return resp.StatusCode, answer, resp.Header.Get("Retry-After")
}

func (p sessionPlayer) call(call string, body any, want int) map[string]any {
	p.t.Helper()
	status, answer, _ := p.ask(call, body)
	if status != want {
		p.t.Fatalf("%s %v: %d, want %d: %v", call, body, status, want, answer)
	}
	return answer
}

// member returns what is at a path of an answer, which may be null.
func member(answer map[string]any, path string) (value any, ok bool) {
	value = answer
	for name := range strings.SplitSeq(path, ".") {
		object, _ := value.(map[string]any)
		if value, ok = object[name]; !ok {
			return nil, false
		}
	}
	return value, true
}

func (p sessionPlayer) refused(call string, body any, status, code int, says string) {
	p.t.Helper()
	got, answer, retryAfter := p.ask(call, body)
	for status == http.StatusTooManyRequests && got < 300 { // The limit refills while it is used up.
		got, answer, retryAfter = p.ask(call, body)
	}
	text := fmt.Sprint(answer["detail"], answer["details"])
	if got != status || answer["code"] != float64(code) || answer["status"] != float64(status) || !strings.Contains(text, says) {
		p.t.Errorf("%s %v: %d %v, want %d, code %d and %q", call, body, got, answer, status, code, says)
	}
	if waits := status == 409 || status == 429 || status == 503; waits != (retryAfter != "") {
		p.t.Errorf("%s: status %d has Retry-After %q", call, status, retryAfter)
	}
}

// allocation reads an allocation as the package does: all members, and networks that it knows.
func (p sessionPlayer) allocation(answer map[string]any) (a allocation) {
	p.t.Helper()
	value, _ := member(answer, "data.allocation")
	object, _ := value.(map[string]any)
	for _, name := range []string{"allocationId", "serverEndpoints", "relayServer", "key", "connectionData", "allocationIdBytes", "region"} {
		if _, ok := object[name]; !ok {
			p.t.Errorf("no %s in %v", name, object)
		}
	}
	endpoints, _ := object["serverEndpoints"].([]any)
	for _, e := range endpoints {
		endpoint, _ := e.(map[string]any)
		names := slices.Sorted(maps.Keys(endpoint))
		network, six := endpoint["network"], []string{"connectionType", "host", "network", "port", "reliable", "secure"}
		if !slices.Equal(names, six) || network != "udp" && network != "tcp" {
			p.t.Errorf("an endpoint is %v", endpoint)
		}
	}
	text, _ := json.Marshal(object)
	if err := json.Unmarshal(text, &a); err != nil {
		p.t.Fatal(err)
	}
	return a
}

// url returns where a WebSocket of that kind is dialled.
func (a allocation) url(t *testing.T, connectionType string) string {
	t.Helper()
	for _, e := range a.ServerEndpoints {
		if e.ConnectionType == connectionType {
			return connectionType + "://" + net.JoinHostPort(e.Host, fmt.Sprint(e.Port)) + "/"
		}
	}
	t.Fatalf("no endpoint for %s in %+v", connectionType, a.ServerEndpoints)
	return ""
}

// create is CreateSessionAsync with a relay network, and entered is what JoinSessionByCodeAsync does with the relay.
func (p sessionPlayer) create(maxPlayers int) (a allocation, code string) {
	p.t.Helper()
	answer := p.call("allocate", object{"maxConnections": maxPlayers, "region": "default"}, 201)
	a = p.allocation(answer)
	answer = p.call("joincode", object{"allocationId": a.AllocationID}, 201)
	value, _ := member(answer, "data.joinCode")
	return a, value.(string)
}

func (p sessionPlayer) join(code string) allocation {
	p.t.Helper()
	answer := p.call("join", object{"joinCode": code}, 200)
	return p.allocation(answer)
}

// TestSessions: sessions of Unity's Multiplayer package with tokens in the form of its Authentication: create,
// join, play, the session's own host migration, and each error that the package can tell.
func TestSessions(t *testing.T) {
	t.Parallel()
	issuer := startUnityIssuer(t)
	settings := filepath.Join(t.TempDir(), "ferry.yaml")
	text := fmt.Sprintf("issuers:\n  - preset: unity\n    project: %s\n    jwks_url: %s\nhost_migration: 10s\nplayer_per_minute: 20\n", unityProject, issuer.url)
	if err := os.WriteFile(settings, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	id := newIdentity(t)
	f := launch(t, "serve", "--config", settings, "--state-dir", filepath.Join(t.TempDir(), "state"),
		"--tls-cert", id.cert, "--tls-key", id.key, "--advertise-name", testName)
	f.http = id.browse("127.0.0.1")
	player := func(name, version string, change map[string]any) sessionPlayer {
		return sessionPlayer{t, f.api + "/", issuer.token(name, change), version, f.http} // The SDK joins its base path by string.
	}
	host, guest := player("host", "2.3.0", nil), player("guest", "2.0.0", nil)

	regions := host.call("regions", nil, 200)
	if list, _ := member(regions, "data.regions"); len(list.([]any)) != 1 {
		t.Errorf("regions: %v", list)
	}
	play := func(connectionType string, a allocation) *enginetest.UTP {
		if connectionType != "wss" {
			return playBy(t, enginetest.UTP2, connectionType, a)
		}
		cred := a.credentials(t)
		cred.Relay = tunnel(t, overWSS(t, id, "127.0.0.1", a.url(t, "wss"))) // It verifies the name in the certificate.
		return enginetest.Play(t, enginetest.UTP2, cred)
	}
	for _, connectionType := range []string{"udp", "dtls", "wss"} {
		a, code := host.create(4)
		m := match{host: play(connectionType, a)}
		testkit.Eventually(t, "the host is bound", m.host.HasStatus(enginetest.Established))
		m.player = play(connectionType, guest.join(code))
		testkit.Eventually(t, "the player is bound", m.player.HasStatus(enginetest.Established))
		m.player.Connect()
		testkit.Eventually(t, "the player is accepted", m.player.HasPeers(1))
		m.talk(t, "session")
		// The session's own host migration: the new host allocates anew, and its code goes by the session.
		b, code := guest.create(4)
		m.player = play(connectionType, b)
		testkit.Eventually(t, "the new host is bound", m.player.HasStatus(enginetest.Established))
		host.join(code)
	}

	host.refused("allocate", object{"maxConnections": 101, "region": "default"}, 400, 15001, "101 is not within 1 to 100") // MaxPlayers
	host.refused("allocate", object{"maxConnections": 4, "region": "us-east1"}, 400, 15007, "region not found")
	host.refused("join", object{"joinCode": "BBBBBB"}, 404, 15009, "join code not found")
	host.refused("joincode", object{"allocationId": "00000000-0000-4000-8000-000000000000"}, 404, 15008, "")
	for name, change := range map[string]map[string]any{
		"another project": {"aud": []string{"envName:production", "upid:other"}}, "expired": {"exp": time.Now().Add(-time.Hour).Unix()},
		"no project": {"aud": []string{"envName:production"}}, "another issuer": {"iss": "https://other.example"},
	} {
		player(name, "2.3.0", change).refused("regions", nil, 401, 15401, "")
	}
	byClaim := player("by claim", "2.3.0", map[string]any{"aud": []string{"envName:production"}, "project_id": unityProject})
	byClaim.call("regions", nil, 200)

	a, code := host.create(100)
	leaving := playBy(t, enginetest.UTP2, "udp", a)
	testkit.Eventually(t, "the host is bound", leaving.HasStatus(enginetest.Established))
	f.token = host.token
	if status, body := f.ask("POST", f.api+"/v1/leave", fmt.Sprintf(`{"allocationId":%q}`, a.AllocationID)); status != 204 {
		t.Fatalf("leave: %d %s", status, body)
	}
	guest.refused("join", object{"joinCode": code}, 409, 15409, "host") // Only Ferry's own migration answers so.

	f.ask("POST", f.admin+"/drain", "")
	host.refused("allocate", object{"maxConnections": 4, "region": "default"}, 503, 15010, "")
	byClaim.refused("regions", nil, 429, 15429, "")
}
