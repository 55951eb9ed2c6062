package deploy

import (
	"regexp"
	"testing"
)

// scrapeFile is what the files for prometheus.yml use of its configuration.
type scrapeFile struct {
	RuleFiles []string `yaml:"rule_files"`
	Configs   []struct {
		Job           string            `yaml:"job_name"`
		Interval      string            `yaml:"scrape_interval"`
		Authorization map[string]string `yaml:"authorization"`
		Static        []struct {
			Targets []string `yaml:"targets"`
		} `yaml:"static_configs"`
		DNS []struct {
			Names []string `yaml:"names"`
			Type  string   `yaml:"type"`
			Port  int      `yaml:"port"`
		} `yaml:"dns_sd_configs"`
		Kubernetes []struct {
			Role       string              `yaml:"role"`
			Namespaces map[string][]string `yaml:"namespaces"`
		} `yaml:"kubernetes_sd_configs"`
		Relabel []struct {
			Sources     []string `yaml:"source_labels"`
			Action      string   `yaml:"action"`
			Regex       string   `yaml:"regex"`
			Replacement string   `yaml:"replacement"`
			Target      string   `yaml:"target_label"`
		} `yaml:"relabel_configs"`
	} `yaml:"scrape_configs"`
}

// TestScrape checks that Prometheus finds the admin pages under the job that the rules name: of one machine, of
// a fleet by DNS, and of pods by their annotations.
func TestScrape(t *testing.T) {
	t.Parallel()
	files := make(map[string]scrapeFile)
	for _, name := range []string{"scrape", "scrape-fleet", "scrape-kubernetes"} {
		var file scrapeFile
		if err := strict([]byte(read(t, "prometheus/"+name+".yaml")), &file); err != nil {
			t.Fatal(name, err)
		}
		if len(file.Configs) != 1 || file.Configs[0].Job != "ferry" || len(file.RuleFiles) != 1 {
			t.Fatalf("%s: %+v", name, file)
		}
		files[name] = file
	}
	if c := files["scrape"].Configs[0]; c.Static[0].Targets[0] != defaultOf(t, "serve", "admin") {
		t.Errorf("%+v", c)
	}
	if c := files["scrape-fleet"].Configs[0]; len(c.DNS) != 1 || c.DNS[0].Port != 7778 || c.Authorization["credentials_file"] == "" {
		t.Errorf("%+v", c)
	}
	pods := files["scrape-kubernetes"].Configs[0]
	if len(pods.Kubernetes) != 1 || len(pods.Kubernetes[0].Namespaces["names"]) != 2 || pods.Authorization["credentials_file"] == "" {
		t.Errorf("%+v", pods)
	}
	for _, r := range pods.Relabel {
		if r.Target != "__address__" {
			continue
		}
		address := regexp.MustCompile("^(?:" + r.Regex + ")$")
		for from, want := range map[string]string{
			"10.1.2.3:7777;7778": "10.1.2.3:7778", "10.1.2.3;7778": "10.1.2.3:7778",
			"[fd00::1]:7777;7778": "[fd00::1]:7778", "[fd00::1];7778": "[fd00::1]:7778",
		} {
			if got := address.ReplaceAllString(from, r.Replacement); got != want {
				t.Errorf("%s becomes %s, want %s", from, got, want)
			}
		}
		return
	}
	t.Error("no address is made of the annotation")
}
