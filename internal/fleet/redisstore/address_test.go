package redisstore

import (
	"reflect"
	"strings"
	"testing"
)

func TestParseURL(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]Address{
		"redis://localhost":                    {Hosts: []string{"localhost:6379"}},
		"redis://10.0.0.1:7000/3":              {Hosts: []string{"10.0.0.1:7000"}, DB: 3},
		"valkeys://store.example/":             {Hosts: []string{"store.example:6379"}, TLS: true},
		"rediss://:p%40ss@[2001:db8::1]":       {Hosts: []string{"[2001:db8::1]:6379"}, Password: "p@ss", TLS: true},
		"redis://ferry:a:b@[2001:db8::1]:6380": {Hosts: []string{"[2001:db8::1]:6380"}, Username: "ferry", Password: "a:b"},
		"redis+sentinel://a,b:1,[::1]/main":    {Kind: Sentinel, Hosts: []string{"a:26379", "b:1", "[::1]:26379"}, Master: "main"},
		"redis+sentinel://a,a/main/2":          {Kind: Sentinel, Hosts: []string{"a:26379"}, Master: "main", DB: 2},
		"redis://u:p@a,b/1?master=main": {Kind: Sentinel, Hosts: []string{"a:26379", "b:26379"}, Master: "main", DB: 1,
			Username: "u", Password: "p"},
		"redis://a?cluster=true":                 {Kind: Cluster, Hosts: []string{"a:6379"}},
		"redis://a?cluster=false":                {Hosts: []string{"a:6379"}},
		"rediss+cluster://a:7000,b:7001/0":       {Kind: Cluster, Hosts: []string{"a:7000", "b:7001"}, TLS: true},
		"redis+sentinel://a?master=m":            {Kind: Sentinel, Hosts: []string{"a:26379"}, Master: "m"},
		"redis://a?master=m&sentinel_password=s": {Kind: Sentinel, Hosts: []string{"a:26379"}, Master: "m", SentinelPassword: "s"},
	} {
		if got, err := ParseURL(text); err != nil || !reflect.DeepEqual(got, want) {
			t.Errorf("ParseURL(%q) = %+v, %v; want %+v", text, got, err, want)
		}
	}
}

func TestParseURLRefuses(t *testing.T) {
	t.Parallel()
	for _, text := range []string{
		"", "localhost:6379", "http://a", "redis+proxy://a", "redis://", "redis://a:b", "redis://a:0", "redis://a:65536",
		"redis://a,b", "redis://hunter2@a", "redis://:hunter2%zz@a", "redis://a/hunter2", "redis://a/1/2", "redis://::1",
		"redis://[::1", "redis://::1]", "redis://:hunter2@a?password=hunter2", "redis://a?timeout=3", "redis://a?master=m&master=n",
		"redis+sentinel://a", "redis+cluster://a/1", "redis+cluster://a?master=m", "redis+sentinel://a/m?cluster=true",
		"redis://a?cluster=hunter2", "redis://a?%zz", "redis://a?master=m&cluster=1", "redis://" + strings.Repeat("a,", 3) + "",
		"redis+cluster://" + hostList(maxHosts+1),
	} {
		_, err := ParseURL(text)
		if err == nil {
			t.Errorf("ParseURL(%q) is content", text)
		} else if strings.Contains(err.Error(), "hunter2") {
			t.Errorf("ParseURL(%q) tells the secret: %v", text, err)
		}
	}
}

func hostList(n int) string {
	var hosts []string
	for i := range n {
		hosts = append(hosts, "host"+strings.Repeat("x", i))
	}
	return strings.Join(hosts, ",")
}
