// Package origin is about the header Origin of web pages (RFC 6454).
package origin

import (
	"fmt"
	"net/netip"
	"net/url"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// Any stands for all origins.
const Any = "*"

// None is the origin of pages that have none to show, such as files.
const None = "null"

// hostName is a host as browsers write it, which encode other characters as xn--… (IDNA).
var hostName = regexp.MustCompile(`^[a-z0-9_-]+(\.[a-z0-9_-]+)*$`)

var defaultPorts = map[string]string{"http": "80", "https": "443"}

// Parse returns an origin as browsers write it, and whether the text is one that a browser could
// send, or Any.
func Parse(text string) (canonical string, ok bool) {
	if text == Any || text == None {
		return text, true
	}
	text = strings.ToLower(text)
	u, err := url.Parse(text)
	if err != nil || u.Scheme == "" || text != u.Scheme+"://"+u.Host {
		return "", false
	}
	host, port := u.Hostname(), u.Port()
	if ip, err := netip.ParseAddr(host); err == nil && ip.Is6() && ip.Zone() == "" {
		host = "[" + ip.String() + "]"
	} else if !hostName.MatchString(host) {
		return "", false
	}
	switch n, err := strconv.ParseUint(port, 10, 16); {
	case port == "" && strings.HasSuffix(text, ":"):
		return "", false
	case port == "" || port == defaultPorts[u.Scheme]:
		return u.Scheme + "://" + host, true
	case err != nil || strconv.FormatUint(n, 10) != port:
		return "", false
	}
	return u.Scheme + "://" + host + ":" + port, true
}

// List is a set of origins. Nil: all.
type List []string

// NewList returns the set of these texts, or an error for one that is no origin. None are all.
func NewList(texts []string) (l List, err error) {
	for _, text := range texts {
		o, ok := Parse(text)
		if !ok {
			return nil, fmt.Errorf("%q is not an origin as browsers send it, such as https://game.example.org or http://localhost:8080", text)
		}
		l = append(l, o)
	}
	if slices.Contains(l, Any) {
		return nil, nil
	}
	return l, nil
}

// Contains reports whether the origin of a request is in the set.
func (l List) Contains(origin string) bool {
	return l == nil || slices.Contains(l, strings.ToLower(origin))
}
