package redisstore

import (
	"errors"
	"fmt"
	"net"
	"net/url"
	"slices"
	"strconv"
	"strings"
)

type Kind uint8

const (
	// Alone is one server, or one address behind which a provider keeps several.
	Alone Kind = iota
	Sentinel
	Cluster
)

const (
	redisPort    = "6379"
	sentinelPort = "26379"
)

const maxHosts = 64

type Address struct {
	Kind Kind
	// Hosts are host:port, at least one.
	Hosts              []string
	Username, Password string
	// Master is the name that the sentinels have for the master, and the
	// following two are for the sentinels themselves.
	Master                             string
	SentinelUsername, SentinelPassword string
	// DB is the number of the database, 0 in a cluster.
	DB  int
	TLS bool
}

// ParseURL reads where the store is, in the forms of docs/fleet.md: with rediss in the place of
// redis for TLS, valkey and valkeys as other names of the same, and the parameters
// sentinel_username and sentinel_password. Special characters of names and passwords are
// percent-encoded. Errors never contain any part of the URL but its scheme and the names of
// parameters.
func ParseURL(text string) (Address, error) {
	var a Address
	scheme, rest, ok := strings.Cut(text, "://")
	if !ok {
		return Address{}, errors.New("redisstore: the URL has no scheme: it begins with redis:// or rediss://")
	}
	if err := a.scheme(scheme); err != nil {
		return Address{}, err
	}
	rest, query, _ := strings.Cut(rest, "?")
	if err := a.query(query); err != nil {
		return Address{}, err
	}
	authority, path, _ := strings.Cut(rest, "/")
	if at := strings.LastIndexByte(authority, '@'); at >= 0 {
		if err := a.user(authority[:at]); err != nil {
			return Address{}, err
		}
		authority = authority[at+1:]
	}
	if err := a.path(path); err != nil {
		return Address{}, err
	}
	return a, a.hosts(authority)
}

func (a *Address) scheme(scheme string) error {
	base, kind, _ := strings.Cut(scheme, "+")
	switch base {
	case "redis", "valkey":
	case "rediss", "valkeys":
		a.TLS = true
	default:
		return fmt.Errorf("redisstore: scheme %q is not known: redis, rediss, and these with +sentinel or +cluster", scheme)
	}
	switch kind {
	case "":
	case "sentinel":
		a.Kind = Sentinel
	case "cluster":
		a.Kind = Cluster
	default:
		return fmt.Errorf("redisstore: scheme %q is not known: +sentinel and +cluster are", scheme)
	}
	return nil
}

func (a *Address) query(text string) error {
	values, err := url.ParseQuery(text)
	if err != nil {
		return errors.New("redisstore: the URL's parameters, behind the question mark, cannot be read")
	}
	for name, all := range values {
		if len(all) != 1 {
			return fmt.Errorf("redisstore: the URL's parameter %q is there %d times", name, len(all))
		}
		switch value := all[0]; name {
		case "master":
			if a.Kind == Cluster {
				return errors.New("redisstore: the URL names a master and a cluster: a cluster has no sentinels")
			}
			a.Kind, a.Master = Sentinel, value
		case "cluster":
			yes, err := strconv.ParseBool(value)
			if err != nil {
				return errors.New("redisstore: the URL's parameter cluster is true or false")
			}
			if yes && a.Kind == Sentinel {
				return errors.New("redisstore: the URL names sentinels and a cluster: a cluster has no sentinels")
			}
			if yes {
				a.Kind = Cluster
			}
		case "sentinel_username":
			a.SentinelUsername = value
		case "sentinel_password":
			a.SentinelPassword = value
		default:
			return fmt.Errorf("redisstore: the URL's parameter %q is not known: master, cluster, sentinel_username and sentinel_password are", name)
		}
	}
	return nil
}

func (a *Address) user(text string) error {
	name, password, both := strings.Cut(text, ":")
	var err, err2 error
	a.Username, err = url.PathUnescape(name)
	a.Password, err2 = url.PathUnescape(password)
	if err != nil || err2 != nil {
		return errors.New("redisstore: user name or password of the URL hold a percent sign that begins no %XX: write it as %25")
	}
	if !both && a.Username != "" {
		return errors.New("redisstore: the URL has one word before the @: write user:password@, or :password@ where there are no users")
	}
	return nil
}

func (a *Address) path(text string) error {
	parts := strings.FieldsFunc(text, func(r rune) bool { return r == '/' })
	if a.Kind == Sentinel && a.Master == "" {
		if len(parts) == 0 {
			return errors.New("redisstore: the URL of sentinels does not name the master: redis+sentinel://host/NAME")
		}
		a.Master, parts = parts[0], parts[1:]
	}
	switch len(parts) {
	case 0:
		return nil
	case 1:
		db, err := strconv.ParseUint(parts[0], 10, 16)
		if err != nil {
			return errors.New("redisstore: the path of the URL is not the number of a database")
		}
		if a.Kind == Cluster && db != 0 {
			return errors.New("redisstore: a cluster has only the database 0")
		}
		a.DB = int(db)
		return nil
	}
	return errors.New("redisstore: the path of the URL has too many parts")
}

func (a *Address) hosts(text string) error {
	port := redisPort
	if a.Kind == Sentinel {
		port = sentinelPort
	}
	for one := range strings.SplitSeq(text, ",") {
		host, err := hostPort(one, port)
		if err != nil {
			return err
		}
		if !slices.Contains(a.Hosts, host) {
			a.Hosts = append(a.Hosts, host)
		}
		if len(a.Hosts) > maxHosts {
			return fmt.Errorf("redisstore: the URL names more than %d hosts", maxHosts)
		}
	}
	if a.Kind == Alone && len(a.Hosts) > 1 {
		return errors.New("redisstore: the URL names several hosts: are they sentinels (?master=NAME) or a cluster (?cluster=true)?")
	}
	return nil
}

// hostPort returns host:port for a host with a port or without one. IPv6
// addresses are in brackets.
func hostPort(text, port string) (string, error) {
	host := text
	if bare, ok := strings.CutSuffix(text, "]"); ok {
		host, ok = strings.CutPrefix(bare, "[")
		if !ok {
			return "", errors.New("redisstore: a host of the URL has one bracket only")
		}
	} else if strings.Contains(text, ":") {
		var err error
		if host, port, err = net.SplitHostPort(text); err != nil {
			return "", errors.New("redisstore: a host of the URL is not host or host:port, with an IPv6 address in brackets")
		}
	}
	if n, err := strconv.ParseUint(port, 10, 16); err != nil || n == 0 || host == "" {
		return "", errors.New("redisstore: a host of the URL has no name, or no port from 1 to 65535")
	}
	return net.JoinHostPort(host, port), nil
}
