package deploy

import (
	"encoding/json"
	"net"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"
)

type instruction struct{ word, rest string }

// containerfile reads the instructions. None spans several lines.
func containerfile(t *testing.T) (all []instruction) {
	t.Helper()
	words := []string{"FROM", "WORKDIR", "COPY", "RUN", "USER", "EXPOSE", "VOLUME", "STOPSIGNAL", "HEALTHCHECK", "ENTRYPOINT", "CMD"}
	for line := range strings.Lines(read(t, "container/Containerfile")) {
		line = strings.TrimSpace(line)
		if line == "" || line[0] == '#' {
			continue
		}
		word, rest, _ := strings.Cut(line, " ")
		if !slices.Contains(words, word) || rest == "" || strings.HasSuffix(rest, `\`) {
			t.Errorf("%q is no instruction", line)
		}
		all = append(all, instruction{word, rest})
	}
	return all
}

// command returns the arguments of the JSON form, without the binary.
func (i instruction) command(t *testing.T) (words []string) {
	t.Helper()
	at := strings.IndexByte(i.rest, '[')
	if at < 0 {
		t.Fatalf("%s %s is not in the JSON form, and the image has no shell", i.word, i.rest)
	}
	if err := json.Unmarshal([]byte(i.rest[at:]), &words); err != nil {
		t.Fatalf("%s: %v", i.word, err)
	}
	if len(words) > 0 && words[0] == "/ferry" {
		words = words[1:]
	}
	return words
}

func last(t *testing.T, word string) (rest string) {
	t.Helper()
	for _, in := range containerfile(t) {
		if in.word == "FROM" {
			rest = ""
		}
		if in.word == word {
			rest = in.rest
		}
	}
	return rest
}

func TestContainerfile(t *testing.T) {
	t.Parallel()
	stages, made := []string{}, []string{"/etc/ssl/certs/ca-certificates.crt"}
	for _, in := range containerfile(t) {
		fields := strings.Fields(in.rest)
		switch in.word {
		case "FROM":
			stages = append(stages, fields[len(fields)-1])
		case "RUN":
			for _, f := range fields {
				if strings.HasPrefix(f, "/out/") {
					made = append(made, f)
				}
			}
		case "COPY":
			checkCopy(t, fields, stages, made)
		}
	}
	if !slices.Equal(stages, []string{"build", "scratch"}) {
		t.Errorf("stages %q", stages)
	}
	for word, want := range map[string]string{
		"USER": "65532:65532", "STOPSIGNAL": "SIGTERM", "ENTRYPOINT": `["/ferry"]`,
		"EXPOSE": "7777/udp 7777/tcp 7779/tcp", "VOLUME": defaultOf(t, "serve", "state-dir"),
	} {
		if got := last(t, word); got != want {
			t.Errorf("%s %s, want %s", word, got, want)
		}
	}
	if _, port, _ := net.SplitHostPort(defaultOf(t, "serve", "udp")); port != "7777" {
		t.Errorf("the relay listens on %s by default", port)
	}
	mod := read(t, filepath.Join(root, "go.mod"))
	_, goes, _ := strings.Cut(mod, "\ngo ")
	if major, _, _ := strings.Cut(goes, "\n"); !strings.Contains(read(t, "container/Containerfile"),
		"golang:"+strings.TrimSuffix(major, ".0")+".") {
		t.Errorf("go.mod wants Go %s, the container file takes another", major)
	}
}

func checkCopy(t *testing.T, fields, stages, made []string) {
	t.Helper()
	from, paths := "", []string{}
	for _, f := range fields {
		if stage, ok := strings.CutPrefix(f, "--from="); ok {
			from = stage
		} else if !strings.HasPrefix(f, "--") {
			paths = append(paths, f)
		}
	}
	for _, source := range paths[:len(paths)-1] {
		switch {
		case from != "":
			if !slices.Contains(stages, from) || !slices.Contains(made, source) {
				t.Errorf("COPY: no stage %s makes %s", from, source)
			}
		default:
			if _, err := os.Stat(filepath.Join(root, source)); err != nil {
				t.Errorf("COPY: %v", err)
			}
		}
	}
}

// TestImagesByDigest checks that every image that is not built here is named by digest,
// and that no manifest takes a tag of ours that moves.
func TestImagesByDigest(t *testing.T) {
	t.Parallel()
	byDigest := regexp.MustCompile(`^docker\.io/[a-z0-9/]+:[A-Za-z0-9._-]+@sha256:[0-9a-f]{64}$`)
	images := map[string]int{}
	for _, in := range containerfile(t) {
		if image, _, _ := strings.Cut(in.rest, " "); in.word == "FROM" && image != "scratch" {
			images[image]++
		}
	}
	for _, s := range readCompose(t).Services {
		images[s.Image]++
	}
	files, _ := filepath.Glob("kubernetes/*.yaml")
	components, _ := filepath.Glob("kubernetes/*/*.yaml")
	name := regexp.MustCompile(`(?m)^ *(?:- )?image: *(\S+)`)
	for _, file := range append(files, components...) {
		for _, m := range name.FindAllStringSubmatch(read(t, file), -1) {
			images[m[1]]++
		}
	}
	if len(images) < 3 || images["ferry"] < 8 {
		t.Errorf("the images are %v", images)
	}
	for image := range images {
		if image != "ferry" && !byDigest.MatchString(image) {
			t.Errorf("%s is not named by digest", image)
		}
	}
	var k struct {
		Images []map[string]string `yaml:"images"`
	}
	if err := yaml.Unmarshal([]byte(read(t, "kubernetes/kustomization.yaml")), &k); err != nil {
		t.Fatal(err)
	}
	if len(k.Images) != 1 || k.Images[0]["name"] != "ferry" || k.Images[0]["newTag"] != "set-the-digest" && k.Images[0]["digest"] == "" {
		t.Errorf("the images of the kustomization are %v", k.Images)
	}
}

type compose struct {
	Name     string                       `yaml:"name"`
	Services map[string]service           `yaml:"services"`
	Secrets  map[string]map[string]string `yaml:"secrets"`
	Volumes  map[string]struct{}          `yaml:"volumes"`
}

type service struct {
	Image       string            `yaml:"image"`
	Build       map[string]string `yaml:"build"`
	Command     []string          `yaml:"command"`
	Environment map[string]string `yaml:"environment"`
	Ports       []string          `yaml:"ports"`
	NetworkMode string            `yaml:"network_mode"`
	Secrets     []string          `yaml:"secrets"`
	Volumes     []string          `yaml:"volumes"`
	DependsOn   map[string]struct {
		Condition string `yaml:"condition"`
	} `yaml:"depends_on"`
	Healthcheck     map[string]any `yaml:"healthcheck"`
	StopGracePeriod string         `yaml:"stop_grace_period"`
	ReadOnly        bool           `yaml:"read_only"`
	CapDrop         []string       `yaml:"cap_drop"`
	SecurityOpt     []string       `yaml:"security_opt"`
	Ulimits         map[string]any `yaml:"ulimits"`
	Restart         string         `yaml:"restart"`
}

func readCompose(t *testing.T) (c compose) {
	t.Helper()
	if err := strict([]byte(read(t, "container/compose.yaml")), &c); err != nil {
		t.Fatal(err)
	}
	return c
}

func TestCompose(t *testing.T) {
	t.Parallel()
	c := readCompose(t)
	if len(c.Services) != 3 {
		t.Errorf("%d services", len(c.Services))
	}
	for name, s := range c.Services {
		for other := range s.DependsOn {
			if _, ok := c.Services[other]; !ok {
				t.Errorf("%s depends on %s, which there is not", name, other)
			}
		}
		for _, v := range s.Volumes {
			volume, _, _ := strings.Cut(v, ":")
			if _, ok := c.Volumes[volume]; !ok && !strings.HasPrefix(volume, "./") {
				t.Errorf("%s: no volume %s", name, volume)
			}
		}
		if s.Image == "ferry" {
			checkFerryService(t, name, &s, &c)
		}
	}
	relay, redis := c.Services["relay"], c.Services["redis"]
	if relay.NetworkMode != "host" || len(relay.Ports) != 0 || !slices.Equal(redis.Ports, []string{"127.0.0.1:6379:6379/tcp"}) {
		t.Errorf("the relay is on %q and publishes %q, and Redis %q", relay.NetworkMode, relay.Ports, redis.Ports)
	}
	if admin := (commandLine{"relay", relay.Command}).flag("admin"); admin != "" && !strings.HasPrefix(admin, "127.0.0.1:") {
		t.Errorf("the admin pages of the relay, which is on the machine's network, are at %s", admin)
	}
	api := commandLine{"api", c.Services["api"].Command}
	_, port, _ := net.SplitHostPort(api.flag("http"))
	if p := c.Services["api"].Ports; len(p) != 1 || !strings.HasSuffix(p[0], ":"+port+"/tcp") || !strings.HasPrefix(p[0], "127.0.0.1:") {
		t.Errorf("the API listens on %s and %q is published", port, p)
	}
	context, file := relay.Build["context"], relay.Build["dockerfile"]
	if _, err := os.Stat(filepath.Join("container", context, file)); err != nil {
		t.Error(err)
	}
	if _, err := os.Stat(filepath.Join("container", context, "go.mod")); err != nil {
		t.Error(err)
	}
}

// TestComposeUsers: Redis has the users of docs/fleet.md, which are tested there, and
// relay and API use theirs.
func TestComposeUsers(t *testing.T) {
	t.Parallel()
	c := readCompose(t)
	command := strings.Join(c.Services["redis"].Command, " ")
	users := 0
	for line := range strings.Lines(read(t, filepath.Join(root, "docs/fleet.md"))) {
		rest, ok := strings.CutPrefix(line, "ACL SETUSER ")
		if !ok || !strings.Contains(rest, " reset on >") {
			continue
		}
		users++
		user, rules, _ := strings.Cut(strings.TrimSpace(rest), " reset on >")
		_, rules, _ = strings.Cut(rules, " ")
		_, given, _ := strings.Cut(command, "--user "+user+" on ")
		given, _, _ = strings.Cut(given, " --user ")
		_, given, _ = strings.Cut(strings.ReplaceAll(given, "'", ""), " ")
		if given != rules {
			t.Errorf("%s may %q, want %q", user, given, rules)
		}
		role := strings.TrimPrefix(user, "ferry-")
		if url := c.Services[role].Environment["FERRY_STORE"]; !strings.HasPrefix(url, "redis://"+user+":") {
			t.Errorf("%s uses %s", role, url)
		}
	}
	if users != 2 {
		t.Errorf("%d users, want 2", users)
	}
}

func checkFerryService(t *testing.T, name string, s *service, c *compose) {
	t.Helper()
	if !s.ReadOnly || !slices.Equal(s.CapDrop, []string{"ALL"}) || len(s.SecurityOpt) != 1 || s.StopGracePeriod == "" || s.Restart == "" {
		t.Errorf("%s may do more than it need", name)
	}
	read := ""
	for _, w := range s.Command {
		if _, path, ok := strings.Cut(w, "=/run/secrets/"); ok {
			read += " " + path + " "
			if !slices.Contains(s.Secrets, path) {
				t.Errorf("%s reads the secret %s, which it is not given", name, path)
			}
		}
	}
	for _, secret := range s.Secrets {
		if c.Secrets[secret]["file"] == "" {
			t.Errorf("%s: no file for the secret %s", name, secret)
		}
		if !strings.Contains(read, " "+secret+" ") && secret != "token" { // The configuration file names that one.
			t.Errorf("%s is given the secret %s, and does not read it", name, secret)
		}
	}
}
