package redis

import (
	"errors"
	"fmt"
	"net"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"
)

// clusterSchemes maps the URL schemes of clusters to those that go-redis uses for their nodes.
var clusterSchemes = map[string]string{"redis-cluster": "redis", "rediss-cluster": "rediss"}

var errURL = errors.New("the URL of the Redis does not parse") // the parser's own error contains the password

// connect returns the client of a URL, which connects when first used, and the options.
func connect(address string, o Options) (redis.UniversalClient, Options, error) {
	scheme, rest, _ := strings.Cut(address, "://")
	nodeScheme, isCluster := clusterSchemes[scheme]
	var more []string
	if isCluster {
		var first string
		if first, more = splitNodes(rest); first == "" {
			return nil, o, errors.New("the URL of the cluster names no node")
		}
		address = nodeScheme + "://" + first
	}
	u, err := url.Parse(address)
	if err != nil {
		return nil, o, errURL
	}
	if o, err = own(u, o); err != nil {
		return nil, o, err
	}
	timeout := readTimeout + max(o.ReplicaTimeout, DefaultReplicaTimeout)
	if !isCluster {
		client, err := newClient(u, timeout)
		return client, o, err
	}
	client, err := newCluster(u, more, timeout)
	return client, o, err
}

// own removes this package's parameters from a URL and applies them to the options.
func own(u *url.URL, o Options) (Options, error) {
	query := u.Query()
	for name, option := range map[string]*int{"min_replicas": &o.MinReplicas, "max_open": &o.MaxOpen} {
		if !query.Has(name) {
			continue
		}
		n, err := strconv.Atoi(query.Get(name))
		if err != nil {
			return o, fmt.Errorf("%s: %w", name, err)
		}
		*option = n
	}
	if text := query.Get("replica_timeout"); text != "" {
		timeout, err := time.ParseDuration(text)
		if err != nil {
			return o, fmt.Errorf("replica_timeout: %w", err)
		}
		o.ReplicaTimeout = timeout
	}
	if prefix := query.Get("prefix"); prefix != "" {
		o.Prefix = prefix
	}
	for _, name := range []string{"prefix", "min_replicas", "replica_timeout", "max_open"} {
		query.Del(name)
	}
	u.RawQuery = query.Encode()
	return o, nil
}

// newClient returns the client of one server.
func newClient(u *url.URL, timeout time.Duration) (redis.UniversalClient, error) {
	options, err := redis.ParseURL(u.String())
	if err != nil {
		return nil, err
	}
	if options.MaxRetries == 0 {
		// The store itself retries what may be retried. If go-redis retried a swap, it would find its own version, and
		// the call would have to be decided again.
		options.MaxRetries = -1
	}
	if options.ReadTimeout == 0 {
		options.ReadTimeout = timeout
	}
	options.ContextTimeoutEnabled = true // otherwise a call waits for ReadTimeout beyond the deadline of its context
	return redis.NewClient(options), nil
}

// newCluster returns the client of a cluster. When a node fails, the client retries on other nodes. A retried swap may
// then find its own version, so the call is decided again; the attempt id makes that harmless.
func newCluster(u *url.URL, more []string, timeout time.Duration) (redis.UniversalClient, error) {
	if path := strings.Trim(u.Path, "/"); path != "" && path != "0" {
		return nil, errors.New("a cluster has only database 0")
	}
	query := u.Query()
	for _, node := range more {
		query.Add("addr", node)
	}
	u.RawQuery = query.Encode()
	options, err := redis.ParseClusterURL(u.String())
	if err != nil {
		return nil, err
	}
	if options.ReadTimeout == 0 {
		options.ReadTimeout = timeout
	}
	options.ContextTimeoutEnabled = true // otherwise a call waits for ReadTimeout beyond the deadline of its context
	return redis.NewClusterClient(options), nil
}

// splitNodes removes all nodes but the first from the part of a URL after the scheme, and gives them ports. The first
// is "" if there is none.
func splitNodes(rest string) (first string, more []string) {
	end := strings.IndexAny(rest, "/?#")
	if end < 0 {
		end = len(rest)
	}
	authority, tail := rest[:end], rest[end:]
	at := strings.LastIndex(authority, "@") + 1
	nodes := strings.Split(authority[at:], ",")
	for _, node := range nodes[1:] {
		if _, _, err := net.SplitHostPort(node); err != nil {
			node = net.JoinHostPort(strings.Trim(node, "[]"), "6379")
		}
		more = append(more, node)
	}
	if nodes[0] == "" {
		return "", nil
	}
	return authority[:at] + nodes[0] + tail, more
}
