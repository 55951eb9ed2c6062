package origin

import "testing"

// TestParse: a text is read as browsers write it, or refused if none sends it.
func TestParse(t *testing.T) {
	t.Parallel()
	for in, want := range map[string]string{
		"*": "*", "null": "null", "https://a.org": "https://a.org", "http://localhost:8080": "http://localhost:8080",
		"HTTPS://A.Org": "https://a.org", "https://a.org:443": "https://a.org", "http://a.org:80": "http://a.org",
		"https://a.org:80": "https://a.org:80", "https://xn--spil-bpa.example": "https://xn--spil-bpa.example",
		"http://127.0.0.1:3000": "http://127.0.0.1:3000", "http://[::1]:3000": "http://[::1]:3000",
		"http://[0:0::1]": "http://[::1]", "capacitor://localhost": "capacitor://localhost", "http://my_host": "http://my_host",

		"": "", "a.org": "", "https://": "", "https://a.org/": "", "https://a.org/x": "", "https://u@a.org": "",
		"https://a.org?x": "", "https://a.org\n": "", " https://a.org": "", "https://*.a.org": "", "https://spiél.example": "",
		"https://a.org:": "", "https://a.org:0443": "", "https://a.org:99999": "", "https://a.org:x": "", "https://a..org": "",
		"https://a.org.": "", "NULL": "", "none": "", "file://": "", "http://[fe80::1%25eth0]": "", "http://::1": "",
	} {
		if got, ok := Parse(in); got != want || ok != (want != "") {
			t.Errorf("Parse(%q) = %q, %v, want %q", in, got, ok, want)
		}
	}
}

// TestList: no text allows all, as any does, and case does not matter.
func TestList(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		texts []string
		page  string
		want  bool
	}{
		{nil, "https://a.org", true}, {[]string{"https://b.org", "*"}, "https://a.org", true},
		{[]string{"https://A.org:443"}, "https://a.org", true}, {[]string{"https://a.org"}, "https://A.org", true},
		{[]string{"https://a.org"}, "http://a.org", false}, {[]string{"https://a.org"}, "", false}, {[]string{"null"}, "null", true},
	} {
		if l, err := NewList(c.texts); err != nil || l.Contains(c.page) != c.want {
			t.Errorf("%q and %q: %v, %v", c.texts, c.page, l, err)
		}
	}
	if _, err := NewList([]string{"https://a.org", "b.org"}); err == nil {
		t.Error("a text that is no origin is no error")
	}
}
