package deploy

import "testing"

// TestScrape checks that Prometheus finds the admin pages under the job that the rules name.
func TestScrape(t *testing.T) {
	t.Parallel()
	var scrape struct {
		RuleFiles []string `yaml:"rule_files"`
		Configs   []struct {
			Job      string `yaml:"job_name"`
			Interval string `yaml:"scrape_interval"`
			Static   []struct {
				Targets []string `yaml:"targets"`
			} `yaml:"static_configs"`
		} `yaml:"scrape_configs"`
	}
	if err := strict([]byte(read(t, "prometheus/scrape.yaml")), &scrape); err != nil {
		t.Fatal(err)
	}
	if c := scrape.Configs; len(c) != 1 || c[0].Job != "ferry" || c[0].Static[0].Targets[0] != defaultOf(t, "serve", "admin") {
		t.Errorf("%+v", c)
	}
}
