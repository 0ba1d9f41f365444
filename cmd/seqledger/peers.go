package main

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/seqledger/seqledger/ledger"
	"github.com/seqledger/seqledger/ledger/cluster"
	"github.com/seqledger/seqledger/ledger/datadir"
	"github.com/seqledger/seqledger/ledger/raftlog/transport"
	"github.com/seqledger/seqledger/ledger/seed"
	"github.com/seqledger/seqledger/server"
)

// peerFlags are the flags of serve that make a node part of a cluster.
type peerFlags struct {
	PeerListen    string   `help:"Address for the other nodes of a cluster; port 0 takes a free one. Without it the node is alone." placeholder:"ADDRESS"`
	PeerAdvertise string   `help:"Address under which the other nodes reach this one, if not --peer-listen." placeholder:"ADDRESS"`
	Advertise     string   `help:"Address under which clients reach this node, if not --listen; the other nodes pass it on." placeholder:"ADDRESS"`
	Join          []string `help:"Join the cluster of the node with this --peer-listen; repeatable. A data directory with a ledger must belong to that cluster." placeholder:"ADDRESS"`
	PeerCert      string   `help:"Certificate (PEM) of this node, used in both directions." type:"path" placeholder:"FILE"`
	PeerKey       string   `help:"Private key of --peer-cert." type:"path" placeholder:"FILE"`
	PeerCA        string   `name:"peer-ca" help:"Certificates (PEM) of the authority that signs only the nodes' certificates." type:"path" placeholder:"FILE"`
	PeerInsecure  bool     `help:"Connect to other nodes without TLS on addresses that are not loopback."`
	JoinToken     string   `help:"Secret of the cluster, at least 16 characters, that a node needs to join. Each node keeps it in JOIN-TOKEN in its data directory; the first one creates it unless given." placeholder:"TOKEN"`
	JoinTokenFile string   `help:"File with the secret, such as JOIN-TOKEN of another node. A joining node waits up to 20 seconds for it." type:"path" placeholder:"FILE"`
}

// cluster opens the listener for other nodes. It returns nil without --peer-listen. Its errors are usage errors, except
// for a port that is in use.
func (c *serveCommand) cluster(e *environment, clients net.Listener) (*cluster.Options, error) {
	f := &c.peerFlags
	config, err := f.check(e)
	if err != nil || f.PeerListen == "" {
		return nil, err
	}
	token, err := c.token(e)
	if err != nil {
		return nil, err
	}
	listener, err := listenOn("--peer-listen", f.PeerListen)
	if err != nil {
		return nil, err
	}
	return &cluster.Options{
		Listener: listener, TLS: config, Insecure: f.PeerInsecure,
		Peer:   reachable(f.PeerAdvertise, listener),
		Client: reachable(f.Advertise, clients),
		Token:  token, Nodes: f.Join,
	}, nil
}

// reachable returns the address to give to others: the advertised one, or that of a listener on a single interface. A
// server that listens on all interfaces must be given its address.
func reachable(advertised string, l net.Listener) string {
	if advertised != "" {
		return advertised
	}
	if a, ok := l.Addr().(*net.TCPAddr); ok && a.IP.IsUnspecified() {
		return ""
	}
	return l.Addr().String()
}

// check validates the flags, and reads the TLS files.
func (f *peerFlags) check(e *environment) (*tls.Config, error) {
	if f.PeerListen == "" {
		if len(f.Join) > 0 || f.PeerAdvertise != "" || f.PeerCert != "" || f.PeerCA != "" || f.PeerInsecure {
			return nil, usage("--join, --peer-advertise, --peer-cert, --peer-ca and --peer-insecure need --peer-listen")
		}
		return nil, nil
	}
	host, err := checkListen("--peer-listen", f.PeerListen)
	if err != nil {
		return nil, err
	}
	for flag, address := range map[string]string{"--peer-advertise": f.PeerAdvertise, "--advertise": f.Advertise} {
		if _, _, err := net.SplitHostPort(address); address != "" && err != nil {
			return nil, usage("%s %s: must be a host and a port: %w", flag, address, err)
		}
	}
	for _, address := range f.Join {
		if _, _, err := net.SplitHostPort(address); err != nil {
			return nil, usage("--join %s: must be the host and the port of another node's --peer-listen: %w", address,
				err)
		}
	}
	files := 0
	for _, name := range []string{f.PeerCert, f.PeerKey, f.PeerCA} {
		if name != "" {
			files++
		}
	}
	switch {
	case files != 0 && files != 3:
		return nil, usage("--peer-cert, --peer-key and --peer-ca belong together: each node proves to the others " +
			"who it is")
	case files == 3:
		return f.tls(e)
	case loopbackName(host):
		return nil, nil
	case !f.PeerInsecure:
		return nil, fail(exitUsage, "give --peer-cert, --peer-key and --peer-ca; on a trusted network give "+
			"--peer-insecure",
			"--peer-listen %s: is not a loopback address, and there is no TLS between the nodes", f.PeerListen)
	}
	e.log.Warn("INSECURE: the network between the nodes can read and change everything; --peer-cert, --peer-key and "+
		"--peer-ca would prevent it", "listen", f.PeerListen)
	return nil, nil
}

// tls reads the certificate of this node, and the authority that signs the certificates of the others.
func (f *peerFlags) tls(e *environment) (*tls.Config, error) {
	certificate, err := keyPair(f.PeerCert, f.PeerKey)
	if err != nil {
		return nil, err
	}
	pool, err := certificatePool("--peer-ca", f.PeerCA)
	if err != nil {
		return nil, err
	}
	return &tls.Config{
		Certificates: []tls.Certificate{certificate}, RootCAs: pool, ClientCAs: pool, MinVersion: tls.VersionTLS13,
	}, nil
}

// leastToken is the minimum length of a join token in bytes.
const leastToken = 16

// token returns the configured join token, or the empty string if there is none. A joining node waits for a missing
// token file, because the first node creates it and may still be starting.
func (c *serveCommand) token(e *environment) (string, error) {
	f := &c.peerFlags
	flag, token := "--join-token", f.JoinToken
	if f.JoinTokenFile != "" {
		if token != "" {
			return "", usage("give --join-token or --join-token-file, not both")
		}
		content, err := awaitToken(e.ctx, f.JoinTokenFile, filepath.Join(c.Data, datadir.TokenName))
		if err != nil {
			return "", usage("--join-token-file: %w", err)
		}
		flag, token = "--join-token-file "+f.JoinTokenFile, strings.TrimSpace(string(content))
	} else if token == "" {
		return "", nil
	}
	if len(token) < leastToken {
		return "", usage("%s: must have at least %d characters", flag, leastToken)
	}
	return token, nil
}

const (
	// tokenPatience is how long a joining node waits for the token file.
	tokenPatience = 20 * time.Second
	tokenInterval = 100 * time.Millisecond
)

// awaitToken reads the token file. It waits for a missing file, because the first node writes it when it starts. A node
// that has joined uses its stored token instead, because the missing file may have belonged to a node that no longer
// exists.
func awaitToken(ctx context.Context, name, stored string) (content []byte, err error) {
	ctx, cancel := context.WithTimeout(ctx, tokenPatience)
	defer cancel()
	ticker := time.NewTicker(tokenInterval)
	defer ticker.Stop()
	for {
		if content, err = os.ReadFile(name); !errors.Is(err, fs.ErrNotExist) {
			return content, err
		}
		if content, err := os.ReadFile(stored); err == nil {
			return content, nil
		}
		select {
		case <-ticker.C:
		case <-ctx.Done():
			return nil, err
		}
	}
}

// join creates the data directory of a node that joins a cluster, unless it already belongs to a node.
func (c *serveCommand) join(e *environment, cluster *cluster.Options) error {
	o, err := c.seedOptions(e, cluster.TLS, cluster.Token)
	if err != nil {
		return err
	}
	o.Peer, o.Client = cluster.Peer, cluster.Client
	err = seed.Join(e.ctx, o)
	if errors.Is(err, seed.ErrJoined) {
		return nil
	}
	return err
}

// seedOptions returns the options for fetching another node's state.
func (c *serveCommand) seedOptions(e *environment, config *tls.Config, token string) (o seed.Options, err error) {
	archived, err := c.Archive.open(e.ctx)
	if err != nil {
		return o, fmt.Errorf("--archive: %w", err)
	}
	return seed.Options{
		Dir: c.Data, Nodes: c.Join, RoundTripper: transport.NewRoundTripper(config), Encrypted: config != nil,
		Token: token, Logger: e.log, Archive: archived,
	}, nil
}

// again replaces the state of this node, which lacks too much of the log to follow it, with that of another node. The
// ledger must be closed.
func (c *serveCommand) again(e *environment, behind *cluster.BehindError) error {
	e.log.Warn("this node is too far behind to follow the log and fetches the state of another one; it answers no "+
		"calls until it has it", "log index", behind.At.Index)
	config, err := c.peerFlags.check(e)
	if err != nil {
		return err
	}
	token, err := c.token(e)
	if err != nil {
		return err
	}
	o, err := c.seedOptions(e, config, token)
	if err != nil {
		return err
	}
	err = seed.Again(e.ctx, o, behind.At.Index)
	if err != nil && e.ctx.Err() == nil {
		return fail(exitFailed, storageHint(err, c.Data), "fetch the state of another node: %w", err)
	}
	return nil
}

// servePeers serves requests of other nodes. The ledger refuses nodes outside the cluster.
func (c *serveCommand) servePeers(l *ledger.Ledger, s *server.Server) {
	mux := http.NewServeMux()
	mux.Handle("POST "+cluster.JoinPath, l.Cluster().JoinHandler())
	mux.Handle("GET "+seed.Path, seed.Handler(l, c.BackupRate))
	mux.Handle("/", s.PeerHandler())
	l.Cluster().ServePeers(mux)
}
